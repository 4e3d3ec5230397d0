"""Tool-call ids for an upstream that takes only ids of a certain form, and back again.

Ids pass verbatim wherever they may. Where a dialect states a pattern, an id that does not match it is written as
`kid_` and its own text in base64url, which anybody can read back without a memory: another gateway, or this one
after a restart. An id that already looks like a rewritten one is rewritten too, so nothing is ever read back that
was not rewritten: `to_target` and `to_client` are inverse to each other. One that is too long for the pattern is
sent as `kih_` and a digest, and read back only by whoever wrote it.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from backends.json import JsonObject, as_list, as_object, as_str

_MARK: Final = "kid_"
_DIGEST_MARK: Final = "kih_"
_DIGEST_CHARACTERS: Final = 40


class ToolIdError(ValueError):
    """No form of rewriting matches the pattern."""


@dataclass(slots=True)
class ToolIds:
    """Ids for one upstream whose ids match `pattern` as a whole, over one request and its answer."""

    pattern: str
    _digests: dict[str, str] = field(default_factory=dict)

    def to_target(self, id: str) -> str:
        """The id as the upstream takes it. Raises `ToolIdError`."""
        if self._matches(id) and not self._is_ours(id):
            return id
        coded = _coded(id)
        if self._matches(coded):
            return coded
        digest = _DIGEST_MARK + sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARACTERS]
        if not self._matches(digest):
            raise ToolIdError(f"a call id must match {self.pattern} here, and no form of {id[:80]!r} does")
        self._digests[digest] = id
        return digest

    def to_client(self, id: str) -> str:
        """The id as the client knows it, from an answer of the upstream."""
        known = self._digests.get(id)
        if known is not None:
            return known
        plain = _plain(id)
        return plain if plain is not None and self._is_ours(id) else id

    def _is_ours(self, id: str) -> bool:
        """The id is one that `to_target` makes: its text does not match by itself, or looks rewritten too."""
        if id.startswith(_DIGEST_MARK):
            return True
        plain = _plain(id)
        return plain is not None and (not self._matches(plain) or self._is_ours(plain))

    def _matches(self, id: str) -> bool:
        return re.fullmatch(self.pattern, id) is not None


def give_back(part: JsonObject, ids: ToolIds) -> None:
    """Puts the client's ids into the calls of an answer's message or delta, in place."""
    for call in as_list(part.get("tool_calls")):
        held = as_object(call)
        id = as_str(held.get("id")) if held is not None else None
        if held is not None and id:
            held["id"] = ids.to_client(id)


def _coded(id: str) -> str:
    data = urlsafe_b64encode(id.encode("utf-8", "surrogatepass"))
    return _MARK + data.decode().rstrip("=")


def _plain(id: str) -> str | None:
    """The text of a rewritten id, None where it is no such id."""
    if not id.startswith(_MARK):
        return None
    data = id.removeprefix(_MARK)
    try:
        text = urlsafe_b64decode(data + "=" * (-len(data) % 4)).decode("utf-8", "surrogatepass")
    except (Error, ValueError):
        return None
    return text if _coded(text) == id else None
