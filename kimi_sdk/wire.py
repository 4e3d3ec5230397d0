"""What passes between the client and its one door to the network: where to send, and what came back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from kimi_sdk.errors import InvalidInput

DEFAULT_BASE_URL: Final = "http://127.0.0.1:8000/v1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go and with which key; `*_origin` say in words where each of the two came from.

    An empty key means that none is sent. Raises `InvalidInput` for a URL that is none.
    """

    base_url: str
    api_key: str = field(repr=False)
    base_url_origin: str
    api_key_origin: str

    def __post_init__(self) -> None:
        # The values themselves are not repeated: a key may have been put in the wrong place.
        try:
            parts = urlsplit(self.base_url)
            _ = parts.port  # out of range raises
        except ValueError as err:
            raise InvalidInput(f"base_url from {self.base_url_origin} is not a URL: {err}") from err
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(
                f"base_url from {self.base_url_origin} must be a URL such as http://127.0.0.1:8000/v1"
            )
        if parts.username is not None or parts.query or parts.fragment:
            raise InvalidInput(
                f"base_url from {self.base_url_origin} must hold neither a user, a query nor a fragment; "
                "give the key as api_key or in KIMI_API_KEY"
            )
        if not (self.api_key.isascii() and self.api_key.isprintable()) or " " in self.api_key:
            raise InvalidInput(f"the key from {self.api_key_origin} holds characters that no key has")

    @property
    def host(self) -> str:
        """The host's name, in lower case."""
        return urlsplit(self.base_url).hostname or ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer. `headers` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def request_id(self) -> str | None:
        """The id to ask the other side about: the gateway's, else the upstream's own."""
        names = ("x-kimi-request-id", "x-request-id", "x-trace-id", "x-generation-id")
        return next((self.headers[name] for name in names if self.headers.get(name)), None)


def endpoint_of(base_url: str | None, api_key: str | None, environ: Mapping[str, str]) -> Endpoint:
    """Argument, variable, default. Blank values count as unset. Raises `InvalidInput`."""
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
