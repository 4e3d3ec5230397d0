"""The one door to `openai`, and through it to the network. Its exceptions end here.

`openai` reads variables of its own (OPENAI_API_KEY, OPENAI_ADMIN_KEY, OPENAI_ORG_ID, OPENAI_CUSTOM_HEADERS …):
each is overridden, so that nothing meant for another service is ever sent to this one.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final

import httpx2
import openai

from kimi_sdk.errors import ConnectionFailed, NoAnswerInTime
from kimi_sdk.steps import Head, Post, Read
from kimi_sdk.wire import Endpoint

_CONNECT_TIMEOUT_S: Final = 10.0
_PATH: Final = "/chat/completions"
_END_S: Final = 0.05  # for the end of a body whose last word was said
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_FAILURES: Final = (openai.APIConnectionError, httpx2.HTTPError)


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


class Connections:
    """Connections to one endpoint, kept alive until `close`. `timeout_s` is the longest silence, in seconds, not
    the longest answer."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self.client = openai.OpenAI(http_client=_Client(verify=_trusted()), **_arguments(endpoint, timeout_s))

    def line(self) -> "Line":
        """A line for one call."""
        return Line(self)

    def close(self) -> None:
        """Closes the connections."""
        self.client.close()


class AsyncConnections:
    """The same for event loops: connections belong to the loop that they were opened in, so another loop gets
    others."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self._client: openai.AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def client(self) -> openai.AsyncOpenAI:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            http_client = _AsyncClient(verify=_trusted())
            arguments = _arguments(self.endpoint, self.timeout_s)
            self._client, self._loop = openai.AsyncOpenAI(http_client=http_client, **arguments), loop
        return self._client

    def line(self) -> "AsyncLine":
        """A line for one call."""
        return AsyncLine(self)

    async def close(self) -> None:
        """Closes the connections of the running loop."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()


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
                options=_options(self._connections, step),
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
                options=_options(self._connections, step),
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


def _arguments(endpoint: Endpoint, timeout_s: float) -> dict[str, Any]:
    """For `openai`'s clients."""
    return {
        "api_key": endpoint.api_key or "none",
        "admin_api_key": "",
        "organization": "",
        "project": "",
        "webhook_secret": "",
        "base_url": endpoint.base_url,
        "timeout": openai.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
        "max_retries": 0,  # repeating is `kimi_sdk.retry`'s: a second owner would multiply attempts and bills
    }


def _options(connections: Connections | AsyncConnections, step: Post) -> Any:
    endpoint = connections.endpoint
    return {
        "headers": {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {endpoint.api_key}" if endpoint.api_key else openai.Omit(),
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
    return ConnectionFailed(
        f"no answer from {endpoint.base_url} (from {endpoint.base_url_origin}): "
        f"{cause or type(cause).__name__}. Is the gateway running there? "
        "Give the address as base_url or in KIMI_BASE_URL",
        was_sent=was_sent,
    )


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
