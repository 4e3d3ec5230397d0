"""How long a month's report takes over a ledger of five million requests.

    python bench/ledger.py [--rows N] [--keep DIRECTORY] [--must-s S] [--tags] [--json FILE]

The rows go through the ledger's own triggers into SQLite, spread over a month and fifty keys. A key keeps to its
habits (one target, now and then another; one effort or two; one model or two), as programs do: that decides how
many hourly sums there are, and they are counted. Reports by fixed dimensions are measured as `kimi-pricing report`
asks for them, the day's sums made as the gateway makes them; --tags adds one that has to read the rows.
"""

import argparse
import contextlib
import json
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pricing.ledger.store import Store

START_S: Final = 1_793_491_200
"""2026-11-01T00:00:00Z."""
MONTH_S: Final = 30 * 86_400
ROWS_AT_ONCE: Final = 50_000
REPEATS: Final = 5
TAG: Final = "tag:project"
REPORTS: Final[tuple[tuple[str, ...], ...]] = (
    (),
    ("key",),
    ("day", "model"),
    ("day", "key", "model", "target"),
    ("hour", "status"),
    ("day", "key", "model", "target", "tier", "effort", "route", "status"),
)

# `h` is the number of the row, stirred; every column takes its own bits of it. Output tokens are 200 to 4,000, the
# prompt is 2,000 to 65,000 tokens of which most are read from the cache.
_ROWS: Final = """
WITH RECURSIVE number(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM number WHERE i + 1 < :end),
stirred AS (SELECT i, (i * 2654435761 + 12345) % 4294967296 AS h FROM number),
drawn AS (
  SELECT i, :start + (i * 1.0 * :month / :rows) AS began, h,
    2000 + (h / 64) % 63000 AS prompt, 200 + (h / 4096) % 3800 AS output, (h / 16) % 100 AS chance,
    (h / 1048576) % 100 AS luck, ((h / 128) % 50) * ((h / 8192) % 50) / 50 AS key
  FROM stirred
),
habits AS (
  SELECT *, CASE WHEN key % 5 = 0 AND h % 2 THEN 1 ELSE 0 END AS fast,
    CASE WHEN key % 3 = 0 AND h % 4 = 0 THEN (key + 1) % 4 ELSE key % 4 END AS wish
  FROM drawn
)
INSERT INTO kimi_requests (
  request_id, started_at, hour, key, route, target, model, tier, effort, ttl, status, rank, owner, lease_until,
  prompt_tokens, cached_tokens, write_5m_tokens, write_1h_tokens, completion_tokens, reasoning_tokens,
  cost_nano, cost_source, estimated, assumed, prefix, data, cache_loss)
SELECT printf('kr_%026d', i), began, CAST(began / 3600 AS INTEGER), 'team-' || key, 'kimi-k3.1-pro',
  CASE WHEN luck < 3 THEN 'openrouter' WHEN key % 4 = 0 THEN 'vllm-a' ELSE 'moonshot' END,
  CASE WHEN fast THEN 'kimi-k3.1-pro-highspeed' ELSE 'kimi-k3.1-pro' END,
  CASE WHEN fast THEN 'highspeed' ELSE 'standard' END,
  CASE wish WHEN 0 THEN 'low' WHEN 1 THEN 'high' WHEN 2 THEN 'max' ELSE 'unset' END,
  CASE WHEN h % 2 THEN '5m' ELSE '' END,
  CASE WHEN chance < 94 THEN 'ok' WHEN chance < 97 THEN 'client_disconnected' WHEN chance < 99 THEN 'error'
    ELSE 'incomplete' END,
  2, '', 0, prompt, prompt * 3 / 4, prompt / 5, 0, output, output / 2,
  prompt * 3 / 4 * 200 + (prompt - prompt * 3 / 4) * 2000 + output * 10000, 'card', chance >= 97, h % 3 = 0, '',
  printf('{"request_id":"kr_%026d","started_at":%.6f,"key":"team-%d","status":"ok"}', i, began, key),
  CASE WHEN luck >= 94 THEN 'expired' ELSE '' END
FROM habits
"""
_TAGS: Final = """
INSERT INTO kimi_request_tags (request_id, tag, value)
SELECT request_id, 'project', 'p' || (rowid % 40) FROM kimi_requests WHERE rowid % 10 = 0
"""


