"""How much of a request a target still has in its cache, and why not more: said before, corrected after.

`predict` compares a request with the record of its conversation, for any target; `observe` takes what was reported
and gives the record its next form. What is known of Moonshot's cache: a prefix is kept for 5 minutes or an hour,
fixed at its first write and renewed by every use; it breaks where tools, effort or messages differ, in this order;
it is counted in blocks (kimi-api-facts.md 2.3 and 3). Engines promise nothing: theirs is taken to be warm until a
report says otherwise. Pro and Highspeed are taken to have caches of their own, as any two models.

Whether a prefix is renewed when a request begins or when its answer ends is not documented. In between a cache is
in doubt: taken as warm, and as expired where a report says so.

Pure: the time is an argument, Unix seconds of the wall clock, because replicas share records.
"""

from collections.abc import Sequence
from math import ceil, floor
from typing import Final, Literal

from msgspec import Struct, structs

from kimi_gateway.core.cache_loss import NO_LOSS, Loss, Reason
from kimi_gateway.core.digest import TurnKeys
from kimi_gateway.core.prefix import MARK_BYTES, Prefix, places_to_write
from kimi_gateway.core.sending import Sending, first_difference
from kimi_gateway.core.warm_record import LINES_MAX, Checkpoint, Line, Record, key_of, line_key, thinned, tools_key
from pricing.usage import TokenUsage

BLOCK_TOKENS: Final = 256
"""Tokens a block: not documented; probes show multiples of 256 (kimi-api-facts.md 3.1). A block more or less is no
loss."""
TTL_S: Final = {"5m": 300, "1h": 3600}

_TURN_MAX: Final = 2**16 - 1
_S_MAX: Final = 2**16 - 1
_TIME_MAX: Final = 2**32 - 1
_TOKENS_MAX: Final = 2**32 - 1


class Warmth(Struct, frozen=True, gc=False):
    """What is expected of a target's cache.

    `expected_read_tokens` will be read; `would_read_tokens` would have been, had the request been the last one,
    grown, where that one went, in time. `age_s` is the time since the end of the last answer on the line that the
    request continues, None where there is no such line. `promised`: the cache's lifetime covers it for certain.
    """

    expected_read_tokens: int = 0
    would_read_tokens: int = 0
    age_s: float | None = None
    promised: bool = False
    in_doubt: bool = False
    reason: Reason | Literal[""] = ""

    def loss(self, prompt_tokens: int | None = None) -> Loss:
        """What is lost if it comes so. No more can be than the prompt has tokens, where they are known."""
        if not self.reason:
            return NO_LOSS
        lost = _at_most(self.would_read_tokens, prompt_tokens) - self.expected_read_tokens
        return Loss(self.reason, lost) if lost > BLOCK_TOKENS else NO_LOSS


class Answered(Struct, frozen=True, gc=False):
    """How a request ended that a model worked on. `keys` are those of the answer, or of as much as was delivered;
    None where nothing was, or where there were several answers. Times are Unix seconds. `usage` None: nothing was
    reported. `assumed`: its split of written tokens by lifetime was not."""

    keys: TurnKeys | None
    sent_s: float
    ended_s: float
    usage: TokenUsage | None = None
    assumed: bool = False


class Observed(Struct, frozen=True, gc=False):
    """What was lost after all, the record as it is now, and the places where it is to be kept (none: it stays as
    it is). `keys` are those of the answer, where it is one."""

    loss: Loss
    record: Record | None
    places: Sequence[bytes] = ()
    keys: TurnKeys | None = None


class _Standing(Struct, frozen=True, gc=False):
    """So many tokens of a line stand for a request, of so many had it only grown; and what broke the rest."""

    tokens: int
    whole: int
    reason: Reason | Literal[""]


