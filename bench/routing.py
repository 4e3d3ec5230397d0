"""What routing by price saves: a fleet's conversations under policy `cost` and under what other routers do.

    python bench/routing.py [--seeds N] [--first-seed N] [--scenario NAME] [--sensitivity] [--json FILE]

Runs in virtual time: emulated targets with real prefix caches and invoices, and the gateway's own planner, warmth
records and queue. Dollars and cache hits are those of the invoices. The parameters stand in `routing_fleet.Fleet`
(the work) and `routing_engine.MIX` and `REPLICAS` (the targets). See docs/routing.md.
"""

import argparse
import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from routing_engine import MIX
from routing_fleet import Fleet
from routing_run import OURS, POLICIES, SCENARIOS, Figures, Scenario, run_seed

FEWER: Final = 0.15
SLOWER: Final = 1.05
_BRIEF: Final = (OURS, "least-busy", "prefix hash", "conversation hash")
_VLLM: Final = MIX[3]
VARIATIONS: Final = (
    Scenario("vLLM at Moonshot's prices", (*MIX[:3], replace(_VLLM, usd=("2.00", "0.20", "10.00")))),
    Scenario(
        "vLLM as fast as Moonshot", (*MIX[:3], replace(_VLLM, first_s=0.6, prefill_per_s=12_000, decode_per_s=55))
    ),
    Scenario("60 % more load", MIX, Fleet(arrive_s=1_500)),
    Scenario("three times as many long pauses", MIX, Fleet(person_share=0.12)),
)
"""One thing is different in each; all else is the mix."""

Found = dict[int, list[Figures]]
"""The figures of a scenario by seed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cost` against the cheapest of the others: fewer dollars as a part of theirs, and times to the first token
    (95th percentile) as a multiple of theirs."""

    other: str
    fewer: float
    slower: float

    @property
    def holds(self) -> bool:
        """It is what was wanted."""
        return self.fewer >= FEWER and self.slower <= SLOWER


def mean(figures: Sequence[Figures], name: str) -> float:
    """The mean over seeds."""
    return statistics.fmean(getattr(one, name) for one in figures)


def by_policy(found: Found) -> Mapping[str, list[Figures]]:
    """The figures of each policy, by seed."""
    policies = [one.policy for one in next(iter(found.values()))]
    return {policy: [runs[at] for _, runs in sorted(found.items())] for at, policy in enumerate(policies)}


def verdict(figures: Mapping[str, Sequence[Figures]]) -> Verdict:
    """Of these seeds together."""
    ours = figures[OURS]
    other = min((policy for policy in figures if policy != OURS), key=lambda policy: mean(figures[policy], "usd"))
    theirs = figures[other]
    fewer = 1 - mean(ours, "usd") / mean(theirs, "usd")
    return Verdict(other, fewer, mean(ours, "ttft_p95_s") / mean(theirs, "ttft_p95_s"))


def verdicts(found: Found) -> Mapping[int, Verdict]:
    """Of each seed alone."""
    return {seed: verdict({one.policy: [one] for one in runs}) for seed, runs in sorted(found.items())}


def worst(found: Found) -> tuple[int, Verdict]:
    """The seed with the least advantage: of those that miss something, else of all, the least saving."""
    return min(verdicts(found).items(), key=lambda item: (item[1].holds, item[1].fewer))


# --- running ----------------------------------------------------------------------------------------------------


def run_all(
    jobs: Sequence[tuple[Scenario, int, Sequence[str]]], workers: int, screen: Console
) -> dict[str, Found]:
    """All jobs, several at a time, with progress."""
    found: dict[str, Found] = {scenario.name: {} for scenario, _, _ in jobs}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen) as progress, ProcessPoolExecutor(workers) as pool:
        task = progress.add_task("runs", total=sum(len(policies) for _, _, policies in jobs))
        running = {pool.submit(run_seed, *job): job for job in jobs}
        for future in as_completed(running):
            scenario, seed, policies = running[future]
            found[scenario.name][seed] = future.result()
            progress.update(task, advance=len(policies), description=f"{scenario.name}, seed {seed}")
    return found