def build(path: Path, rows: int, progress: Progress) -> None:
    """Makes the ledger and fills it."""
    Store(f"sqlite:///{path}", create=True).close()
    task = progress.add_task("rows", total=rows)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -400000")
        for first in range(0, rows, ROWS_AT_ONCE):
            end = min(first + ROWS_AT_ONCE, rows)
            values = {"first": first, "end": end, "rows": rows, "start": START_S, "month": MONTH_S}
            connection.execute(_ROWS, values)
            progress.update(task, completed=end)
        connection.execute(_TAGS)


def timed(store: Store, by: Sequence[str]) -> dict[str, object]:
    """The median of a few readings, by the clock and of this process alone, and how many groups they have."""
    taken_s, cpu_s, groups = [], [], 0
    for _ in range(REPEATS):
        began, began_cpu = time.perf_counter(), time.process_time()
        groups = len(store.report(by, since=START_S, until=START_S + MONTH_S))
        taken_s.append(time.perf_counter() - began)
        cpu_s.append(time.process_time() - began_cpu)
    seconds = {"seconds": round(statistics.median(taken_s), 4), "cpu_s": round(statistics.median(cpu_s), 4)}
    return {"by": ",".join(by), **seconds, "groups": groups, "fixed": TAG not in by}


def measure(path: Path, progress: Progress, *, with_tags: bool) -> Iterator[dict[str, object]]:
    """A line for each report."""
    store = Store(f"sqlite:///{path}")
    while store.sum_up_day(before=START_S + MONTH_S + 3600):
        pass  # the gateway's drainer does it when a day is over
    reports = [*REPORTS, (TAG,)] if with_tags else list(REPORTS)
    task = progress.add_task("reports", total=len(reports))
    for by in reports:
        yield timed(store, by)
        progress.advance(task)
    store.close()


def main() -> int:
    """The exit code: 1 where a report by fixed dimensions takes too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000, help="requests in the month (default 5000000)")
    parser.add_argument("--keep", type=Path, help="build the ledger there and keep it; one that is there is used")
    parser.add_argument("--must-s", type=float, default=2.0, help="what a report may take (default 2.0)")
    parser.add_argument("--tags", action="store_true", help="also measure a report by a tag, which takes a minute")
    parser.add_argument("--json", type=Path, help="write the figures there as JSON")
    arguments = parser.parse_args()
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with tempfile.TemporaryDirectory(prefix="kimi-bench-") as own, Progress(*columns, console=screen) as progress:
        path = (arguments.keep or Path(own)) / f"month-{arguments.rows}.db"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".unfinished")
            unfinished.unlink(missing_ok=True)
            build(unfinished, arguments.rows, progress)
            unfinished.rename(path)
        figures = list(measure(path, progress, with_tags=arguments.tags))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (sums,) = connection.execute("SELECT count(*) FROM kimi_rollups").fetchone()
    worst_s = max(float(str(figure["seconds"])) for figure in figures if figure["fixed"])
    for figure in figures:
        taken = f"{figure['seconds']:>9} s ({figure['cpu_s']:>7} s CPU)"
        print(f"{taken}  {figure['groups']:>8,} groups  by {figure['by'] or 'nothing'}")
    print(f"{arguments.rows:,} requests in {sums:,} hourly sums")
    verdict = "within" if worst_s <= arguments.must_s else "above"
    print(f"worst by fixed dimensions: {worst_s:.3f} s, {verdict} {arguments.must_s} s")
    if arguments.json:
        about = {
            "rows": arguments.rows,
            "hourly_sums": sums,
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
        }
        arguments.json.write_text(json.dumps({**about, "worst_s": worst_s, "reports": figures}, indent=2) + "\n")
    return 0 if worst_s <= arguments.must_s else 1


if __name__ == "__main__":
    sys.exit(main())
