"""The one door to `openai`, and through it to the network. Its exceptions end here.

`openai` reads variables of its own (OPENAI_API_KEY, OPENAI_ADMIN_KEY, OPENAI_ORG_ID, OPENAI_CUSTOM_HEADERS …):
each is overridden, so that nothing meant for another service is ever sent to this one.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import Any, Final

import httpx2
import openai
from typing_extensions import override

from kimi_sdk.errors import ConnectionFailed, NoAnswerInTime
from kimi_sdk.refusal import without_key
from kimi_sdk.steps import Head, Post, Read
from kimi_sdk.wire import Endpoint

_CONNECT_TIMEOUT_S: Final = 10.0
_PATH: Final = "/chat/completions"
_END_S: Final = 0.05  # for the end of a body whose last word was said
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_FAILURES: Final = (openai.APIConnectionError, httpx2.HTTPError)


class _Key(httpx2.Auth):
    """Puts the key into a request as it leaves, so that it stands in no frame's variables on the way: tools that
    show tracebacks show those."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @override
    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._endpoint.api_key}"
        yield request


class _Client(openai.DefaultHttpxClient):
    """Closes its connections when it is forgotten."""

    def __del__(self) -> None:
        with suppress(RuntimeError, AttributeError):
            self.close()


class _AsyncClient(openai.DefaultAsyncHttpxClient):
    """Closes its connections when it is forgotten, where its event loop still runs."""

    def __del__(self) -> None:
        with suppress(RuntimeError, AttributeError):
            if not self.is_closed:
                _closings.add(task := asyncio.get_running_loop().create_task(self.aclose()))
                task.add_done_callback(_closings.discard)


_closings: Final[set[asyncio.Task[None]]] = set()


@cache
def _trusted() -> ssl.SSLContext:
    """What certificates are trusted. Made once: it takes as long as a hundred requests."""
    return httpx2.create_ssl_context()


httpx2.HTTPTransport(
    verify=_trusted()
).close()  # loads what it else loads at the first call, where Ctrl-C may come


class Connections:
    """Connections to one endpoint, kept alive until `close`. `timeout_s` is the longest silence, in seconds, not
    the longest answer."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        http_client = _Client(**_of_the_client(endpoint))
        self.client = openai.OpenAI(http_client=http_client, **_arguments(endpoint, timeout_s))

    def line(self) -> "Line":
        """A line for one call."""
        return Line(self)

    def close(self) -> None:
        """Closes the connections."""
        self.client.close()


class AsyncConnections:
    """The same for event loops: connections belong to the loop that opened them, so each loop has its own."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self._clients: dict[asyncio.AbstractEventLoop, openai.AsyncOpenAI] = {}
        self._lock = Lock()

    @property
    def client(self) -> openai.AsyncOpenAI:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._clients.get(loop)
            if found is None:
                for ended in [each for each in self._clients if each.is_closed()]:
                    del self._clients[ended]
                http_client = _AsyncClient(**_of_the_client(self.endpoint))
                found = openai.AsyncOpenAI(http_client=http_client, **_arguments(self.endpoint, self.timeout_s))
                self._clients[loop] = found
            return found

    def line(self) -> "AsyncLine":
        """A line for one call."""
        return AsyncLine(self)

    async def close(self) -> None:
        """Closes the connections of the running loop, and has those of others closed there."""
        with self._lock:
            clients, self._clients = self._clients, {}
        here = asyncio.get_running_loop()
        for loop, client in clients.items():
            if loop is here:
                await client.close()
            elif loop.is_running():
                with suppress(RuntimeError):  # it has ended just now, and its connections with it
                    loop.call_soon_threadsafe(_close_soon, loop, client)


def _close_soon(loop: asyncio.AbstractEventLoop, client: openai.AsyncOpenAI) -> None:
    _closings.add(task := loop.create_task(client.close()))
    task.add_done_callback(_closings.discard)


