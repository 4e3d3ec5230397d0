"""`Chat`: a conversation with Kimi that keeps its thinking and knows what it costs."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, get_args
from urllib.parse import urlsplit

from typing_extensions import override

from backends.dialect import Dialect
from backends.dialects import moonshot
from backends.json import JsonObject
from kimi_sdk.errors import InvalidInput
from kimi_sdk.refusal import refusal
from kimi_sdk.reply import EFFORT_UNSET, Reading, Reply, read_body, read_reply
from kimi_sdk.thread import Thread
from kimi_sdk.wire import Endpoint
from pricing.cards import load_cards
from pricing.rates import CardBook
from pricing.usage import TokenUsage

if TYPE_CHECKING:
    from kimi_sdk._openai import Connection

Effort = Literal["low", "high", "max"]
"""How much the model thinks. Unset means its default, max."""

DEFAULT_MODEL: Final = "kimi-k3.1-pro"
DEFAULT_BASE_URL: Final = "http://127.0.0.1:8000/v1"

_PLAIN: Final = Dialect(name="gateway")
"""The gateway leaves unknown counts out and says itself what an answer costs, so nothing is added to its facts."""


class Chat:
    """A conversation with one model at one endpoint: the gateway, or anything else that speaks its dialect.

        chat = Chat(system="You are brief.", effort="high")
        reply = chat.ask("How far is the Moon?")
        print(reply.thinking, reply.text, reply.cost)
        chat.ask("And the Sun?")          # sent with the first turn and its thinking
        print(chat.usage, chat.cost)

    `base_url` and `api_key` default to KIMI_BASE_URL and KIMI_API_KEY; without a key none is sent. `timeout_s` is
    the longest silence in seconds. `max_completion_tokens` limits thinking and answer together.
    A chat is one conversation: calls from several threads wait for one another. It holds connections until
    `close`; `with Chat(...) as chat:` closes it.
    """

    def __init__(
        self,
        *,
        system: str | None = None,
        model: str = DEFAULT_MODEL,
        effort: Effort | None = None,
        max_completion_tokens: int | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        """Raises `InvalidInput`. Sends nothing."""
        if effort is not None and effort not in get_args(Effort):
            raise InvalidInput(f"effort must be one of {', '.join(get_args(Effort))}, not {effort!r}")
        if not model:
            raise InvalidInput("model must not be empty")
        if not timeout_s > 0:
            raise InvalidInput(f"timeout_s must be more than 0 seconds, not {timeout_s}")
        self._model = model
        self._effort = effort
        self._limit = _checked_limit(max_completion_tokens)
        self._endpoint = _endpoint(base_url, api_key, os.environ)  # noqa: TID251  # the SDK's one reading of it
        self._timeout_s = timeout_s
        self._thread = Thread(system)
        self._connection: Connection | None = None
        self._lock = Lock()

    def ask(self, text: str, *, max_completion_tokens: int | None = None) -> Reply:
        """The model's reply to the next turn of the conversation.

        Sends all turns so far, thinking included. Where it raises, the conversation is as before the call:
        `InvalidInput`, `ConnectionFailed`, `BadReply` or a `RequestRefused`. An empty reply (see
        `Reply.thinking_exhausted`) is counted in `usage` and `cost`, but its turn is not kept.
        """
        limit = _checked_limit(max_completion_tokens) or self._limit
        with self._lock:
            reply = self._send(self._request(self._thread.with_question(text), limit))
            self._thread.accept(text, reply)
            return reply

    @property
    def model(self) -> str:
        """The model that is asked."""
        return self._model

    @property
    def effort(self) -> Effort | None:
        """How much it is asked to think; None leaves that to the model."""
        return self._effort

    @property
    def messages(self) -> list[JsonObject]:
        """A copy of the turns so far in Moonshot's form, thinking included."""
        return self._thread.messages

    @property
    def usage(self) -> TokenUsage:
        """Tokens of all answers so far, by meter."""
        return self._thread.usage

    @property
    def cost(self) -> Decimal:
        """Exact dollars for the answers so far whose cost is known; `unpriced` counts the others."""
        return self._thread.cost

    @property
    def unpriced(self) -> int:
        """How many answers so far have no known cost. Unknown is not free."""
        return self._thread.unpriced

    def close(self) -> None:
        """Closes the connections. The conversation stays, and a later `ask` opens new ones."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __enter__(self) -> "Chat":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @override
    def __repr__(self) -> str:
        turns = len(self._thread.messages)
        return (
            f"Chat(model={self._model!r}, base_url={self._endpoint.base_url!r}, turns={turns}, cost={self.cost})"
        )

    def _request(self, messages: list[JsonObject], limit: int | None) -> JsonObject:
        request: JsonObject = {"model": self._model, "messages": [*messages]}
        if self._effort is not None:
            request["reasoning_effort"] = self._effort
        if limit is not None:
            request["max_completion_tokens"] = limit
        return request

    def _send(self, request: JsonObject) -> Reply:
        if self._connection is None:
            self._connection = _connect(self._endpoint, self._timeout_s)
        dialect = dialect_at(self._endpoint.host)
        answer = self._connection.complete(request)
        now = datetime.now(UTC)
        if not 200 <= answer.status < 300:
            raise refusal(answer, self._endpoint, now.timestamp())
        body = read_body(answer)
        if body.get("error"):  # the gateway had begun to keep the connection alive, so the status was out
            raise refusal(answer, self._endpoint, now.timestamp())
        cards = _shipped_cards() if dialect.seller else CardBook(())
        return read_reply(answer, body, Reading(dialect, cards, now.date(), self._effort or EFFORT_UNSET))


def dialect_at(host: str) -> Dialect:
    """The facts of who answers at a host: Moonshot at its own, else a server that speaks its dialect."""
    known = {urlsplit(dialect.base_url).hostname: dialect for dialect in (moonshot.DIALECT,)}
    return known.get(host, _PLAIN)


def _connect(endpoint: Endpoint, timeout_s: float) -> "Connection":
    # Here, because loading openai takes most of a second and `import kimi_sdk` shall not.
    from kimi_sdk._openai import Connection

    return Connection(endpoint, timeout_s=timeout_s)


@cache
def _shipped_cards() -> CardBook:
    return load_cards()


def _endpoint(base_url: str | None, api_key: str | None, environ: Mapping[str, str]) -> Endpoint:
    """Argument, variable, default. Blank values count as unset."""
    url, url_origin = _first(
        (base_url, "the argument base_url"),
        (environ.get("KIMI_BASE_URL"), "the variable KIMI_BASE_URL"),
        (DEFAULT_BASE_URL, "the default"),
    )
    key, key_origin = _first(
        (api_key, "the argument api_key"),
        (environ.get("KIMI_API_KEY"), "the variable KIMI_API_KEY"),
        ("", "nowhere"),
    )
    return Endpoint(url.rstrip("/"), key, url_origin, key_origin)


def _first(*sources: tuple[str | None, str]) -> tuple[str, str]:
    for value, origin in sources:
        if value is not None and value.strip():
            return value.strip(), origin
    return sources[-1][0] or "", sources[-1][1]


def _checked_limit(tokens: object) -> int | None:
    if tokens is None:
        return None
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise InvalidInput(f"max_completion_tokens must be a whole number of at least 1, not {tokens!r}")
    return tokens
