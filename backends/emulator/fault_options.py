"""What can be said about a kind of fault in a fault file: names, types, ranges and defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from backends.emulator.exchange import Exchange
from backends.emulator.player import Script
from backends.emulator.script_parts import PHASES

Value = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` also gives its type; `choices` are the words of a string, `least` and `most` the range
    of a number. A flag whose default is None is as the dialect does."""

    default: Value
    about: str
    choices: tuple[str, ...] = ()
    least: float = 0
    most: float = 10**12

    def mistake(self, value: Any) -> str:
        """What is wrong with a value; empty where nothing is."""
        match self.default:
            case bool() | None:
                return "" if isinstance(value, bool) else "must be true or false"
            case str():
                if not isinstance(value, str):
                    return "must be a string"
                return (
                    f"must be one of {', '.join(self.choices)}"
                    if self.choices and value not in self.choices
                    else ""
                )
            case int():
                return self._number_mistake(value, whole=True)
            case float():
                return self._number_mistake(value, whole=False)

    def _number_mistake(self, value: Any, *, whole: bool) -> str:
        fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if fits and self.least <= value <= self.most:
            return ""
        return f"must be {'a whole number' if whole else 'a number'} from {self.least:g} to {self.most:g}"


class Options:
    """The options of one rule, defaults filled in."""

    def __init__(self, known: Mapping[str, Option], given: Mapping[str, Value]) -> None:
        self._values: dict[str, Any] = {name: given.get(name, option.default) for name, option in known.items()}

    def flag(self, name: str, dialect: bool = False) -> bool:
        """A flag; `dialect` where it was left to the dialect."""
        value = self._values[name]
        return dialect if value is None else bool(value)

    def count(self, name: str) -> int:
        """A whole number."""
        return int(self._values[name])

    def seconds(self, name: str) -> float:
        """A number with a fraction."""
        return float(self._values[name])

    def word(self, name: str) -> str:
        """A string."""
        return str(self._values[name])


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. `apply` gives the faulty answer, or None where the answer has nothing to which this can be
    done: then the next rule has its turn."""

    about: str
    apply: Callable[[Exchange, Script, Options], Script | None]
    options: Mapping[str, Option]


def phase_option(default: str, choices: tuple[str, ...] = PHASES) -> Option:
    """Where in the answer it happens."""
    return Option(default, "where in the answer it happens", choices)


STATUS: Final = Option(500, "the status", least=400, most=599)
RETRY: Final[Mapping[str, Option]] = {
    "retry_after_s": Option(0, "how long the client is told to wait; 0: it is not told", most=10**6),
    "retry_form": Option(
        "header",
        "how it is told: Retry-After in seconds or as a date, retry-after-ms, or in the message",
        ("header", "date", "ms", "text"),
    ),
}
