"""How targets stand, as far as this process knows: what became of the last question to each, since when, and the
version of its engine."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What became of the last question for a target's models."""

    NOT_ASKED = "not_asked"
    ANSWERED = "answered"
    NO_LIST = "no_list"  # it answered, but with no list of models: asked no more
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Standing:
    """A target's state and since when it has been so, in Unix seconds; None before it was asked."""

    state: State = State.NOT_ASKED
    since_s: float | None = None


class Standings:
    """The standing of every target that was asked, by its name and address. Belongs to one event loop."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Standing] = {}
        self._versions: dict[tuple[str, str], str] = {}

    def seen(self, name: str, base_url: str, state: State, at_s: float) -> None:
        """Notes what became of a question that ended at `at_s`; a state that lasts keeps its beginning."""
        if self.of(name, base_url).state is not state:
            self._known[name, base_url] = Standing(state, at_s)

    def of(self, name: str, base_url: str) -> Standing:
        """The standing of a target."""
        return self._known.get((name, base_url), Standing())

    def runs(self, name: str, base_url: str, version: str) -> None:
        """Notes the version of a target's engine; "" where it tells none."""
        self._versions[name, base_url] = version

    def version_of(self, name: str, base_url: str) -> str:
        """The version of a target's engine when it was asked last, "" where it is not known."""
        return self._versions.get((name, base_url), "")
