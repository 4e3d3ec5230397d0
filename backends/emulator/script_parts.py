"""Where in an answer something can happen, and the answer up to there and from there on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal, get_args

from backends.emulator.player import Script, Step
from backends.emulator.wire import event
from backends.json import JsonObject, as_object, decode, encode

Phase = Literal["start", "head", "role", "thought", "text", "finish", "usage", "done"]
PHASES: Final[tuple[str, ...]] = get_args(Phase)
"""Before the status line; after status and headers; after the role chunk; in the middle of the thought; in the
middle of the text or calls; after the finishing chunk; after the usage; after `[DONE]`. In an unstreamed answer
all from `role` to `usage` are the middle of its body, and `done` is its end."""

_HEAD: Final = Step(b"", part="head")
_EVENT_START: Final = b"data: "
_EVENT_END: Final = b"\n\n"


def is_stream(script: Script) -> bool:
    """Whether the answer is a stream of chunks."""
    return any(step.part == "role" for step in script.steps)


def parted(script: Script, phase: str) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The steps up to a phase and those after it. A part that the answer lacks counts as the one before it."""
    steps = script.steps
    if phase == "start":
        return (), steps
    if phase == "head":
        return (_HEAD,), steps
    if phase == "done" or not steps:
        return steps, ()
    if is_stream(script):
        end = _position([step.part for step in steps], phase)
        return steps[:end], steps[end:]
    *before, body = steps
    middle = len(body.data) // 2
    second = replace(body, data=body.data[middle:], delay_s=0.0)
    return (*before, replace(body, data=body.data[:middle])), (second,)


def _position(parts: list[str], phase: str) -> int:
    """The number of steps up to a phase."""
    role = parts.index("role") + 1
    thoughts = [at for at, part in enumerate(parts) if part == "thought"]
    said = [at for at, part in enumerate(parts) if part in ("text", "call")]
    ends = [at for at, part in enumerate(parts) if part == "finish"]
    match phase:
        case "role":
            return role
        case "thought":
            return _middle(thoughts) if thoughts else role
        case "text":
            return _middle(said) if said else max([role, *(at + 1 for at in thoughts)])
        case "finish":
            return ends[-1] + 1 if ends else len(parts)
        case _:
            usages = [at for at, part in enumerate(parts) if part in ("finish", "usage")]
            return usages[-1] + 1 if usages else len(parts)


def _middle(places: list[int]) -> int:
    return places[(len(places) - 1) // 2] + 1


def broken(script: Script, steps: tuple[Step, ...]) -> Script:
    """The answer with these steps only; charged where they hold something generated."""
    return replace(script, steps=steps, billed=script.billed and bool(steps) and steps[-1].tokens > 0)


def without(script: Script, *parts: str) -> tuple[Step, ...]:
    """The steps but for some parts."""
    return tuple(step for step in script.steps if step.part not in parts)


def changed_events(script: Script, change: Callable[[JsonObject, Step], JsonObject | None]) -> Script:
    """The answer with each of its JSON objects (the chunks, or the body) changed; None leaves one as it is."""
    steps = tuple(_changed(step, change) for step in script.steps)
    headers = script.headers
    if not is_stream(script) and any(name == b"content-length" for name, _ in headers):
        length = str(sum(len(step.data) for step in steps)).encode()
        headers = tuple((name, length if name == b"content-length" else value) for name, value in headers)
    return replace(script, steps=steps, headers=headers)


def _changed(step: Step, change: Callable[[JsonObject, Step], JsonObject | None]) -> Step:
    if step.part in ("done", "comment", "head", "error"):
        return step
    framed = step.data.startswith(_EVENT_START)
    data = step.data.removeprefix(_EVENT_START).removesuffix(_EVENT_END) if framed else step.data
    held = as_object(decode(data))
    made = None if held is None else change(held, step)
    if made is None:
        return step
    return replace(step, data=event(encode(made)) if framed else encode(made))