def predict(record: Record | None, prefix: Prefix, sending: Sending, now_s: float) -> Warmth:
    """What a target has of this request in its cache. Nothing is known of, and nothing lost by, a conversation
    without a record or one that begins."""
    if record is None or not prefix.turns or not record.is_of(prefix):
        return Warmth()
    line, home = record.line(sending), record.lines[0]
    whole = _standing(record, home, prefix, None).whole
    if line is None:
        return _expected(record, prefix, sending, now_s, Warmth(would_read_tokens=whole))
    age_s = max(0.0, now_s - line.ended_s)
    alive = not _expired(line, now_s)
    certain = line.ttl_s > 0 and now_s - line.sent_s < line.ttl_s
    warmth = Warmth(
        expected_read_tokens=_standing(record, line, prefix, sending.thoughts).tokens if alive else 0,
        would_read_tokens=whole,
        age_s=age_s,
        promised=certain,
        in_doubt=alive and line.ttl_s > 0 and not certain,
    )
    return _expected(record, prefix, sending, now_s, warmth)


def _expected(record: Record, prefix: Prefix, sending: Sending, now_s: float, warmth: Warmth) -> Warmth:
    """The same with the reason of the loss, where there is one."""
    lost = _at_most(warmth.would_read_tokens, sending.prompt_tokens) - warmth.expected_read_tokens
    if lost <= BLOCK_TOKENS:
        return warmth
    reason = _reason(record, prefix, sending, now_s, warmth.expected_read_tokens)
    return structs.replace(warmth, reason=reason)


def _reason(
    record: Record, prefix: Prefix, sending: Sending, now_s: float, expected_tokens: int
) -> Reason | Literal[""]:
    """Where the prefix of the last request breaks first. A move to another target is the reason only where
    staying would have saved something."""
    home = record.lines[0]
    target, model, tools, narrowed, effort = line_key(sending)
    moved = (home.target, home.model) != (target, model)
    if _expired(home, now_s):
        return "expired"
    # Another target may get the tools cut down, or the thoughts trimmed, that this one would have got whole.
    if home.tools != tools or (not moved and home.narrowed != narrowed):
        return "tools"
    if home.effort != effort:
        return "effort"
    at_home = _standing(record, home, prefix, None if moved else sending.thoughts)
    if moved and at_home.tokens > expected_tokens:
        return "target" if home.target != target else "model"
    return at_home.reason


def _expired(line: Line, now_s: float) -> bool:
    """For certain: counted from the end of the answer."""
    return line.ttl_s > 0 and now_s - line.ended_s >= line.ttl_s


def _standing(record: Record, line: Line, prefix: Prefix, thoughts: bytes | None) -> _Standing:
    """How much of a line is a prefix of this request. `thoughts` None: they are taken to be as they were."""
    if _goes_on(prefix, line):
        tokens = whole = line.prompt_tokens
        reason: Reason | Literal[""] = ""
    else:
        shared = _last_shared(record, line, prefix)
        tokens = min(shared.tokens, line.prompt_tokens) if shared is not None else 0
        # Who goes on from the last turn that both have sends nothing that was changed: that is a branch.
        branched = shared is not None and shared.turn == len(prefix.turns) - 1
        whole, reason = (tokens, "") if branched else (line.prompt_tokens, "history_edited")
    turn = first_difference(line.thoughts, thoughts) if thoughts is not None else None
    if turn is not None:
        before = [one.tokens for one in record.trail_of(line) if one.turn <= turn]
        left = min(before[-1], line.prompt_tokens) if before else 0
        if left < tokens:
            tokens, reason = left, "thinking_lost"
    return _Standing(_blocks(tokens), _blocks(whole), reason)


def _goes_on(prefix: Prefix, at: Line | Checkpoint) -> bool:
    """The request has all messages up to there."""
    return at.turn < len(prefix.turns) and prefix.mark(at.turn) == at.mark


def _last_shared(record: Record, line: Line, prefix: Prefix) -> Checkpoint | None:
    """The last turn of a line that the request has too, as far as is known."""
    return next((one for one in reversed(record.trail_of(line)) if _goes_on(prefix, one)), None)


