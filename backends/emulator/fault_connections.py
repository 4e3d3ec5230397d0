"""Faults of the connection and of time: refused, reset, cut, stalled, slow, and bytes split in bad places.

What is real: a reset is a TCP reset. While connections are refused the port is bound and nobody listens on it, so
the system itself refuses; a connection that it had taken before and the server not yet is reset. The request that
hits the rule has a connection already, so it is reset, or answered first. Resets, refusals and a close before the
status line need the server of `kimi-gateway emulate`; on another one they are answered with a 501 that says so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from backends.emulator.exchange import Exchange, error_step, refusal_script
from backends.emulator.fault_options import Kind, Option, Options, phase_option
from backends.emulator.player import Script, Step
from backends.emulator.script_parts import broken, is_stream, parted
from backends.emulator.wire import done_step

_FOR: Final = Option(5.0, "for how long, in seconds; 0: until the client leaves", most=86_400)
_REFUSE: Final = Option(0.0, "for how long new connections are refused from then on, in seconds", most=86_400)
_GAP: Final = Option(2.0, "milliseconds between two writes", least=0.1, most=60_000)
_ENDS: Final[Mapping[str, bytes]] = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}


def _refuse(exchange: Exchange, script: Script, options: Options) -> Script:
    if options.flag("answer"):
        return replace(script, refuse_s=options.seconds("for_s"))
    return replace(broken(script, ()), ending="reset", refuse_s=options.seconds("for_s"))


def _reset(exchange: Exchange, script: Script, options: Options) -> Script:
    before, _ = parted(script, options.word("phase"))
    return replace(broken(script, before), ending="reset", ending_after_s=options.seconds("after_s"))


def _cut(exchange: Exchange, script: Script, options: Options) -> Script:
    before, _ = parted(script, options.word("phase"))
    return replace(broken(script, before), ending="cut", ending_after_s=options.seconds("after_s"))


def _stall(exchange: Exchange, script: Script, options: Options) -> Script:
    before, after = parted(script, options.word("phase"))
    stall_s = options.seconds("for_s")
    if stall_s == 0:
        return replace(broken(script, before), ending="silent")
    tokens = before[-1].tokens if before else 0
    if not after:
        after = (Step(b"", 0.0, tokens, "head"),)
    every_s = options.seconds("comment_every_s")
    comments: list[Step] = []
    while is_stream(script) and 0 < every_s < stall_s:
        comments.append(Step(exchange.profile.comment, every_s, tokens, "comment"))
        stall_s -= every_s
    first = replace(after[0], delay_s=after[0].delay_s + stall_s)
    return replace(script, steps=(*before, *comments, first, *after[1:]))


def _silence(exchange: Exchange, script: Script, options: Options) -> Script:
    before, _ = parted(script, options.word("phase"))
    return replace(broken(script, before), ending="silent", refuse_s=options.seconds("refuse_s"))


def _crash(exchange: Exchange, script: Script, options: Options) -> Script:
    """The engine process dies: vLLM's server says so and ends well, SGLang's says nothing and closes."""
    profile = exchange.profile
    refuse_s = options.seconds("refuse_s")
    refusal = profile.words.trouble(exchange.trouble("crash"))
    before, _ = parted(script, options.word("phase"))
    if not profile.crash_says:
        broke = broken(script, before if is_stream(script) else ())
        return replace(broke, ending="cut", ending_after_s=options.seconds("after_s"), refuse_s=refuse_s)
    if not is_stream(script):
        return replace(refusal_script(profile, refusal), refuse_s=refuse_s)
    tokens = before[-1].tokens if before else 0
    end = (done_step(tokens),) if profile.done_after_error else ()
    return replace(broken(script, (*before, error_step(exchange, refusal, tokens), *end)), refuse_s=refuse_s)


def _slow(exchange: Exchange, script: Script, options: Options) -> Script:
    size, gap_s = options.count("bytes"), options.seconds("gap_ms") / 1000
    made: list[Step] = []
    for step in script.steps:
        starts = range(0, len(step.data), size)
        pieces = [step.data[at : at + size] for at in starts] or [b""]
        made += _written(step, pieces, gap_s if made else 0.0, gap_s)
    return replace(script, steps=tuple(made))


def _split(exchange: Exchange, script: Script, options: Options) -> Script | None:
    if not is_stream(script):
        return None
    end = _ENDS[options.word("line_end")]
    where, gap_s = options.word("at"), options.seconds("gap_ms") / 1000
    made: list[Step] = []
    for step in script.steps:
        data = step.data if end == b"\n" else step.data.replace(b"\n", end)
        made += _written(step, list(_pieces(data, end, where)), gap_s if made else 0.0, gap_s)
    return replace(script, steps=tuple(made))


def _pieces(data: bytes, end: bytes, where: str) -> Iterator[bytes]:
    """The data in pieces that end where a reader is likely to stumble."""
    start = 0
    for at in range(1, len(data)):
        if _is_bad_place(data, at, end, where):
            yield data[start:at]
            start = at
    yield data[start:]


def _is_bad_place(data: bytes, at: int, end: bytes, where: str) -> bool:
    """Whether a write that ends before `at` ends inside a character, or inside the end of a line or event."""
    match where:
        case "character":
            return data[at] & 0xC0 == 0x80
        case "line_end":
            return data[at : at + 1] == end[-1:] and data[at - 1 : at] in (b"\r", b"\n")
        case _:
            return True


def _written(step: Step, pieces: list[bytes], first_s: float, gap_s: float) -> list[Step]:
    """One step as several writes; the pause before the first is the step's own, at least `first_s`."""
    first = replace(step, data=pieces[0], delay_s=max(step.delay_s, first_s))
    return [first, *(replace(step, data=piece, delay_s=gap_s) for piece in pieces[1:])]


