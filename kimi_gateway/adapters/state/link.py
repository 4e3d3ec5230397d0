"""The one door to `redis`: a few connections to one server, scripts, and quick failure while it is down.

Connections are handed out here and not by the library's pool, so that one thing is plain to see: a connection goes
back in use only when the whole reply to its command has been read. Whatever else happens, a cancellation included,
it is closed first; nobody reads the reply that was meant for another.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any, Final, TypeVar

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import (
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from kimi_gateway.core.state_url import StateUrl
from kimi_gateway.ports import StateUnavailable

Argument = bytes | int | str
T = TypeVar("T")

_CROWD_WAIT_S: Final = 5.0
_OLDEST_MAJOR: Final = 6  # the oldest whose scripts may read the clock and then write, and that can unlink


class StateUnsuited(Exception):
    """The server answers and cannot hold the state; the message says why and what would."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script by its digest. `name` is for messages."""

    name: str
    source: bytes
    sha: bytes = field(init=False)

    def __post_init__(self) -> None:
        # The protocol names scripts by SHA-1; nothing is secured by it.
        object.__setattr__(self, "sha", sha1(self.source, usedforsecurity=False).hexdigest().encode())


class Link:
    """Runs scripts on one Valkey or Redis. Belongs to one event loop; connects when first asked.

    After a failure further calls fail at once for `rest_s`, then one call tries whether the server is back.
    `mono` is a clock in seconds.
    """

    def __init__(
        self,
        url: StateUrl,
        *,
        mono: Callable[[], float],
        max_connections: int = 16,
        connect_timeout_s: float = 0.5,
        operation_timeout_s: float = 0.5,
        rest_s: float = 1.0,
    ) -> None:
        self._url = url
        self._mono = mono
        self._connect_timeout_s = connect_timeout_s
        self._operation_timeout_s = operation_timeout_s
        self._rest_s = rest_s
        self._slots = asyncio.Semaphore(max_connections)
        self._idle: list[AbstractConnection] = []
        self._closed = False
        self._problem = ""
        self._again_s = 0.0
        self._probing = False

    @property
    def shown(self) -> str:
        """The server's address without secrets."""
        return self._url.shown

    @property
    def problem(self) -> str:
        """Why the server was last found to be down, "" while it is not known to be."""
        return self._problem

    async def run(self, script: Script, keys: Sequence[bytes], args: Sequence[Argument]) -> Any:
        """What a script answers, in one round trip; in two when the server has not seen it yet.

        Raises `StateUnavailable`.
        """
        return await self._guarded(lambda: self._evaluate(script, (len(keys), *keys, *args)))

    async def check(self) -> tuple[str, ...]:
        """What an operator should know of the server, each a sentence; () when all is well.

        Raises `StateUnavailable`, and `StateUnsuited` for a cluster and for a server that is too old.
        """
        facts = _facts(await self._guarded(lambda: self._execute("INFO")))
        if facts.get("cluster_enabled") == "1":
            raise StateUnsuited(
                f"{self.shown} is part of a cluster, which is not supported; name a single server, or run one: "
                "embedded:// starts a private one"
            )
        version = facts.get("redis_version", "")
        major = version.partition(".")[0]
        if major.isdecimal() and int(major) < _OLDEST_MAJOR:
            raise StateUnsuited(
                f"{self.shown} is Redis {version}; Valkey, or Redis {_OLDEST_MAJOR} or later, is needed"
            )
        policy = facts.get("maxmemory_policy", "noeviction")
        if policy == "noeviction" or facts.get("maxmemory", "0") == "0":
            return ()
        return (
            f"{self.shown} evicts keys as it sees fit (maxmemory-policy {policy}), limits and thoughts too; "
            "set it to noeviction",
        )

    async def close(self) -> None:
        """Closes the connections; those in use once their call ends."""
        self._closed = True
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    async def _guarded(self, call: Callable[[], Awaitable[T]]) -> T:
        probe = self._admit()
        try:
            reply = await call()
        except (RedisError, OSError) as err:  # OSError: TimeoutError too
            # Without the cause: its words may quote what was sent.
            raise StateUnavailable(self._failed(err)) from None
        finally:
            if probe:
                self._probing = False
        self._problem = ""
        return reply

    def _admit(self) -> bool:
        """Whether this call is the one that tries a server that was down. Raises `StateUnavailable`."""
        if self._closed:
            raise StateUnavailable(f"the connection to the state at {self.shown} is closed")
        if not self._problem:
            return False
        if self._probing or self._mono() < self._again_s:
            raise StateUnavailable(self._problem)
        self._probing = True
        return True

    def _failed(self, err: Exception) -> str:
        """The failure in words. Only what says that the server is gone keeps others from asking it."""
        said = self._without_secret(str(err))[:200]
        if isinstance(err, OutOfMemoryError):
            return f"the state at {self.shown} is full; raise its maxmemory well above thinking.max_bytes"
        if isinstance(err, ResponseError):
            if isinstance(err, MovedError):
                said = "it is part of a cluster, which is not supported"
            return f"the state at {self.shown} refuses: {said}"
        if isinstance(err, TimeoutError):
            said = f"no answer within {self._operation_timeout_s:g} s"
        self._again_s = self._mono() + self._rest_s
        self._problem = f"the state at {self.shown} is out of reach: {said}"
        return self._problem

    def _without_secret(self, text: str) -> str:
        return text.replace(self._url.secret, "***") if self._url.secret else text

    async def _evaluate(self, script: Script, args: tuple[Argument, ...]) -> Any:
        try:
            return await self._execute("EVALSHA", script.sha, *args)
        except NoScriptError:  # nothing was run; this runs it and keeps it
            return await self._execute("EVAL", script.source, *args)

    async def _execute(self, *command: Argument) -> Any:
        await self._take_slot()
        try:
            connection = self._idle.pop() if self._idle else self._new_connection()
            whole = False
            try:
                await self._make_ready(connection)
                async with asyncio.timeout(self._operation_timeout_s):
                    await connection.send_command(*command)
                    reply = await connection.read_response()
                whole = True
                return reply
            except ResponseError as err:
                # A server that became a replica is left: its name may lead to the new primary.
                whole = not isinstance(err, ReadOnlyError)
                raise
            finally:
                await self._take_back(connection, whole)
        finally:
            self._slots.release()

    async def _take_slot(self) -> None:
        """Waits for a connection. A crowd here is no sign that the server is down, and marks nothing as such."""
        try:
            async with asyncio.timeout(_CROWD_WAIT_S):
                await self._slots.acquire()
        except TimeoutError:
            raise StateUnavailable(f"all connections to the state at {self.shown} are in use") from None

    async def _make_ready(self, connection: AbstractConnection) -> None:
        """Connects where needed: it is new, the server has hung up since, or has sent what nobody asked for."""
        if connection.is_connected and await connection.can_read():
            await connection.disconnect(nowait=True)
        if not connection.is_connected:
            async with asyncio.timeout(self._connect_timeout_s):
                await connection.connect()  # type: ignore[no-untyped-call]

    async def _take_back(self, connection: AbstractConnection, whole: bool) -> None:
        if self._closed or not whole:
            await connection.disconnect(nowait=True)
        if not self._closed:
            self._idle.append(connection)

    def _new_connection(self) -> AbstractConnection:
        options: dict[str, Any] = dict(parse_url(self._url.text))
        connection_class: type[AbstractConnection] = options.pop("connection_class", Connection)
        # All time limits are set here, around whole steps. RESP2: nothing comes that was not asked for.
        return connection_class(
            **options,
            socket_timeout=None,
            socket_connect_timeout=self._connect_timeout_s,
            decode_responses=False,
            protocol=2,
            driver_info=None,
        )


def _facts(info: bytes) -> dict[str, str]:
    """What INFO says, by name."""
    lines = info.decode("utf-8", "replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}
