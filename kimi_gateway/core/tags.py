"""Tags of a request: `x-kimi-tags: team=search,run=42`, for reports by tag."""

import re
from typing import Final

from kimi_gateway.errors import InvalidRequest

TAGS_MAX: Final = 10
_TAG: Final = re.compile(r"([A-Za-z0-9_.-]{1,40})=([^,=\s][^,=]{0,119})")


def read_tags(header: str | None) -> dict[str, str]:
    """The tags by key, in their order. Raises `InvalidRequest` for a malformed one, a repeat or too many."""
    tags: dict[str, str] = {}
    for part in (header or "").split(","):
        text = part.strip()
        if not text:
            continue
        match = _TAG.fullmatch(text)
        if match is None or match[1] in tags or len(tags) == TAGS_MAX:
            raise InvalidRequest(
                f"x-kimi-tags must be at most {TAGS_MAX} different KEY=VALUE pairs with commas between; "
                f"{text[:60]!r} is not",
                code="invalid_header",
                param="x-kimi-tags",
            )
        tags[match[1]] = match[2].strip()
    return tags