# --- showing ----------------------------------------------------------------------------------------------------


def table_of(name: str, found: Found) -> Table:
    """The means over seeds, a line for each policy; `saved` is what `cost` saves against it."""
    figures = by_policy(found)
    ours, requests = mean(figures[OURS], "usd"), mean(figures[OURS], "requests")
    title = f"{name}: {len(found)} seeds, {requests:,.0f} requests each; first token after p50, p95, mean seconds"
    table = Table(title=title, title_justify="left")
    table.add_column("policy", no_wrap=True)
    for column in ("USD", "saved", "cached", "p50", "p95", "mean", "waited"):
        table.add_column(column, justify="right")
    for policy, runs in figures.items():
        usd = mean(runs, "usd")
        table.add_row(
            policy,
            f"{usd:.2f}",
            "" if policy == OURS else f"{1 - ours / usd:.1%}",
            f"{mean(runs, 'cache_share'):.1%}",
            *(f"{mean(runs, column):.2f}" for column in ("ttft_p50_s", "ttft_p95_s", "ttft_mean_s")),
            f"{mean(runs, 'waited'):.1%}",
            style="bold" if policy == OURS else "",
        )
    return table


def words(name: str, found: Found) -> Iterator[str]:
    """The verdict in words, over all seeds and seed by seed, the worst last."""
    whole = verdict(by_policy(found))
    yield f"{name}: {_said(whole)}; wanted {FEWER:.0%} fewer at no more than {SLOWER:.2f} times: {_held(whole)}"
    for seed, one in verdicts(found).items():
        yield f"  seed {seed}: {_said(one)}"
    seed, one = worst(found)
    yield f"  worst seed: {seed}, {_said(one)}"


def _said(one: Verdict) -> str:
    return f"{one.fewer:.1%} fewer dollars than {one.other}, p95 {one.slower:.2f} times theirs"


def _held(one: Verdict) -> str:
    return "reached" if one.holds else "not reached"


def as_json(found: Found) -> dict[str, Any]:
    """All figures and verdicts of a scenario."""
    whole, (seed, least) = verdict(by_policy(found)), worst(found)
    return {
        "seeds": {str(seed): [one.as_json() for one in runs] for seed, runs in sorted(found.items())},
        "best_other": whole.other,
        "fewer": round(whole.fewer, 4),
        "p95_ratio": round(whole.slower, 4),
        "reached": whole.holds,
        "worst_seed": {
            "seed": seed,
            "other": least.other,
            "fewer": round(least.fewer, 4),
            "p95_ratio": least.slower,
        },
    }


def main() -> None:
    args = arguments()
    scenarios = [one for one in SCENARIOS if args.scenario in ("all", one.name)]
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    jobs: list[tuple[Scenario, int, Sequence[str]]] = [
        (scenario, seed, POLICIES) for scenario in scenarios for seed in seeds
    ]
    if args.sensitivity:
        jobs += [(scenario, seed, _BRIEF) for scenario in VARIATIONS for seed in seeds[:2]]
    found = run_all(jobs, args.workers, Console(stderr=True))
    screen = Console()
    for name, by_seed in found.items():
        screen.print(table_of(name, by_seed))
        for line in words(name, by_seed):
            screen.print(line, highlight=False, soft_wrap=True)
        screen.print()
    if args.json:
        shown = {name: as_json(by_seed) for name, by_seed in found.items()}
        args.json.write_text(json.dumps(shown, indent=1) + "\n", "utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many (default 5)")
    parser.add_argument("--first-seed", type=int, default=1, help="from this one on (default 1)")
    parser.add_argument("--scenario", choices=("all", *(one.name for one in SCENARIOS)), default="all")
    parser.add_argument("--sensitivity", action="store_true", help="also vary the mix, two seeds each")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1), help="processes")
    parser.add_argument("--json", type=Path, help="write all figures there too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
