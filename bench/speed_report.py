"""Figures of `bench/speed.py`: medians and ratios, the tables, what a change may not worsen."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from speed_measures import FIGURES, Figure, Figures
from speed_subjects import DIRECT, GATEWAY

FIRST_PEER: Final = "sglang-router"
_KEPT: Final = ("rps_64", "cpu_us_64", "chunk_cpu_us", "body_4mb_ms", "memory_mb", "start_s")
"""The figures whose ratios the regression file holds: to the first peer, and to the upstream alone."""
_TOLERANCE: Final = 0.2
_WAYS: Final = "Ways to run the gateway, 64 connections; × in times of the first, 2 workers should be ≥ ×1.6"


@dataclass(frozen=True, slots=True)
class Target:
    """One line of what is promised: of the gateway's figure, or of its ratio to the first peer's."""

    figure: str
    must: float
    goal: float
    is_ratio: bool = True


TARGETS: Final = (
    Target("rps_64", 1.0, 1.2),
    Target("chunk_cpu_us", 1.25, 1.0),
    Target("body_4mb_ms", 2.0, 1.3),
    Target("loop_p999_ms", 20, 10, is_ratio=False),
    Target("memory_mb", 200, 150, is_ratio=False),
    Target("stream_kb", 40, 40, is_ratio=False),
    Target("health_ms", 1000, 1000, is_ratio=False),
)


@dataclass(slots=True)
class Results:
    """Figures by subject, a list by round; `absent` says why who is missing is, `failed` what went wrong."""

    rounds: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def add(self, measure: str, subject: str, figures: Figures) -> None:
        """The figures of one round, which may be none."""
        self.rounds.setdefault(subject, {}).setdefault(measure, []).append(figures)

    def values(self, subject: str, figure: str) -> list[float | None]:
        """A figure's values by round; what the upstream alone takes is subtracted where it is an added one."""
        found = self._raw(subject, figure)
        if not FIGURES[figure].added or subject == DIRECT:
            return found
        return [
            None if own is None or bare is None else own - bare
            for own, bare in zip(found, self._raw(DIRECT, figure), strict=False)
        ]

    def _raw(self, subject: str, figure: str) -> list[float | None]:
        for rounds in self.rounds.get(subject, {}).values():
            if any(figure in one for one in rounds):
                return [one.get(figure) for one in rounds]
        return []

    def median(self, subject: str, figure: str) -> float | None:
        """The median of the rounds that have one."""
        found = [value for value in self.values(subject, figure) if value is not None]
        return statistics.median(found) if found else None

    def ratio(self, figure: str, other: str, own: str = GATEWAY) -> float | None:
        """The median of the rounds' ratios; None where fewer than half of them have one."""
        pairs = list(zip(self.values(own, figure), self.values(other, figure), strict=False))
        found = [mine / theirs for mine, theirs in pairs if mine is not None and theirs is not None and theirs > 0]
        return statistics.median(found) if pairs and 2 * len(found) >= len(pairs) else None


def _shown(value: float | None, figure: Figure) -> str:
    return "–" if value is None else f"{value:,.{figure.digits}f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f" ×{ratio:.2f}"


def main_table(results: Results, names: Sequence[str], title: str, scale: Mapping[str, int]) -> Table:
    """Every figure of everybody; beside a peer's stands the gateway's in times of it."""
    table = Table("", *names, title=title, caption="×: the gateway's figure in times of this one, round by round")
    for name, figure in FIGURES.items():
        cells = [_shown(results.median(subject, name), figure) for subject in names]
        if all(cell == "–" for cell in cells):
            continue
        for place, subject in enumerate(names):
            if subject not in (GATEWAY, DIRECT):
                cells[place] += _times(results.ratio(name, subject))
        table.add_row(figure.label.format(**scale), *cells)
    return table


def targets_table(results: Results, scale: Mapping[str, int]) -> Table:
    """What is promised, and whether it holds."""
    table = Table("", "gateway", FIRST_PEER, "ratio", "must", "goal", "", title="What is promised")
    for target in TARGETS:
        figure, own = FIGURES[target.figure], results.median(GATEWAY, target.figure)
        ratio = results.ratio(target.figure, FIRST_PEER)
        judged = ratio if target.is_ratio else own
        sign = "≥" if figure.better == "higher" else "≤"
        unit = "× " if target.is_ratio else ""
        table.add_row(
            figure.label.format(**scale),
            _shown(own, figure),
            _shown(results.median(FIRST_PEER, target.figure), figure),
            _times(ratio).strip() or "–",
            f"{sign} {unit}{target.must:g}",
            f"{sign} {unit}{target.goal:g}",
            verdict(judged, target, figure),
        )
    return table


def verdict(judged: float | None, target: Target, figure: Figure) -> str:
    """goal, must or missed; not measured where there is nothing to judge."""
    if judged is None:
        return "not measured"
    sign = 1 if figure.better == "higher" else -1
    if sign * judged >= sign * target.goal:
        return "goal"
    return "must" if sign * judged >= sign * target.must else "MISSED"


def variants_table(results: Results, names: Sequence[str]) -> Table:
    """The ways to run the gateway, in times of the first."""
    table = Table("", *names, title=_WAYS)
    for name in ("rps_64", "p99_ms_64", "cpu_us_64"):
        row = []
        for subject in names:
            times = _times(results.ratio(name, names[0], subject)) if subject != names[0] else ""
            row.append(_shown(results.median(subject, name), FIGURES[name]) + times)
        table.add_row(FIGURES[name].label, *row)
    return table


def parts_table(parts: Mapping[str, Any]) -> Table:
    """What `bench/parts.py` found."""
    table = Table("", "µs", title="µs of CPU of a request in process, by part")
    for name, cost_us in parts["parts"].items():
        table.add_row(name, f"{cost_us:,.1f}")
    return table


def kept_ratios(results: Results) -> dict[str, float]:
    """What the regression file holds, by figure and to whom."""
    found: dict[str, float] = {}
    for name in _KEPT:
        for other in (FIRST_PEER, DIRECT):
            ratio = results.ratio(name, other)
            if ratio is not None and not (other == DIRECT and FIGURES[name].added):
                found[f"{name}/{other}"] = round(ratio, 3)
    return found


def write_baseline(results: Results, path: Path, about: Mapping[str, Any]) -> None:
    """Makes what was measured now what a change may not worsen."""
    data = {"about": dict(about), "tolerance": _TOLERANCE, "ratios": kept_ratios(results)}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")


def worsened(results: Results, path: Path) -> list[str]:
    """The ratios that are worse than the regression file allows; what was not measured now is left out."""
    baseline = json.loads(path.read_text("utf-8"))
    tolerance, now = float(baseline["tolerance"]), kept_ratios(results)
    found = []
    for name, before in baseline["ratios"].items():
        if name not in now:
            continue
        is_higher = FIGURES[name.partition("/")[0]].better == "higher"
        bound = before * (1 - tolerance) if is_higher else before * (1 + tolerance)
        if now[name] < bound if is_higher else now[name] > bound:
            sign = "at least" if is_higher else "at most"
            found.append(f"{name}: {now[name]:.2f}, was {before:.2f}, {sign} {bound:.2f} is allowed")
    return found


def say(results: Results, tables: Sequence[Table]) -> None:
    """Prints the tables, who is absent and what failed."""
    console = Console(width=None if Console().is_terminal else 160)
    for table in tables:
        console.print(table)
    for name, why in results.absent.items():
        console.print(f"{name} is absent: {why}", markup=False)
    for line in results.failed:
        console.print(f"failed: {line}", markup=False)
