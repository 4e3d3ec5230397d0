"""How fast the gateway is with everything on, beside other gateways on the same machine in the same run.

    python bench/speed.py [--quick] [--only MEASURE]... [--peer NAME]... [--install] [--json FILE] [--check]

A fake upstream, the clients, and who is measured are processes of their own, on loopback. All take turns, round
by round, so that a busy machine is busy for all; figures are medians, a ratio is the median of the rounds'
ratios. CPU is what the system accounts to a tree of processes; for closed loops it includes what requests leave
to be done. `direct` is the upstream without a gateway: "added" is what somebody takes beyond that, and its CPU
is the upstream's own. Absolute figures of a machine that does something else mean nothing, and ratios mean less.

Measures: rps, events, chunks, first, bodies, uploads (side by side); fresh (start-up, memory, /health under
load, each in a new process); variants (workers, state, ledger); stall (bench/stall.py); parts (bench/parts.py).
Exit 1 where the gateway could not be measured, or with --check where a ratio is worse than the regression file
bench/speed_baseline.json allows. `--peer none` measures without peers; --install puts those that are missing
into .venv-bench-NAME.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import speed_wrk
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from speed_measures import QUICK, SHARED, Figures, Measure, Round, Scale, memory, rps
from speed_peers import PEERS, Absent, Peer, install, version_of
from speed_process import HERE, Load, StartError, clients, raise_descriptor_limit, upstream
from speed_report import (
    Results,
    main_table,
    parts_table,
    say,
    targets_table,
    variants_table,
    worsened,
    write_baseline,
)
from speed_subjects import GATEWAY, Starter, Subject, Variant, direct, end, gateway, peer_subject, variants

ROOT: Final = HERE.parent
MEASURES: Final = (*SHARED, "fresh", "variants", "stall", "parts")
BASELINE: Final = HERE / "speed_baseline.json"
BUSY: Final = 0.5
_PART_S: Final = 300.0


@dataclass(slots=True)
class Run:
    """One run: what there is to measure with, and what was found."""

    args: argparse.Namespace
    scale: Scale
    load: Load
    upstream: int
    upstream_pid: int
    directory: Path
    progress: Progress
    results: Results
    places: int = 0

    def place(self) -> Path:
        """A directory that nothing else uses."""
        self.places += 1
        return self.directory / f"p{self.places}"

    def at(self, number: int, scale: Scale | None = None) -> Round:
        return Round(self.load, scale or self.scale, number, self.directory, self.args.wrk)

    def wants(self, measure: str) -> bool:
        return measure in self.args.only

    def start(self, name: str, starter: Starter) -> Subject | None:
        """A running subject; None where it does not start, which is noted."""
        try:
            return starter(self.place())
        except (StartError, Absent, OSError) as err:
            self.results.failed.append(f"{name}: {err}")
            return None

    def figures(self, measure: str, of: Measure, subject: Subject, at: Round) -> None:
        """Measures a subject once, and notes it where that goes wrong."""
        try:
            found: Figures = of(at, subject)
        except StartError as err:
            self.results.failed.append(f"{subject.name}, {measure}, round {at.number + 1}: {err}")
            found = {}
        self.results.add(measure, subject.name, found)


def starters(run: Run, peers: Sequence[Peer]) -> dict[str, Starter]:
    """How the gateway and its peers are started, by name."""
    found: dict[str, Starter] = {GATEWAY: lambda place: gateway(Variant(), run.upstream, place)}
    for peer in peers:
        found[peer.name] = lambda place, peer=peer: peer_subject(  # type: ignore[misc]  # a default binds it
            peer, run.args.peers, run.upstream, place
        )
    return found


def turns(subjects: Sequence[Subject], number: int) -> list[Subject]:
    """The order of a round: who comes first changes from one to the next."""
    at = number % len(subjects)
    return [*subjects[at:], *subjects[:at]]


def take_turns(run: Run, measures: Mapping[str, Measure], subjects: Sequence[Subject], scale: Scale) -> None:
    """Every measure of every subject, round by round."""
    task = run.progress.add_task("", total=scale.rounds * len(measures) * len(subjects))
    for number in range(scale.rounds):
        for name, measure in measures.items():
            for subject in turns(subjects, number):
                run.progress.update(task, description=f"round {number + 1}: {name}, {subject.name}")
                run.figures(name, measure, subject, run.at(number, scale))
                run.progress.advance(task)


def side_by_side(run: Run, makers: Mapping[str, Starter]) -> None:
    """The measures for which all run at the same time."""
    measures = {name: measure for name, measure in SHARED.items() if run.wants(name)}
    if not measures:
        return
    with ExitStack() as stack:
        subjects = [direct(run.upstream, run.upstream_pid)]
        for name, starter in makers.items():
            subject = run.start(name, starter)
            if subject is not None:
                stack.callback(end, subject)
                subjects.append(subject)
        take_turns(run, measures, subjects, run.scale)


def fresh(run: Run, makers: Mapping[str, Starter]) -> None:
    """Start-up and memory, in a new process each time."""
    task = run.progress.add_task("", total=run.scale.fresh_rounds * len(makers))
    for number in range(run.scale.fresh_rounds):
        for name, starter in makers.items():
            run.progress.update(task, description=f"round {number + 1}: fresh, {name}")
            subject = run.start(name, starter)
            if subject is not None:
                run.results.add("start", name, {"start_s": subject.start_s})
                run.figures("memory", memory, subject, run.at(number))
                end(subject)
            run.progress.advance(task)


def ways(run: Run) -> Results:
    """The ways to run the gateway, at 64 connections."""
    own = Run(**{name: getattr(run, name) for name in Run.__slots__ if name != "results"}, results=Results())
    scale = Scale(run.scale.rounds, warm_s=run.scale.warm_s, calls_s=run.scale.calls_s, connections=(64,))
    names = frozenset({"Redis", "PostgreSQL"})
    with variants(run.upstream, run.directory, names) as makers, ExitStack() as stack:
        subjects = []
        for name, starter in makers.items():
            subject = own.start(f"variant {name}", starter)
            if subject is not None:
                stack.callback(end, subject)
                subjects.append(subject)
        take_turns(own, {"rps": rps}, subjects, scale)
    run.results.failed += own.results.failed
    return own.results


def apart(run: Run, script: str, *options: str) -> dict[str, Any] | None:
    """The figures of another script, which writes them as JSON; None where it fails, which is noted."""
    path = run.directory / f"{script}.json"
    command = [sys.executable, str(HERE / script), "--json", str(path), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PART_S, check=False)
    except subprocess.TimeoutExpired:
        run.results.failed.append(f"{script} did not end in {_PART_S:.0f} s")
        return None
    if done.returncode or not path.exists():
        run.results.failed.append(f"{script}: {done.stderr.strip()[-400:]}")
        return None
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def stall(run: Run) -> None:
    """How long the loop stands still beside uploads."""
    options = ["--uploads", str(run.scale.uploads), "--rounds", str(run.scale.stall_rounds)]
    found = apart(run, "stall.py", *options)
    if found is not None:
        run.results.add("stall", GATEWAY, {"loop_p999_ms": found["loop lag, ms"]["p99.9"]})


def measured(run: Run, peers: Sequence[Peer], title: str) -> tuple[list[Table], dict[str, Any]]:
    """The tables, and what goes into the JSON file beside the rounds."""
    makers = starters(run, peers)
    side_by_side(run, makers)
    if run.wants("fresh"):
        fresh(run, makers)
    if run.wants("stall"):
        stall(run)
    scale = {"open": run.scale.open_streams, "twice": 2 * run.scale.open_streams}
    names = [name for name in (GATEWAY, "direct", *makers) if name in run.results.rounds]
    names = list(dict.fromkeys(names))
    tables = [main_table(run.results, names, title, scale), targets_table(run.results, scale)] if names else []
    more: dict[str, Any] = {}
    if run.wants("variants"):
        found = ways(run)
        more["variants"] = found.rounds
        tables.append(variants_table(found, list(found.rounds)))
    if run.wants("parts"):
        parts = apart(run, "parts.py", *(["--quick"] if run.args.quick else []))
        if parts is not None:
            more["parts"] = parts
            tables.append(parts_table(parts))
    return tables, more


def present(args: argparse.Namespace, results: Results) -> dict[Peer, str]:
    """The peers that can be measured, with their versions."""
    found: dict[Peer, str] = {}
    for peer in PEERS:
        if args.peer and peer.name not in args.peer:
            continue
        try:
            if args.install:
                install(peer, args.peers)
            found[peer] = version_of(peer, args.peers)
        except Absent as err:
            results.absent[peer.name] = str(err)
    return found


def main() -> int:
    """The exit code."""
    args = arguments()
    raise_descriptor_limit()
    results = Results()
    screen = Console(stderr=True)
    peers = present(args, results)
    scale = QUICK if args.quick else Scale()
    if args.rounds:
        scale = replace(scale, rounds=args.rounds, fresh_rounds=args.rounds)
    busy = os.getloadavg()[0]
    if busy > BUSY:
        screen.print(f"the machine is busy, its load is {busy:.2f}: look at ratios alone, and not closely")
    versions = {peer.name: version for peer, version in peers.items()}
    about = {
        "load": round(busy, 2),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "closed_loop": args.loop,
        "rounds": scale.rounds,
        "versions": versions,
    }
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    machine = f"load {busy:.2f} on {os.cpu_count()} cores"
    title = f"{machine}, {scale.rounds} rounds, {args.loop} closed loop; {shown or 'no peers'}"
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kimi-speed-")))
        load, (port, pid) = stack.enter_context(clients()), stack.enter_context(upstream())
        progress = stack.enter_context(Progress(*columns, console=screen, transient=True))
        run = Run(args, scale, load, port, pid, directory, progress, results)
        tables, more = measured(run, list(peers), title)
    say(results, tables)
    if args.json:
        data = {
            "about": about,
            "rounds": results.rounds,
            **more,
            "absent": results.absent,
            "failed": results.failed,
        }
        args.json.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return concluded(args, results, about)


def concluded(args: argparse.Namespace, results: Results, about: Mapping[str, Any]) -> int:
    """The exit code, after the regression file was written or compared with."""
    if any(line.startswith(GATEWAY) for line in results.failed):
        return 1
    if args.write_baseline:
        write_baseline(results, BASELINE, about)
    if not args.check:
        return 0
    found = worsened(results, BASELINE)
    for line in found:
        print(f"worse than bench/{BASELINE.name} allows: {line}")
    return 1 if found else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round, 200 streams for 1,000")
    parser.add_argument("--only", action="append", choices=MEASURES, help="this measure; may be given again")
    names = [*(peer.name for peer in PEERS), "none"]
    parser.add_argument("--peer", action="append", choices=names, help="this peer; may be given again")
    parser.add_argument("--peers", type=Path, default=ROOT, help="where .venv-bench-NAME are")
    parser.add_argument("--install", action="store_true", help="install the peers that are missing")
    parser.add_argument("--rounds", type=int, help="so many rounds of everything")
    parser.add_argument(
        "--loop", choices=("own", "wrk"), default="own", help="whose closed loop; see speed_wrk.py"
    )
    parser.add_argument("--json", type=Path, help="write the figures there too, of every round")
    parser.add_argument("--check", action="store_true", help="fail where a ratio has worsened")
    parser.add_argument("--write-baseline", action="store_true", help="make these ratios the ones to keep")
    args = parser.parse_args()
    args.only = args.only or list(MEASURES)
    args.wrk = args.loop == "wrk"
    if args.wrk and not speed_wrk.is_present():
        parser.error("there is no wrk on the path that runs; leave --loop out")
    if args.rounds is not None and args.rounds < 1:
        parser.error("--rounds: at least 1")
    return args


if __name__ == "__main__":
    sys.exit(main())