class Line:
    """One request and its answer at a time."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._response: httpx2.Response | None = None
        self._pieces: Iterator[bytes] = iter(())

    def post(self, step: Post) -> Head:
        """Sends; the head of the answer, whatever its status. Raises `ConnectionFailed`, `NoAnswerInTime`."""
        try:
            response = self._connections.client.post(
                _PATH,
                content=step.body,
                cast_to=httpx2.Response,
                options=_options(step),
                stream=True,
            )
        except openai.APIStatusError as err:
            response = _response_of(err)
        except _FAILURES as err:
            raise _failure(err, self._connections.endpoint, self._connections.timeout_s) from err
        self._response = response
        self._pieces = iter(()) if response.is_stream_consumed else response.iter_bytes()
        return Head(response.status_code, _lowered(response.headers))

    def read(self, step: Read) -> bytes:
        """The next bytes of the answer, or the rest of it. Raises `ConnectionFailed`, `NoAnswerInTime`."""
        response = self._response
        if response is None:
            return b""
        try:
            if step.whole:
                return response.content if response.is_stream_consumed else response.read()
            return next(self._pieces, b"")
        except _FAILURES as err:
            raise _failure(err, self._connections.endpoint, self._connections.timeout_s) from err

    def hang_up(self) -> None:
        """Leaves the answer; what of it is still under way is cancelled."""
        response, self._response = self._response, None
        if response is not None:
            response.close()


class AsyncLine:
    """One request and its answer at a time."""

    def __init__(self, connections: AsyncConnections) -> None:
        self._connections = connections
        self._response: httpx2.Response | None = None
        self._pieces: AsyncIterator[bytes] = _no_pieces()

    async def post(self, step: Post) -> Head:
        """Sends; the head of the answer, whatever its status. Raises `ConnectionFailed`, `NoAnswerInTime`."""
        try:
            response = await self._connections.client.post(
                _PATH,
                content=step.body,
                cast_to=httpx2.Response,
                options=_options(step),
                stream=True,
            )
        except openai.APIStatusError as err:
            response = _response_of(err)
        except _FAILURES as err:
            raise _failure(err, self._connections.endpoint, self._connections.timeout_s) from err
        self._response = response
        self._pieces = _no_pieces() if response.is_stream_consumed else response.aiter_bytes()
        return Head(response.status_code, _lowered(response.headers))

    async def read(self, step: Read) -> bytes:
        """The next bytes of the answer, or the rest of it. Raises `ConnectionFailed`, `NoAnswerInTime`."""
        response = self._response
        if response is None:
            return b""
        try:
            if step.whole:
                return response.content if response.is_stream_consumed else await response.aread()
            return await anext(self._pieces, b"")
        except _FAILURES as err:
            raise _failure(err, self._connections.endpoint, self._connections.timeout_s) from err

    async def hang_up(self, *, is_over: bool = False) -> None:
        """Leaves the answer; what of it is still under way is cancelled. One that is over has a moment to end its
        body, after which its connection serves the next request."""
        response, self._response = self._response, None
        if response is None:
            return
        if is_over:
            with suppress(TimeoutError, httpx2.HTTPError):
                await asyncio.wait_for(anext(self._pieces, b""), _END_S)
        await response.aclose()


async def _no_pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _of_the_client(endpoint: Endpoint) -> dict[str, Any]:
    """For the HTTP clients. A redirect is an answer like any other: followed, it would take the conversation and
    the idempotency key to a host that nobody named."""
    return {
        "verify": _trusted(),
        "follow_redirects": False,
        "auth": _Key(endpoint) if endpoint.api_key else None,
    }


def _arguments(endpoint: Endpoint, timeout_s: float) -> dict[str, Any]:
    """For `openai`'s clients."""
    return {
        "api_key": "none",  # it asks for one; what is sent is `_Key`'s
        "admin_api_key": "",
        "organization": "",
        "project": "",
        "webhook_secret": "",
        "base_url": endpoint.base_url,
        "timeout": openai.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
        "max_retries": 0,  # repeating is `kimi_sdk.retry`'s: a second owner would multiply attempts and bills
    }


def _options(step: Post) -> Any:
    return {
        "headers": {
            "Content-Type": "application/json",
            "Authorization": openai.Omit(),
            "OpenAI-Organization": openai.Omit(),
            "OpenAI-Project": openai.Omit(),
            **step.headers,
        }
    }


def _response_of(err: openai.APIStatusError) -> httpx2.Response:
    response: Any = err.response
    assert isinstance(response, httpx2.Response)
    return response


def _failure(
    err: openai.APIConnectionError | httpx2.HTTPError, endpoint: Endpoint, timeout_s: float
) -> ConnectionFailed:
    cause = err.__cause__ if isinstance(err, openai.APIConnectionError) else err
    was_sent = not isinstance(cause, _NEVER_SENT)
    if isinstance(cause, httpx2.TimeoutException) and was_sent:
        return NoAnswerInTime(
            f"{endpoint.base_url} was silent for {timeout_s:g} s. It may still be working on the "
            "answer, and may bill it; give Chat a longer timeout_s",
            was_sent=True,
        )
    said = without_key(str(cause) or type(cause).__name__, endpoint)
    if was_sent:
        return ConnectionFailed(
            f"the connection to {endpoint.base_url} broke before the answer was whole: {said}. It may be billed",
            was_sent=True,
        )
    return ConnectionFailed(
        f"no answer from {endpoint.base_url} (from {endpoint.base_url_origin}): {said}. "
        "Is the gateway running there? Give the address as base_url or in KIMI_BASE_URL",
        was_sent=False,
    )


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
