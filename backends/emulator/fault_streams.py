"""Faults inside a well-formed answer: errors in mid-stream, missing ends, usage that cannot be, broken events."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from backends.emulator.exchange import Exchange, error_step
from backends.emulator.fault_options import STATUS, Kind, Option, Options, phase_option
from backends.emulator.player import Script, Step
from backends.emulator.script_parts import broken, changed_events, is_stream, parted, without
from backends.emulator.wire import done_step, event
from backends.json import Json, JsonObject, as_count, as_list, as_object, encode

_IN_STREAM: Final = ("start", "role", "thought", "text", "finish", "usage")
_HUGE: Final = 10**18
_CUT_MARK: Final = b"data: "


def _error_event(exchange: Exchange, script: Script, options: Options) -> Script | None:
    if not is_stream(script):
        return None
    profile = exchange.profile
    before, _ = parted(script, options.word("phase"))
    tokens = before[-1].tokens if before else 0
    refusal = profile.words.trouble(exchange.trouble("server", status=options.count("status")))
    refusal.message = options.word("message") or refusal.message
    end = (done_step(tokens),) if options.flag("done", profile.done_after_error) else ()
    return broken(script, (*before, error_step(exchange, refusal, tokens), *end))


def _no_finish(exchange: Exchange, script: Script, options: Options) -> Script | None:
    if not is_stream(script):
        return None
    dropped = {"finish", "usage", "done"} - ({"done"} if options.flag("done") else set())
    return broken(script, without(script, *dropped))


def _no_done(exchange: Exchange, script: Script, options: Options) -> Script | None:
    return replace(script, steps=without(script, "done")) if is_stream(script) else None


def _finish(exchange: Exchange, script: Script, options: Options) -> Script | None:
    if not script.billed:
        return None
    reason = options.word("reason") or exchange.profile.bad_finish

    def change(held: JsonObject, step: Step) -> JsonObject | None:
        if step.part not in ("finish", "body"):
            return None
        choices: list[Json] = []
        for choice in map(as_object, as_list(held.get("choices"))):
            named = [name for name in (choice or {}) if name.endswith("finish_reason")]
            choices.append({**(choice or {}), **dict.fromkeys(named, reason)})
        return {**held, "choices": choices}

    return changed_events(script, change)


# --- usage ----------------------------------------------------------------------------------------------------


def _usage(exchange: Exchange, script: Script, options: Options) -> Script | None:
    if not script.billed or not _reports(script):
        return None
    form = options.word("form")
    match form:
        case "missing":
            return changed_events(replace(script, steps=_without_usage_chunk(script)), _drop_usage)
        case "repeated" | "cumulative":
            return _on_many_chunks(script, every=form == "cumulative") if is_stream(script) else None
        case _:
            return changed_events(script, _reporting(_FORMS[form]))


def _reports(script: Script) -> list[JsonObject]:
    """The usage objects of an answer, in their order."""
    found: list[JsonObject] = []

    def look(held: JsonObject, step: Step) -> None:
        for holder in (*map(as_object, as_list(held.get("choices"))), held):
            usage = as_object((holder or {}).get("usage"))
            if usage is not None:
                found.append(usage)

    changed_events(script, look)
    return found


def _without_usage_chunk(script: Script) -> tuple[Step, ...]:
    return without(script, "usage") if is_stream(script) else script.steps


def _drop_usage(held: JsonObject, step: Step) -> JsonObject:
    choices: list[Json] = [
        {name: value for name, value in (as_object(choice) or {}).items() if name != "usage"}
        for choice in as_list(held.get("choices"))
    ]
    return {**{name: value for name, value in held.items() if name != "usage"}, "choices": choices}


def _reporting(form: Callable[[JsonObject], Json]) -> Callable[[JsonObject, Step], JsonObject]:
    """Each usage object as another one."""

    def change(held: JsonObject, step: Step) -> JsonObject:
        made = {**held, "choices": [_with_usage(choice, form) for choice in as_list(held.get("choices"))]}
        usage = as_object(held.get("usage"))
        return made if usage is None else {**made, "usage": form(usage)}

    return change


def _with_usage(choice: Json, form: Callable[[JsonObject], Json]) -> Json:
    held = as_object(choice)
    usage = as_object((held or {}).get("usage"))
    return choice if held is None or usage is None else {**held, "usage": form(usage)}


def _on_many_chunks(script: Script, *, every: bool) -> Script:
    """The last usage on every chunk, counting up; or only, as it is, on the finishing chunk and twice after it."""
    last = _reports(script)[-1]

    def change(held: JsonObject, step: Step) -> JsonObject | None:
        if every or step.part == "finish":
            usage = _so_far(last, step.tokens) if every else last
            return {**held, "usage": usage}
        return None

    changed = changed_events(script, change)
    steps: list[Step] = []
    for step in changed.steps:
        steps += [step, step] if step.part == "usage" and not every else [step]
    return replace(changed, steps=tuple(steps))


def _so_far(usage: JsonObject, tokens: int) -> JsonObject:
    prompt = as_count(usage.get("prompt_tokens")) or 0
    return {**usage, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def _each_number(value: Json, change: Callable[[int], Json]) -> Json:
    """The value with every number in it changed."""
    match value:
        case dict():
            return {name: _each_number(held, change) for name, held in value.items()}
        case list():
            return [_each_number(held, change) for held in value]
        case bool() | str() | None:
            return value
        case number:
            return change(int(number))


def _absurd(usage: JsonObject) -> Json:
    """More cached and more thought than there is, and a sum that is none."""
    prompt, output = as_count(usage.get("prompt_tokens")) or 0, as_count(usage.get("completion_tokens")) or 0
    made = {**usage, "total_tokens": prompt + output + 999}
    for group, name, value in (
        ("prompt_tokens_details", "cached_tokens", prompt * 10 + 1),
        ("completion_tokens_details", "reasoning_tokens", output * 10 + 1),
    ):
        made[group] = {**(as_object(usage.get(group)) or {}), name: value}
    return {**made, "cached_tokens": prompt * 10 + 1} if "cached_tokens" in usage else made


def _nulls(usage: JsonObject) -> Json:
    """Details that are null, and a member that is."""
    made = {name: None if name.endswith("_details") else value for name, value in usage.items()}
    return {**made, "completion_tokens_details": {"reasoning_tokens": None}}


_FORMS: Final[Mapping[str, Callable[[JsonObject], Json]]] = {
    "zero": lambda usage: _each_number(usage, lambda number: 0),
    "absurd": _absurd,
    "huge": lambda usage: _each_number(usage, lambda number: _HUGE),
    "negative": lambda usage: _each_number(usage, lambda number: -number - 1),
    "text": lambda usage: _each_number(usage, str),
    "null": _nulls,
    "empty": lambda usage: {},
}


# --- broken events --------------------------------------------------------------------------------------------


def _malformed(exchange: Exchange, script: Script, options: Options) -> Script | None:
    if not is_stream(script):
        return None
    before, after = parted(script, options.word("phase"))
    tokens = before[-1].tokens if before else 0
    bad = Step(_bad_event(exchange, options), 0.0, tokens, "error")
    return replace(script, steps=(*before, bad, *after))


def _bad_event(exchange: Exchange, options: Options) -> bytes:
    head = exchange.head or {}
    choice: JsonObject = {"index": 0, "delta": {"content": "synthetic"}, "finish_reason": None}
    chunk = encode({**head, "choices": [choice]})
    match options.word("form"):
        case "cut_json":
            return event(chunk[: len(chunk) // 2])
        case "not_json":
            return event(b"upstream connect error")
        case "not_object":
            return event(b"17")
        case "no_choices":
            return event(encode(head))
        case "bad_utf8":
            return event(chunk.replace(b"synthetic", b"syn\xff\xfethetic"))
        case _:
            return event(chunk.replace(b"synthetic", b"x" * options.count("bytes")))


KINDS: Final[Mapping[str, Kind]] = {
    "error_event": Kind(
        "an error in mid-stream, and the stream ends well",
        _error_event,
        {
            "phase": phase_option("text", _IN_STREAM),
            "status": STATUS,
            "message": Option("", "the message instead of the dialect's own"),
            "done": Option(None, "[DONE] follows the error; by default as the dialect does"),
        },
    ),
    "no_finish": Kind(
        "the stream ends well, without a finish reason and without usage",
        _no_finish,
        {"done": Option(False, "[DONE] is sent all the same")},
    ),
    "no_done": Kind("the stream ends well without [DONE]", _no_done, {}),
    "finish": Kind(
        "another finish reason",
        _finish,
        {"reason": Option("", 'the reason; by default the dialect\'s for a failure: "error" or "abort"')},
    ),
    "usage": Kind(
        "usage that is missing, repeated, counted up on every chunk, or cannot be",
        _usage,
        {"form": Option("missing", "what is wrong with it", ("missing", "repeated", "cumulative", *_FORMS))},
    ),
    "malformed": Kind(
        "an event that is none, between the others",
        _malformed,
        {
            "phase": phase_option("text", _IN_STREAM),
            "form": Option(
                "cut_json",
                "what is wrong with it",
                ("cut_json", "not_json", "not_object", "no_choices", "bad_utf8", "giant"),
            ),
            "bytes": Option(17_000_000, "the size of a giant", least=1, most=2**30),
        },
    ),
}
