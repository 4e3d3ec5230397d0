"""`kimi-gateway` and `kimi-pricing` for shell scripts, without the second that each start takes.

A folder for PATH holds a small program of each name. It hands its words, directory, environment and standard files
to a server, which forks the real command (as `support.zygote` does) and gives its exit code back. Run as a module,
this file is that server.
"""

import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from support.processes import START_TIMEOUT_S, clean_environment
from support.zygote import fork

_ENTRIES: Final = {"kimi-gateway": "kimi_gateway.__main__", "kimi-pricing": "pricing.__main__"}
_CLIENT: Final = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    socket.send_fds(line, [b"."], [0, 1, 2])
    order = {{"words": sys.argv, "directory": os.getcwd(), "env": dict(os.environ)}}
    line.sendall(json.dumps(order).encode())
    line.shutdown(socket.SHUT_WR)
    sys.exit(int(line.recv(16)))
"""


@contextmanager
def commands() -> Iterator[Path]:
    """A folder with both commands; they work for as long as the context lives."""
    with tempfile.TemporaryDirectory(prefix="kimi-test-") as made:
        folder = Path(made)
        address, said = folder / "commands.sock", folder / "said.txt"
        for name in _ENTRIES:
            client = folder / name
            client.write_text(_CLIENT.format(python=sys.executable, address=str(address)), "utf-8")
            client.chmod(0o755)
        env = clean_environment()
        server = fork("support.commands", [str(address)], directory=folder, env=env, stdout=said, stderr=said)
        try:
            end_s = time.monotonic() + START_TIMEOUT_S
            while not address.exists():
                assert server.poll() is None, said.read_text()
                assert time.monotonic() < end_s
                time.sleep(0.005)
            yield folder
        finally:
            server.kill()
            server.wait(START_TIMEOUT_S)


def _next_command(address: str) -> list[str]:
    """Forks for each order until it is killed; comes back in a fork that is to become the command: its words."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        while True:
            line, _ = listener.accept()
            if os.fork() == 0:
                break
            line.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(line, 1, 3)
    with line.makefile("rb") as sent:
        order: dict[str, Any] = json.load(sent)
    command = os.fork()
    if command:
        code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        line.sendall(str(code if code >= 0 else 128 - code).encode())  # as a shell says it
        os._exit(0)
    line.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["env"])
    return list(order["words"])


def main() -> None:
    """Serves; in a fork, runs the command as its script does."""
    words = _next_command(sys.argv[1])
    sys.argv = words
    sys.modules["__main__"].__package__ = None  # a script is in none
    importlib.import_module(_ENTRIES[Path(words[0]).name]).main()


if __name__ == "__main__":
    main()
