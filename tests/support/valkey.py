"""Real Valkey servers for tests, and a shared store that is called like the one in memory."""

import asyncio
import itertools
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from kimi_gateway.adapters.state.embedded import server_binary
from kimi_gateway.adapters.state.link import Link
from kimi_gateway.adapters.state.seal import Seal, seal_of
from kimi_gateway.adapters.state.thoughts import ValkeyConversations
from kimi_gateway.core.digest import TurnKeys
from kimi_gateway.core.secret import Secret
from kimi_gateway.core.state_url import state_url
from kimi_gateway.core.thought_record import Owner, Thought
from kimi_gateway.core.thoughts import Bounds, Found
from kimi_gateway.ports import Remembered

SECRET = Secret("not a secret, a test's")
_T = TypeVar("_T")
_numbers = itertools.count()


class Server:
    """A Valkey on a unix socket, and with a password on a port as well. It may be stopped and started again."""

    def __init__(self, directory: Path, *, password: str = "", options: Sequence[str] = ()) -> None:
        self.directory = directory
        self.password = password
        self.port = _free_port() if password else 0
        self._options = [*options, *(["--requirepass", password] if password else [])]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def path(self) -> str:
        return str(self.directory / "v.sock")

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(str(server_binary()), "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--unixsocket", self.path, "--save", "", "--dir", str(self.directory)),
                *("--logfile", str(self.directory / "log"), *self._options),
            ]
        )
        until_s = time.monotonic() + 10
        while not self._answers():
            assert self._process.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < until_s
            time.sleep(0.005)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It takes connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        assert self._answers()

    def client(self) -> redis.Redis:
        return client_of(self.path, self.password)

    def _answers(self) -> bool:
        client = self.client()
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
        finally:
            client.close()


def client_of(path: str, password: str = "") -> redis.Redis:
    """A client beside the gateway's, which asks once and no more."""
    once = Retry(NoBackoff(), 0)
    return redis.Redis(unix_socket_path=path, password=password or None, protocol=2, retry=once)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@contextmanager
def running(directory: Path, **settings: Any) -> Iterator[Server]:
    server = Server(directory, **settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def link_to(url: str, **settings: Any) -> Link:
    return Link(state_url(url), mono=settings.pop("mono", time.monotonic), **settings)


def fresh_prefix() -> str:
    """A prefix of its own, so that tests share a server and nothing on it."""
    return f"{{t{next(_numbers)}}}:"


class Shared:
    """A shared store called like `core.thoughts.ThoughtStore`; sizes are read past it."""

    def __init__(
        self,
        server: Server,
        bounds: Bounds,
        *,
        prefix: str | None = None,
        seal: Seal | None = None,
        **settings: Any,
    ) -> None:
        self.prefix = prefix or fresh_prefix()
        self.seal = seal or seal_of(SECRET)
        self.raw: Any = server.client()  # its types are those of a client that decodes
        self._runner = asyncio.Runner()
        self._now_s = 0.0
        self._tick = itertools.count()
        self._link = self.run(self._linked(server))
        self.kept = ValkeyConversations(
            self._link, bounds, self.seal, lambda: self._now_s, prefix=self.prefix, **settings
        )
        self.counts = self.kept._counts

    async def _linked(self, server: Server) -> Link:
        return link_to(server.url, operation_timeout_s=5.0)

    def run(self, work: Awaitable[_T]) -> _T:
        async def waited() -> _T:
            return await work

        return self._runner.run(waited())

    def at(self, now_s: float) -> None:
        """Sets the clock; no two calls come at the same microsecond."""
        self._now_s = 1e6 + now_s + next(self._tick) * 1e-6

    def recall(
        self, owner: Owner, wanted: Sequence[TurnKeys], places: Sequence[bytes], now_s: float
    ) -> Remembered:
        self.at(now_s)
        return self.run(self.kept.recall(owner, wanted, places))

    def note(self, owner: Owner, places: Sequence[bytes], note: bytes, now_s: float) -> None:
        self.at(now_s)
        self.run(self.kept.keep(owner, [], places=places, note=note))

    def find(self, owner: Owner, wanted: Sequence[TurnKeys], now_s: float) -> list[Found | None]:
        return list(self.recall(owner, wanted, [], now_s).found)

    def keep(
        self, owner: Owner, keys: TurnKeys, thought: Thought, now_s: float, *, conversation: bytes = b""
    ) -> str:
        before = {name: getattr(self.counts, name) for name in ("kept", "known", "refused")}
        self.at(now_s)
        self.run(self.kept.keep(owner, [(keys, thought)], conversation=conversation))
        (outcome,) = [name for name, count in before.items() if getattr(self.counts, name) == count + 1]
        return outcome

    def expire(self, now_s: float) -> None:
        self.at(now_s)
        self.run(self.kept.statistics())

    def forget_key(self, key: str) -> int:
        return self.run(self.kept.forget_key(key))

    def statistics(self) -> dict[str, int]:
        return self.run(self.kept.statistics())

    def name(self, kind: str, rest: bytes = b"") -> bytes:
        return self.prefix.encode() + kind.encode() + rest

    def key_bytes(self, key: str) -> int:
        return int(self.raw.zscore(self.name("keys"), self.kept._who(Owner(key)).key) or 0)

    def owner_bytes(self, owner: Owner) -> int:
        who = self.kept._who(owner)
        return int(self.raw.zscore(self.name("u:", who.key), who.user) or 0)

    @property
    def size_bytes(self) -> int:
        return int(self.raw.hget(self.name("meta"), "bytes") or 0)

    @property
    def thoughts(self) -> int:
        return int(self.raw.hget(self.name("meta"), "thoughts") or 0)

    def names(self) -> list[bytes]:
        """Every key of this store on the server."""
        return [name for name in self.raw.scan_iter(count=10_000) if name.startswith(self.prefix.encode())]

    def close(self) -> None:
        self.run(self.kept.close())
        self.run(self._link.close())
        self._runner.close()
        self.raw.close()


def in_parallel(*work: Callable[[], Awaitable[_T]]) -> Awaitable[list[_T]]:
    async def all_of_it() -> list[_T]:
        return list(await asyncio.gather(*[each() for each in work]))

    return all_of_it()
