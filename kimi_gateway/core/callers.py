"""Who calls: from the headers of a request to a caller, or the refusal that says how to set it right."""

from collections.abc import Iterable
from dataclasses import dataclass

from kimi_gateway.core import openmode
from kimi_gateway.core.keys import OPEN_POLICY, KeyPolicy, KeyRing
from kimi_gateway.errors import Unauthenticated

Headers = Iterable[tuple[bytes, bytes]]

_FOREIGN_HEADERS = (b"x-api-key", b"api-key")
_HOW = "send it as Authorization: Bearer YOUR_KEY (with the OpenAI client: api_key=...)"


@dataclass(frozen=True, slots=True)
class Caller:
    """A request's sender. `name` is the key's name, `open` in open mode."""

    name: str
    policy: KeyPolicy


OPEN_CALLER = Caller(OPEN_POLICY.name, OPEN_POLICY)


def identify(headers: Headers, keys: KeyRing) -> Caller:
    """The caller of a request with these headers (names in lower case), by the keys that there are.

    Raises `Unauthenticated` (401) for no or a wrong key, `Forbidden` (403) for what open mode does not serve.
    """
    if keys.is_open:
        refused = openmode.refusal(headers)
        if refused is not None:
            raise refused
        return OPEN_CALLER
    policy = keys.find(bearer(headers))
    if policy is None:
        raise _unauthenticated(
            "this API key is not one of this gateway's, or not any more; keys are made by `kimi-gateway keys`, or "
            f"set in [[keys]] of its configuration; {_HOW}",
            "invalid_api_key",
        )
    return Caller(policy.name, policy)


def bearer(headers: Headers) -> str:
    """The token of the one Authorization header. Raises `Unauthenticated` where it is absent or no Bearer."""
    found: list[bytes] = []
    foreign = ""
    for name, value in headers:
        if name == b"authorization":
            found.append(value)
        elif name in _FOREIGN_HEADERS:
            foreign = name.decode()
    if not found and foreign:
        raise _unauthenticated(f"the header {foreign} is not read here; {_HOW}", "missing_api_key")
    if not found:
        raise _unauthenticated(f"the request has no API key; {_HOW}", "missing_api_key")
    scheme, _, token = found[0].strip().partition(b" ")
    token = token.strip()
    if len(found) > 1 or scheme.lower() != b"bearer" or not token or b" " in token:
        raise _unauthenticated(f"the Authorization header is not one Bearer token; {_HOW}", "invalid_api_key")
    return token.decode("latin-1")


def _unauthenticated(message: str, code: str) -> Unauthenticated:
    return Unauthenticated(message, code=code, headers={"www-authenticate": "Bearer"})