KINDS: Final[Mapping[str, Kind]] = {
    "refuse": Kind(
        "new connections are refused for a while; the request that hits the rule is reset, or answered first",
        _refuse,
        {
            "for_s": Option(2.0, "for how long, in seconds", least=0.01, most=86_400),
            "answer": Option(False, "the request that hits the rule is answered before the port closes"),
        },
    ),
    "reset": Kind(
        "a TCP reset",
        _reset,
        {"phase": phase_option("start"), "after_s": Option(0.0, "a pause before it, in seconds", most=86_400)},
    ),
    "cut": Kind(
        "the connection is closed in mid-answer: no last chunk, or fewer bytes than announced",
        _cut,
        {"phase": phase_option("text"), "after_s": Option(0.0, "a pause before it, in seconds", most=86_400)},
    ),
    "stall": Kind(
        "silence, then the answer goes on",
        _stall,
        {
            "phase": phase_option("start"),
            "for_s": _FOR,
            "comment_every_s": Option(0.0, "comments in the meantime (streams); 0: none", most=86_400),
        },
    ),
    "hold": Kind(
        "everything but the end of the answer has been said, and the connection stays open",
        _stall,
        {
            "phase": phase_option("finish", ("finish", "usage", "done")),
            "for_s": Option(0.0, "for how long, in seconds; 0: until the client leaves", most=86_400),
            "comment_every_s": Option(0.0, "comments in the meantime (streams); 0: none", most=86_400),
        },
    ),
    "silence": Kind(
        "the engine was told to stop: not a word and no close until the client leaves",
        _silence,
        {"phase": phase_option("text"), "refuse_s": _REFUSE},
    ),
    "crash": Kind(
        "the engine died: vLLM says so in the stream and ends it, the others close without a word",
        _crash,
        {
            "phase": phase_option("text"),
            "after_s": Option(5.4, "how long SGLang takes to close (recorded), in seconds", most=86_400),
            "refuse_s": _REFUSE,
        },
    ),
    "slow": Kind(
        "the answer trickles",
        _slow,
        {
            "bytes": Option(16, "bytes in one write", least=1),
            "gap_ms": Option(20.0, "milliseconds between two writes", least=0.1, most=60_000),
        },
    ),
    "split": Kind(
        "network writes of a stream end in bad places",
        _split,
        {
            "at": Option(
                "character", "inside characters, inside line ends, anywhere", ("character", "line_end", "byte")
            ),
            "line_end": Option("lf", "what ends a line", tuple(_ENDS)),
            "gap_ms": _GAP,
        },
    ),
}
