"""Signs of an engine that is set up wrong or broken, in words for whoever runs it, and which of them are new.

One answer with a sign may be the model's own choice of words; so nothing is refused and nothing is changed for it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from backends.dialect import Dialect, Launch
from backends.sentinel import Sign
from kimi_gateway.core.standing import Standings

SAID_MAX: Final = 4096
"""As many different combinations of target, version and sign are told apart; further ones are not said."""

_NEWER: Final = "a newer version may cure it"


@dataclass(frozen=True, slots=True)
class SignText:
    """What a sign means, and what to do about it."""

    what: str
    remedy: str

    @property
    def line(self) -> str:
        """Both on one line."""
        return f"{self.what}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class _Entry:
    """`flags` gives what an engine has to be started with against it, `otherwise` is what to do where it was, or
    where no flag is known; `between` stands between the two."""

    what: str
    otherwise: str
    flags: Callable[[Launch], str] | None = None
    between: str = "; if it was, "
    level: Literal["info", "warning"] = "warning"


_ENTRIES: Final[Mapping[Sign, _Entry]] = {
    Sign.TOOL_MARKUP: _Entry(
        "a tool call stands in the text, where no client sees it",
        f"its parser gave up: {_NEWER}",
        lambda launch: launch.tools,
    ),
    Sign.TOOL_MARKUP_IN_THOUGHT: _Entry(
        "a tool call stands in the thought, where no client sees it",
        f"its reasoning parser swallowed it: {_NEWER}",
    ),
    Sign.TEMPLATE_MARKUP: _Entry(
        "marks of the chat template stand in the text",
        f"its parser missed an end: {_NEWER}",
        lambda launch: launch.thoughts,
    ),
    Sign.MARKUP_STRIPPED: _Entry(
        "a call that was not wanted stood in the text, and was cut off", "nothing is left to do", level="info"
    ),
    Sign.CALLS_MISSING: _Entry(
        "finish_reason is tool_calls, and there is no call",
        f"its parser lost it: {_NEWER}",
        lambda launch: launch.tools,
    ),
    Sign.STOP_WITH_CALLS: _Entry(
        "there are tool calls, and finish_reason is stop, so agents take the turn for done", _NEWER
    ),
    Sign.EMPTY_ANSWER: _Entry(
        "there is neither text nor call, and finish_reason is stop",
        f"its parser lost the answer: {_NEWER}",
        lambda launch: launch.thoughts,
    ),
    Sign.THINK_TAGS: _Entry(
        "the thought stands in the text, with think tags",
        "set split_think_tags = true for the target",
        lambda launch: launch.thoughts,
        between=", or ",
    ),
    Sign.USAGE_MISSING: _Entry(
        "no usage came, or only half of it, so the cost is an estimate",
        "let stream_options.include_usage reach it, and the last chunk come back",
    ),
    Sign.CACHED_OVER_PROMPT: _Entry(
        "it reports more cached tokens than prompt tokens",
        "nothing is left to do: the counts are clamped",
        level="info",
    ),
}


def flags_against(sign: Sign, launch: Launch) -> str:
    """What an engine has to be started with against a sign, "" where no flag is known."""
    flags = _ENTRIES[sign].flags
    return flags(launch) if flags is not None else ""


def explained(sign: Sign, launch: Launch) -> SignText:
    """A sign in words, with the flags of the engine that showed it."""
    entry, flags = _ENTRIES[sign], flags_against(sign, launch)
    started = f"start it with {flags}{entry.between}" if flags else ""
    return SignText(entry.what, f"{started}{entry.otherwise}")


class EventLog(Protocol):
    """Where the process leaves a line."""

    def event(self, message: str, *, level: Literal["info", "warning", "error"], **fields: object) -> None: ...


class SomeTarget(Protocol):
    """What telling targets apart needs of one."""

    @property
    def name(self) -> str: ...

    @property
    def base_url(self) -> str: ...


@dataclass(slots=True)
class FirstSigns:
    """Says that a target shows a sign, once for each kind and each version of its engine. Belongs to one event
    loop; costs nothing for an answer without a sign."""

    log: EventLog
    standings: Standings
    _said: set[tuple[str, str, Sign]] = field(default_factory=set)

    def seen(self, target: SomeTarget, dialect: Dialect, signs: Iterable[Sign]) -> None:
        """An answer of this target showed these."""
        for sign in sorted(signs):
            version = self.standings.version_of(target.name, target.base_url)
            key = (target.name, version, sign)
            if key in self._said or len(self._said) >= SAID_MAX:
                continue
            self._said.add(key)
            told = explained(sign, dialect.launch)
            self.log.event(
                f"target {target.name} shows {sign} for the first time: {told.line}",
                level=_ENTRIES[sign].level,
                target=target.name,
                sign=str(sign),
                version=version or None,
            )