def _blocks(tokens: int) -> int:
    """What of a prompt can be read: whole blocks, and never the last token."""
    return max(0, tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def _to_read(tokens: int) -> int:
    """The least prompt of which so many tokens can be read."""
    return tokens + 1 if tokens else 0


def _at_most(would_tokens: int, prompt_tokens: int | None) -> int:
    return would_tokens if prompt_tokens is None else min(would_tokens, _blocks(prompt_tokens))


def known_tokens(record: Record | None, prefix: Prefix, tools: bytes, thoughts: bytes) -> tuple[int, int] | None:
    """How many tokens the prompt before the newest known answer had, as reported, and the index of the message
    that answered it; None where the request does not go on from there with the same tools and thoughts.

    `thoughts` are the runs of the request. What stands from that message on came since.
    """
    lines = record.lines if record is not None and record.is_of(prefix) else ()
    for line in lines:
        if line.tools != tools or line.narrowed or not line.prompt_tokens or not _goes_on(prefix, line):
            continue
        if first_difference(line.thoughts, thoughts) is None:
            return line.prompt_tokens, prefix.index(line.turn)
    return None


# --- after the answer ------------------------------------------------------------------------------------------


def observe(
    warmth: Warmth, record: Record | None, prefix: Prefix, sending: Sending, answered: Answered
) -> Observed:
    """What one answer teaches. `warmth` is the prediction for the target that gave it, made when it was sent."""
    if record is not None and not record.is_of(prefix):
        record = None
    loss = _final_loss(warmth, answered.usage)
    line = _next_line(warmth, record, prefix, sending, answered)
    if line is None:
        return Observed(loss, record, keys=answered.keys)
    new = _next_record(record, prefix, answered.keys, line)
    return Observed(loss, new, places_to_write(prefix, answered.keys, new.root), answered.keys)


def _final_loss(warmth: Warmth, usage: TokenUsage | None) -> Loss:
    """The prediction, or what a report of tokens read makes of it."""
    if usage is None:
        return warmth.loss()
    if usage.cache_read is None:
        return warmth.loss(usage.prompt)
    lost = _at_most(warmth.would_read_tokens, usage.prompt) - usage.cache_read
    if lost <= BLOCK_TOKENS:
        return NO_LOSS
    return Loss(warmth.reason or ("expired" if warmth.in_doubt else "upstream"), lost, measured=True)


def _next_line(
    warmth: Warmth, record: Record | None, prefix: Prefix, sending: Sending, answered: Answered
) -> Line | None:
    """The line that the target holds now; None where no turn stands for it."""
    turn = _newest(prefix, answered.keys)
    if turn is None:
        return None
    number, mark = turn
    target, model, tools, narrowed, effort = line_key(sending)
    usage = answered.usage
    held = _to_read(warmth.expected_read_tokens)
    if usage is not None and answered.keys is not None:
        held = max(0, usage.prompt - prefix.tail_tokens)
    sent_s = min(max(0, floor(answered.sent_s)), _TIME_MAX)
    return Line(
        target=target,
        model=model,
        tools=tools,
        narrowed=narrowed,
        effort=effort,
        turn=min(number, _TURN_MAX),
        mark=mark,
        thoughts=sending.thoughts,
        sent_s=sent_s,
        took_s=min(max(0, ceil(answered.ended_s) - sent_s), _S_MAX),
        ttl_s=_ttl_in_force(warmth, record, sending, answered),
        prompt_tokens=min(held, _TOKENS_MAX),
        read_tokens=min(usage.cache_read, _TOKENS_MAX)
        if usage is not None and usage.cache_read is not None
        else None,
    )


def _newest(prefix: Prefix, keys: TurnKeys | None) -> tuple[int, bytes] | None:
    """The turn that a line ends with: the answer's, else the newest there was."""
    if keys is not None:
        return len(prefix.turns), prefix.answer_mark(keys)
    if not prefix.turns:
        return None
    return len(prefix.turns) - 1, prefix.mark(len(prefix.turns) - 1)


def _ttl_in_force(warmth: Warmth, record: Record | None, sending: Sending, answered: Answered) -> int:
    """The lifetime that the first write fixed: as reported, else that of what was read of, else the one asked
    for. What begins with the same tools begins with the same block."""
    if not sending.ttl_s:
        return 0
    usage = answered.usage
    if usage is not None and not answered.assumed and bool(usage.write_5m) != bool(usage.write_1h):
        return TTL_S["5m" if usage.write_5m else "1h"]
    read = usage.cache_read if usage is not None else None
    if not (warmth.expected_read_tokens if read is None else read):
        return sending.ttl_s
    first = line_key(sending)[:-1]
    lines = record.lines if record is not None else ()
    return next((line.ttl_s for line in lines if line.ttl_s and key_of(line)[:-1] == first), sending.ttl_s)


def _next_record(record: Record | None, prefix: Prefix, keys: TurnKeys | None, line: Line) -> Record:
    name = prefix.name
    called = name.digest[:MARK_BYTES] if name is not None and name.explicit else b""
    newest = keys if keys is not None else prefix.turns[-1]
    answered = newest.chain[:MARK_BYTES]
    others = _other_lines(record, prefix, line) if record is not None else []
    measured, trail = _next_trail(record, prefix, line, answers=keys is not None)
    return Record(
        id=record.id if record is not None else called or answered,
        name=called or (record.name if record is not None else b""),
        root=answered if not prefix.turns else record.root if record is not None else b"",
        answered=answered,
        anchor=newest.anchor[:MARK_BYTES] if newest.anchor is not None else b"",
        lines=(line, *others[: LINES_MAX - 1]),
        measured=measured,
        trail=thinned(trail),
    )


def _other_lines(record: Record, prefix: Prefix, line: Line) -> list[Line]:
    """The lines of other targets, models, tools and efforts, cut back to what they have of the history as it is
    now: the trail is about this one."""
    others: list[Line] = []
    for other in record.lines:
        if key_of(other) == key_of(line):
            continue
        shared = None if _goes_on(prefix, other) else _last_shared(record, other, prefix)
        if shared is not None:
            tokens = min(shared.tokens, other.prompt_tokens)
            others.append(structs.replace(other, turn=shared.turn, mark=shared.mark, prompt_tokens=tokens))
        elif _goes_on(prefix, other):
            others.append(other)
    return others


def _next_trail(
    record: Record | None, prefix: Prefix, line: Line, *, answers: bool
) -> tuple[bytes, list[Checkpoint]]:
    """With which tools the trail is measured, and what of it this request shares, with its own end.

    A request with its tools cut down leaves the trail of the whole list as it is; another list begins a new one.
    """
    key = tools_key(line)
    trail = _kept_trail(record, prefix, line) if record is not None else []
    if record is not None and record.measured != key:
        if line.narrowed:
            return record.measured, trail
        trail = []
    if record is not None and record.measured == key:
        trail += _read_checkpoint(record.lines[0], prefix, line, trail)
    if answers and line.prompt_tokens:
        trail.append(Checkpoint(line.turn, line.mark, line.prompt_tokens))
    return key, trail


def _kept_trail(record: Record, prefix: Prefix, line: Line) -> list[Checkpoint]:
    """The trail as far as the request has the same messages and goes out with the same thoughts."""
    parted = first_difference(record.lines[0].thoughts, line.thoughts)
    return [one for one in record.trail if _goes_on(prefix, one) and (parted is None or one.turn <= parted)]


def _read_checkpoint(home: Line, prefix: Prefix, line: Line, trail: list[Checkpoint]) -> list[Checkpoint]:
    """Where the turn that the last request got has no checkpoint in this one's history (a system message before
    it came or went), what was read of that request stands up to there."""
    newest = len(prefix.turns) - 1
    if not line.read_tokens or home.turn != newest or (trail and trail[-1].turn == newest):
        return []
    tokens = min(_to_read(line.read_tokens), home.prompt_tokens)
    return [Checkpoint(newest, prefix.mark(newest), tokens)]
