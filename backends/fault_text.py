"""The words of an upstream's error made fit for a client, and the numbers in them.

Engines and their proxies put account ids, keys, file paths, traceback lines, HTML and pieces of the prompt into
error messages. What leaves here has none of them, on one line, of bounded length.
"""

import re
from collections.abc import Iterable
from typing import Final

from backends.json import Json, as_list, as_object, as_str

MESSAGE_CHARS: Final = 500
_READ_CHARS: Final = 8192
"""So much of a message is looked at: patterns stay cheap whatever comes."""

_REDACTED: Final = "[redacted]"
_TOKEN_START: Final = r"(?<![A-Za-z0-9_-])"
_SECRETS: Final = (
    (re.compile(r"\bBearer\s+[^\s,;\"'<>]+", re.IGNORECASE), f"Bearer {_REDACTED}"),
    (re.compile(r"(?<=://)[^/\s:@]{1,256}:[^/\s@]{1,256}@"), ""),
    (re.compile(r"([?&](?:key|api_?key|token|access_token|sig|signature)=)[^&\s\"']+", re.I), rf"\1{_REDACTED}"),
    (
        re.compile(
            r"\b(api[-_ ]?key(?: provided)?|access[-_ ]?token|secret|password|authorization)"
            r"(\"?'?\s?[:=]\s?\"?'?)[^\s\"',;]+",
            re.IGNORECASE,
        ),
        rf"\1\2{_REDACTED}",
    ),
    # Moonshot names organisation and key in its 429s: `org-… <ak-…>`.
    (re.compile(rf"<?{_TOKEN_START}(?:org|ak|sk|pk|rk|proj)-[\w*-]+>?"), _REDACTED),
    (re.compile(rf"{_TOKEN_START}(?:sk|pk|rk|hf|gsk|org|acct|user|team)[_-](?=[\w-]*\d)[\w*-]{{6,}}"), _REDACTED),
    (re.compile(rf"{_TOKEN_START}(?:eyJ|AKIA|AIza)[\w.-]{{12,}}"), _REDACTED),
    # Long tokens that are nobody's word: digests, and keys of any make. Names of tools have separators.
    (re.compile(rf"{_TOKEN_START}(?=[a-z]*\d)(?=\d*[a-f])[0-9a-f]{{32,}}(?![\w-])"), _REDACTED),
    (re.compile(rf"{_TOKEN_START}(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{{40,}}"), _REDACTED),
)

_PATHS: Final = re.compile(
    r"file://\S+"
    r"|(?<![\w./\\-])[\w./\\-]+\.py\b(?::\d+)?"
    r"|\b[A-Za-z]:\\[^\s\"'<>|]+"
    # Routes of an API and pointers into the request are no paths of a machine.
    r"|(?<![\w.:/)\]~-])~?/(?!(?:v\d|api|anthropic|openai|messages|tools|properties|response_format)\w*\b)"
    r"(?:[\w.@+-]+/)+[\w.@+-]*"
)

