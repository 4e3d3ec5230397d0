"""The recorded exchanges with real engines, parsed: what was asked, and the bytes that came back.

All are `recorded` on 2026-11-30, with the versions in `VERSIONS`; paths of the machine are replaced in them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from backends.json import JsonObject, as_object, decode
from support.shared import shared_path

RECORDED_ON: Final = "2026-11-30"
VERSIONS: Final = {
    "vllm": "vLLM 0.32.0",
    "sglang": "SGLang 0.5.23",
    "llamacpp": "llama.cpp b11549",
    "transformers": "transformers serve 5.19.0",
}

_CUT: Final = re.compile(r"\n?….probe: \d+ characters in all, the middle left out.…\n?")
_SECTION: Final = re.compile(r"^##### ", re.MULTILINE)
_STATUS: Final = re.compile(r"^HTTP/1\.1 (\d{3}) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One recorded exchange. `parts` are the body's bytes: one part, or what stands before and after the middle
    that was left out. `request` is the JSON body that was sent, where it is whole."""

    engine: str
    name: str
    path: str
    status: int
    headers: Mapping[str, str]
    parts: tuple[bytes, ...]
    request: JsonObject | None

    @property
    def is_whole(self) -> bool:
        return len(self.parts) == 1

    @property
    def body(self) -> bytes:
        """The whole body; fails where its middle was left out."""
        (whole,) = self.parts
        return whole

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")


def exchanges(file: str) -> dict[str, Exchange]:
    """The exchanges in `engine-<file>.txt` that have a status line, by name."""
    text = shared_path(f"transcripts/engine-{file}.txt").read_text(encoding="utf-8")
    found = {}
    for section in _SECTION.split(text)[1:]:
        exchange = _exchange(file.partition("-")[0], section)
        if exchange is not None:
            found[exchange.name] = exchange
    return found


def tail_bytes(file: str, name_start: str, position: int = 0) -> bytes:
    """The last bytes of a stream that was recorded from its middle on, without the framing: whole events only."""
    text = shared_path(f"transcripts/engine-{file}.txt").read_text(encoding="utf-8")
    matching = [section for section in _SECTION.split(text)[1:] if section.startswith(name_start)]
    lines = matching[position].split("\n")[1:]
    events = [
        line for line in lines if (line.startswith("data: {") and line.endswith("}")) or line == "data: [DONE]"
    ]
    return "".join(f"{line}\n\n" for line in events).encode()


def _exchange(engine: str, section: str) -> Exchange | None:
    status = _STATUS.search(section)
    if status is None:
        return None
    sent, answer = section[: status.start()], section[status.start() :]
    head, _, body = answer.partition("\n\n")
    headers = {}
    for line in head.split("\n")[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    target = re.search(r"^(?:POST|GET) (\S+) HTTP", sent, re.MULTILINE)
    framed = "framing kept" in sent or (re.match(r"[0-9a-f]+\n", body) is not None)
    parts = tuple(part.encode() for part in _CUT.split(body.rstrip("\n") if not framed else body))
    return Exchange(
        engine=engine,
        name=section.partition("\n")[0].strip(),
        path=target[1] if target is not None else "",
        status=int(status[1]),
        headers=headers,
        parts=(_unframed(parts[0]),) if framed else _ended(parts, headers),
        request=_request(sent),
    )


def _ended(parts: tuple[bytes, ...], headers: Mapping[str, str]) -> tuple[bytes, ...]:
    """A stream's last event ends with a blank line, which the recording's own blank lines swallow."""
    if headers.get("content-type", "").startswith("text/event-stream"):
        return (*parts[:-1], parts[-1] + b"\n\n")
    return parts


def _unframed(body: bytes) -> bytes:
    """The body without its chunk sizes. CR LF was recorded as LF."""
    data, rest = b"", body
    while True:
        size, _, rest = rest.partition(b"\n")
        count = int(size, 16)
        if count == 0:
            return data
        data += rest[:count]
        assert rest[count : count + 1] == b"\n", "the recorded framing does not add up"
        rest = rest[count + 1 :]


def _request(sent: str) -> JsonObject | None:
    _, _, body = sent.partition("\n\n")
    text = body.partition("\n<<<")[0].strip()
    if not text.startswith("{") or "characters in all]…" in text:
        return None
    try:
        return as_object(decode(text.encode()))
    except ValueError:
        return None
