"""Metrics of several processes as one: samples of the same name and labels are added up."""

from collections.abc import Iterable
from typing import Final

_SHARED: Final = "kimi_thinking_"
"""What describes a store that all workers share: every one says the same, and the largest is the latest."""
_LEFT: Final = "kimi_budget_remaining_usd"
"""What is left of a budget: the least that a worker knows of is the latest."""
_OWN: Final = "kimi_thinking_repairs"


def merged(texts: Iterable[str]) -> str:
    """The sum of expositions in Prometheus's text format, in the order in which names first occur."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, dict[str, float]] = {}
    for text in texts:
        family = ""
        for line in text.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                known = heads.setdefault(family, [])
                if line not in known:
                    known.append(line)
            elif line:
                series, _, value = line.rpartition(" ")
                _add(samples.setdefault(family, {}), series, float(value))
    out: list[str] = []
    for family, lines in heads.items():
        out += lines
        out += [f"{series} {value!r}" for series, value in samples.get(family, {}).items()]
    return "\n".join(out) + "\n"


def _add(known: dict[str, float], series: str, value: float) -> None:
    if series.startswith(_LEFT):
        known[series] = min(known.get(series, value), value)
    elif _is_shared(series):
        known[series] = max(known.get(series, value), value)
    else:
        known[series] = known.get(series, 0.0) + value


def _is_shared(series: str) -> bool:
    name = series.partition("{")[0]
    return name.startswith(_SHARED) and not name.startswith(_OWN)
