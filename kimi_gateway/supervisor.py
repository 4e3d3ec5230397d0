"""Several worker processes on one shared socket, under one process that starts, watches and ends them.

The supervisor binds the addresses, holds the private state server and the built-in emulator where they are wanted,
and passes all of it to its workers by descriptor. A worker that dies is started again, a little later each time;
one that cannot start ends the gateway. Signals go on to every worker. Should the supervisor itself be killed, its
workers see the end of a pipe and drain as for SIGTERM.
"""

import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from kimi_gateway.adapters.state import Embedded, EmbeddedError
from kimi_gateway.emulated import start_emulator
from kimi_gateway.launch import Launch, bound_sockets
from kimi_gateway.logs import LineWriter, Log, choose_format
from kimi_gateway.opening import StartError, thought_bounds
from kimi_gateway.shutdown import Signals
from kimi_gateway.worker import Share

CANNOT_START: Final = 2
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0
_STEADY_S: Final = 10.0  # a worker that lived so long starts anew without a pause


@dataclass(slots=True)
class _Worker:
    """One place for a process, and how often in a row it had to be filled again."""

    index: int
    process: asyncio.subprocess.Process | None = None
    started_s: float = 0.0
    failures: int = 0


def supervise(launch: Launch, command: Sequence[str]) -> int:
    """Serves with several workers until a signal ends it; the exit code. `command` starts one worker.

    Raises `server.ListenError`, `StartError`.
    """
    sock, admin = bound_sockets(launch)
    log = Log(LineWriter(sys.stderr, format=choose_format(launch.log_format, sys.stderr)), wall=time.time)  # noqa: TID251  # the shell reads the clock
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_Supervisor(launch, command, log).serve(sock, admin))
        finally:
            log.close()


class _Supervisor:
    def __init__(self, launch: Launch, command: Sequence[str], log: Log) -> None:
        self._launch = launch
        self._command = list(command)
        self._log = log
        self._workers = [_Worker(index) for index in range(launch.settings.server.workers)]
        self._share = Share()
        self._descriptors: tuple[int, ...] = ()
        self._stopping = False
        self._code = 0

    async def serve(self, sock: socket.socket, admin: socket.socket | None) -> int:
        """Runs the workers to their end; the exit code."""
        signals = Signals()
        signals.install(asyncio.get_running_loop())
        async with AsyncExitStack() as stack:
            for held in (sock, admin):
                if held is not None:
                    stack.callback(held.close)
            await self._prepare(stack, sock, admin)
            keepers = [asyncio.create_task(self._keep(worker)) for worker in self._workers]
            forwarding = asyncio.create_task(self._forward(signals, sock, admin))
            await asyncio.wait(keepers)
            forwarding.cancel()
        if signals.number and signals.at_once.is_set():
            return 128 + signals.number
        return self._code

    async def _prepare(self, stack: AsyncExitStack, sock: socket.socket, admin: socket.socket | None) -> None:
        settings = self._launch.settings
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kimi-")))
        state = settings.state.url
        if state in ("memory://", "embedded://"):
            state = self._embedded(stack, directory)
        emulator = ""
        if not settings.targets and self._launch.emulator_if_empty:
            emulator = (await start_emulator(stack)).base_url
        alive, held = os.pipe()
        stack.callback(os.close, alive)
        stack.callback(os.close, held)
        self._descriptors = tuple(
            fd for fd in (sock.fileno(), admin.fileno() if admin is not None else None, alive) if fd is not None
        )
        self._share = Share(
            count=len(self._workers),
            socket=sock.fileno(),
            admin=admin.fileno() if admin is not None else None,
            alive=alive,
            state=state,
            emulator=emulator,
            directory=str(directory),
        )

    def _embedded(self, stack: AsyncExitStack, directory: Path) -> str:
        try:
            return stack.enter_context(Embedded.start(directory, bounds=thought_bounds(self._launch.settings)))
        except EmbeddedError as err:
            raise StartError(f"state.url: {err}") from err

    async def _keep(self, worker: _Worker) -> None:
        """Keeps one place filled until the gateway stops."""
        loop = asyncio.get_running_loop()
        while True:
            worker.started_s = loop.time()
            code = await self._run(worker)
            if self._stopping:
                return
            if code == CANNOT_START and worker.failures == 0:
                self._code = CANNOT_START
                self._stop_all(signal.SIGTERM)
                return
            lived_s = loop.time() - worker.started_s
            worker.failures = 1 if lived_s > _STEADY_S else worker.failures + 1
            pause_s = min(_FIRST_PAUSE_S * 2 ** (worker.failures - 1), _LONGEST_PAUSE_S)
            self._log.event(
                f"worker {worker.index} ended ({_ending(code)}); it is started again in {pause_s:g} s",
                level="error",
            )
            await asyncio.sleep(pause_s)
            if self._is_stopping():
                return

    def _is_stopping(self) -> bool:
        return self._stopping

    async def _run(self, worker: _Worker) -> int:
        share = msgspec.structs.replace(self._share, index=worker.index, again=worker.failures > 0)
        worker.process = await asyncio.create_subprocess_exec(
            *self._command,
            "--as-worker",
            share.text(),
            pass_fds=self._descriptors,
            start_new_session=True,  # Ctrl-C at a terminal reaches the supervisor alone, which passes it on once
        )
        if self._stopping:  # the signal came while it was being started
            worker.process.send_signal(signal.SIGTERM)
        return await worker.process.wait()

    async def _forward(self, signals: Signals, sock: socket.socket, admin: socket.socket | None) -> None:
        """Passes signals on; with the first that stops, the shared sockets are the workers' alone."""
        hangups = asyncio.create_task(self._forward_hangups(signals))
        try:
            await signals.stop.wait()
            for held in (sock, admin):
                if held is not None:
                    held.close()
            self._stop_all(signals.number)
            await signals.at_once.wait()
            self._stop_all(signals.number)
        finally:
            hangups.cancel()

    async def _forward_hangups(self, signals: Signals) -> None:
        while True:
            await signals.hangup.wait()
            signals.hangup.clear()
            self._send(signal.SIGHUP)

    def _stop_all(self, number: int) -> None:
        self._stopping = True
        self._send(number)

    def _send(self, number: int) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.process.returncode is None:
                worker.process.send_signal(number)


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