_TRACE: Final = re.compile(r"Traceback \(most recent call last\)|File \"[^\"\n]*\", line \d+")
_TAGS: Final = re.compile(
    r"<!doctype[^<>]*>|<!--|-->|</?(?:html|head|body|title|meta|link|style|script|center|hr|h[1-6]|p|br|div|span"
    r"|a|b|i|em|strong|pre|code|table|tr|t[dh]|[ou]l|li|img|address)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_PAGE: Final = re.compile(r"\s*<(?:!doctype|html|head|body|\?xml)\b", re.IGNORECASE)
_TITLE: Final = re.compile(r"<title[^<>]*>([^<>]{1,200})</title>", re.IGNORECASE)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

_QUOTED: Final = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_FINDING: Final = re.compile(
    rf"'loc': (?P<loc>{_QUOTED}|[(\[](?:[^()\[\]'\"]|{_QUOTED})*[)\]]), 'msg': (?P<msg>{_QUOTED})"
)
_LOC_PART: Final = re.compile(rf"{_QUOTED}|\d+")
_SHOWN_FINDINGS: Final = 3

_COUNT: Final = r"(\d[\d,]{0,14})"
_LIMITS: Final = tuple(
    re.compile(pattern.replace("N", _COUNT), re.IGNORECASE)
    for pattern in (
        r"maximum context length (?:is|of) N",
        r"context (?:length|size|window) \(N tokens\)",
        r"max_model_len=N",
        r"supports at most N completion tokens",
        r"token limit ?: ?N",
        r"context window of N",
    )
)
_ASKED: Final = tuple(
    re.compile(pattern.replace("N", _COUNT), re.IGNORECASE)
    for pattern in (
        r"prompt contains (?:at least )?N (?:input )?tokens",
        r"requested (?:a total of |about )?N tokens",
        r"resulted in N tokens",
        r"(?:input|request) \(N tokens\)",
        r"tokens=N cannot be greater than",
        r"tokens is too large: N",
        r"requested ?: ?N",
    )
)
_CONTEXT_WORDS: Final = re.compile(
    r"token length too long|exceeded model token limit|maximum context length|prompt is too long"
    r"|(?:exceeds?|longer than|larger than) the (?:available |model's )?(?:maximum )?context"
    r"|context[ _](?:length|window|size)[ _](?:is )?exceed|cannot be greater than max_model_len"
    r"|supports at most \d+ completion tokens",
    re.IGNORECASE,
)


def clean_message(text: str) -> str:
    """The message on one line of at most `MESSAGE_CHARS`, without ids, keys, paths, traceback, HTML or input; ""
    where nothing is left."""
    text = _without_trace(text[:_READ_CHARS])
    text = _findings(text) or text
    text = _TAGS.sub(" ", text)
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    text = _PATHS.sub("[path]", text)
    return _shortened(" ".join(_CONTROL.sub(" ", text).split()), MESSAGE_CHARS)


def clean_word(text: str, most_chars: int = 64) -> str:
    """A short name (a type, a code, a parameter) made safe in the same way."""
    return _shortened(clean_message(text), most_chars)


def page_title(text: str) -> str | None:
    """The cleaned title of an HTML page ("" where it has none); None for text that is no page."""
    if not _PAGE.match(text[:512]):
        return None
    title = _TITLE.search(text[:_READ_CHARS])
    return clean_word(title[1], 100) if title is not None else ""


def says_context(text: str) -> bool:
    """The message says that prompt or output limit do not fit into the context window."""
    return _CONTEXT_WORDS.search(text[:_READ_CHARS]) is not None


def context_counts(text: str) -> tuple[int | None, int | None]:
    """Tokens of the window and tokens that were asked for, as the message has them."""
    return _first_count(_LIMITS, text[:_READ_CHARS]), _first_count(_ASKED, text[:_READ_CHARS])


def findings_text(details: Json) -> str | None:
    """FastAPI's list of findings (`detail` of a 422) as one sentence; None where it is no such list."""
    findings = [as_object(item) for item in as_list(details)]
    pairs = [
        (field_path(map(str, as_list(item.get("loc")))), as_str(item.get("msg")) or "not valid")
        for item in findings
        if item is not None
    ]
    return _sentence(pairs) if pairs else None


def first_field(text: str) -> str | None:
    """The request field that the first finding of a validation message is about, None where it names none."""
    finding = _FINDING.search(text[:_READ_CHARS])
    return field_path(_loc_parts(finding["loc"])) or None if finding is not None else None


def field_path(parts: Iterable[str]) -> str:
    """A request path such as `messages[0].content` from a validator's location; "" for the body itself.

    Leaves out what is the validator's own: `body`, the names of its classes and union branches, byte positions.
    """
    path = ""
    for part in parts:
        if part.isdecimal():
            path += f"[{part}]" if path else ""
        elif part not in ("body", "header") and re.fullmatch(r"[a-z_][a-z0-9_]*", part):
            path += f".{part}" if path else part
    return path


def _findings(text: str) -> str | None:
    """pydantic's findings as vLLM and SGLang print them, reduced to place and reason: they repeat the input."""
    pairs = [(field_path(_loc_parts(found["loc"])), found["msg"][1:-1]) for found in _FINDING.finditer(text)]
    return _sentence(pairs) if pairs else None


def _loc_parts(loc: str) -> list[str]:
    if loc[0] in "([":
        return [part.strip("'\"") for part in _LOC_PART.findall(loc)]
    return loc.strip("'\"").split(".")


def _sentence(pairs: list[tuple[str, str]]) -> str:
    lines = list(dict.fromkeys(f"{path}: {reason}" if path else reason for path, reason in pairs))
    more = f"; and {len(lines) - _SHOWN_FINDINGS} more" if len(lines) > _SHOWN_FINDINGS else ""
    return "; ".join(lines[:_SHOWN_FINDINGS]) + more


def _without_trace(text: str) -> str:
    """What stands before a traceback or, where nothing does, its last line: the exception."""
    trace = _TRACE.search(text)
    if trace is None:
        return text
    head = text[: trace.start()].strip()
    last = text.rstrip().rpartition("\n")[2]
    return head or ("" if _TRACE.search(last) else last)


def _first_count(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    for pattern in patterns:
        if found := pattern.search(text):
            return int(found[1].replace(",", ""))
    return None


def _shortened(text: str, most_chars: int) -> str:
    return text if len(text) <= most_chars else text[: most_chars - 1].rstrip() + "…"
