"""`kimi-pricing` as people and scripts run it: in this process where many runs are needed, else in its own."""

import contextlib
import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from pricing.cli import app
from pricing.ledger.journal import JournalWriter
from pricing.ledger.row import AttemptRecord, LedgerRow, LineRecord
from pricing.ledger.store import Store
from support.ledger_rows import START, ledger_url, open_row, settled_row
from support.processes import run_module


class Done(NamedTuple):
    """What a command said."""

    returncode: int
    stdout: str
    stderr: str


class Shell:
    """A working directory and the command in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, *words: str, expect: int = 0, variables: Mapping[str, str] | None = None) -> Done:
        """Runs the command in this process; the exit code must be the expected one."""
        unset: dict[str, str | None] = {name: None for name in os.environ if name.startswith("KIMI_")}
        with contextlib.chdir(self.directory):
            result = CliRunner().invoke(app, words, env={**unset, **(variables or {})}, prog_name="kimi-pricing")
        return checked(Done(result.exit_code, result.stdout, result.stderr), expect)

    def process(self, *words: str, expect: int = 0, variables: Mapping[str, str] | None = None) -> Done:
        """Runs the command as a process of its own."""
        done = run_module("pricing", *words, directory=self.directory, env=variables)
        return checked(Done(done.returncode, done.stdout, done.stderr), expect)

    def json(self, *words: str) -> Any:
        """What the command prints as JSON."""
        return json.loads(self.run(*words, "--format", "json").stdout)

    def book(self, rows: Iterable[LedgerRow], name: str = "kimi-ledger.db") -> None:
        """Puts rows into a ledger in the directory."""
        store = Store(f"sqlite:///{self.directory / name}", create=True)
        store.upsert(list(rows))
        store.close()


def checked(done: Done, expect: int) -> Done:
    """The same, if the exit code is the expected one and nothing went wrong inside."""
    assert done.returncode == expect, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell in an empty directory."""
    return Shell(tmp_path)


def test_the_report_object_has_exactly_its_names_and_exact_money(shell: Shell) -> None:
    rows = [settled_row(f"r{number}") for number in range(1000)]
    shell.book(
        [
            *rows,
            settled_row("e", cost_nano=1_000, estimated=True),
            settled_row("s", cost_nano=20_000, assumed=True),
            settled_row("u", cost_nano=None, cost_source="unpriced"),
        ]
    )
    report = json.loads(shell.process("report", "--by", "day,key", "--format", "json").stdout)
    assert list(report) == [
        "total_usd",
        "measured_usd",
        "estimated_usd",
        "assumed_usd",
        "unpriced_requests",
        "ledger",
        "as_of",
        "rows",
    ]
    assert (report["total_usd"], report["measured_usd"]) == ("0.011421", "0.0114")
    assert (report["estimated_usd"], report["assumed_usd"]) == ("0.000001", "0.00002")
    assert report["unpriced_requests"] == 1
    assert report["ledger"] == ledger_url(shell.directory).replace("ledger.db", "kimi-ledger.db")
    (row,) = report["rows"]
    assert row == {
        "day": "2026-11-30",
        "key": "team-a",
        "requests": 1003,
        "prompt_tokens": 7021,
        "cached_tokens": 7021,
        "write_5m_tokens": None,
        "write_1h_tokens": None,
        "completion_tokens": 1003,
        "reasoning_tokens": None,
        "cost_usd": "0.011421",
        "estimated_usd": "0.000001",
        "assumed_usd": "0.00002",
        "unpriced_requests": 1,
    }


def test_the_report_as_csv_leaves_unknown_empty(shell: Shell) -> None:
    shell.book([settled_row("a", tags={"project": "x, y"}), settled_row("b", cached_tokens=None)])
    printed = shell.run("report", "--by", "tag:project", "--format", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [row["tag:project"] for row in rows] == ["", "x, y"]
    assert [row["cached_tokens"] for row in rows] == ["", "7"]
    assert [row["cost_usd"] for row in rows] == ["0.0000114", "0.0000114"]


def test_the_table_says_what_it_does_not_know(shell: Shell) -> None:
    shell.book(
        [
            settled_row("a", cached_tokens=None),
            settled_row("b"),
            settled_row("c", target="vllm-a", cached_tokens=None, cost_nano=None, cost_source="unpriced"),
            open_row("d", status="unsettled"),
        ]
    )
    table = shell.process("report", "--by", "target").stdout
    assert "\x1b[" not in table
    vllm = next(line for line in table.splitlines() if line.startswith("vllm-a"))
    assert vllm.split() == ["vllm-a", "1", "7", "–", "1", "–", "1"]
    assert "reported by no upstream: write 5m, write 1h, reasoning" in table
    assert "≥ 7" in table
    assert "1 unpriced" in table
    assert "1 unsettled" in table
    assert f"ledger sqlite:///{shell.directory}/kimi-ledger.db; every journal record is in it" in table


def test_journals_of_dead_processes_are_drained_and_records_of_living_ones_counted(shell: Shell) -> None:
    shell.book([settled_row("a")])
    url = f"sqlite:///{shell.directory / 'kimi-ledger.db'}"
    journal = shell.directory / ".kimi-journal"
    dead = JournalWriter(journal, url, max_bytes=1 << 20, fsync=False)
    dead.append_settled(settled_row("b"))
    dead.close()
    living = JournalWriter(journal, url, max_bytes=1 << 20, fsync=False)
    living.append_open(open_row("c"))
    living.append_settled(settled_row("c"))
    table = shell.process("report").stdout
    assert "2 journal records are not in the ledger yet" in table
    done = shell.run("report", "--format", "json")
    assert json.loads(done.stdout)["rows"][0]["requests"] == 2
    assert "2 journal records are not in the ledger yet" in done.stderr
    assert shell.json("show", "c")["status"] == "ok"
    living.close()
    assert shell.json("report")["rows"][0]["requests"] == 3


def test_since_and_until_choose_by_start(shell: Shell) -> None:
    day = 86_400
    shell.book([settled_row(f"r{number}", started_at=START + number * day) for number in range(3)])
    words = ("report", "--by", "day", "--since", "2026-11-30T12:00:00Z", "--until", "2026-12-02")
    assert [row["day"] for row in shell.json(*words)["rows"]] == ["2026-11-30", "2026-12-01"]
    assert "2026-12-02T00:00:00.000Z (not included)" in shell.run(*words).stdout
    assert shell.json("report", "--until", "2020-01-01")["rows"] == []
    assert "no requests" in shell.run("report", "--until", "2020-01-01").stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("report", "--by", "colour"), "--by: a report cannot be grouped by 'colour'; expected day, hour"),
        (("report", "--since", "soon"), "--since: 'soon' is no instant; expected a date"),
        (("report", "--format", "xml"), "table"),
        (("report", "--config", "absent.toml"), "no configuration at absent.toml"),
        (("frobnicate",), "No such command"),
    ],
)
def test_wrong_use_is_exit_2_with_the_remedy(shell: Shell, words: tuple[str, ...], expected: str) -> None:
    shell.book([settled_row("a")])
    assert expected in shell.run(*words, expect=2).stderr


def test_a_missing_ledger_is_exit_2_and_is_not_made(shell: Shell) -> None:
    for words in (("report",), ("show", "a")):
        message = shell.process(*words, expect=2).stderr
        assert f"no ledger at sqlite:///{shell.directory}/kimi-ledger.db" in message
        assert "kimi-gateway serve" in message
        assert "--ledger" in message
    assert list(shell.directory.iterdir()) == []


def test_flag_comes_before_variable_before_file_before_default(shell: Shell) -> None:
    for name in ("kimi-ledger.db", "file.db", "variable.db", "flag.db"):
        shell.book([settled_row("a", key=name)], name)
    config = shell.directory / "other.toml"
    config.write_text('[ledger]\nurl = "sqlite:///file.db"\n')

    def used(*words: str, **variables: str) -> str:
        done = shell.run(*words, "--by", "key", "--format", "json", variables=variables)
        name: str = json.loads(done.stdout)["rows"][0]["key"]
        return name

    variable = {"KIMI_LEDGER_URL": "sqlite:///variable.db"}
    flag = ("--ledger", "sqlite:///flag.db")
    assert used("report") == "kimi-ledger.db"
    assert used("report", "--config", "other.toml") == "file.db"
    assert used("report", KIMI_GATEWAY_CONFIG="other.toml") == "file.db"
    assert used("report", "--config", "other.toml", **variable) == "variable.db"
    assert used("report", *flag, **variable) == "flag.db"
    assert used(*flag, "report", **variable) == "flag.db"
    (shell.directory / "kimi-gateway.toml").write_text('[ledger]\nurl = "sqlite:///file.db"\n')
    assert used("report") == "file.db"
    words = ("report", "--by", "key", "--format", "json")
    assert '"variable.db"' in shell.process(*words, variables=variable).stdout


def test_mistakes_in_the_configuration_name_the_key(shell: Shell) -> None:
    (shell.directory / "kimi-gateway.toml").write_text("[ledger]\nurl = 5\n")
    assert "[ledger] url must be a text" in shell.process("report", expect=2).stderr
    (shell.directory / "kimi-gateway.toml").write_text("ledger]\n")
    assert "is not TOML" in shell.run("report", expect=2).stderr


def full_row() -> LedgerRow:
    """A request with everything that `show` can tell."""
    attempts = [
        AttemptRecord(
            target="vllm-a", dialect="vllm", model="m", start_ms=3, end_ms=40, fault="overloaded",
            message="busy", status=503, maybe_billed=True,
        ),
        AttemptRecord(
            target="moonshot", dialect="moonshot", model="kimi-k3.1-pro", start_ms=60, end_ms=9000,
            first_byte_ms=700, upstream_id="chatcmpl-77", upstream_request_id="trace-5", status=200,
        ),
    ]  # fmt: skip
    lines = [
        LineRecord("input", 5_000, 2_000, 10_000_000),
        LineRecord("cache_read", 80_000, 200, 16_000_000),
        LineRecord("search", 2, 5_000_000, 10_000_000),
        LineRecord("output", 2_000, 10_000, 20_000_000),
    ]
    return settled_row(
        "kr_full", attempts=attempts, lines=lines, cost_nano=56_000_000, table_cost_nano=57_000_000,
        cost_source="upstream", estimated=True, estimate_bound_nano=3_000_000, assumed=True,
        tags={"project": "[red]x\x1b[31m"}, adjusted=["temperature"], thinking="repaired=2", wait_ms=20,
        prompt_tokens=85_000, cached_tokens=80_000, completion_tokens=2_000, reasoning_tokens=1_500,
    )  # fmt: skip


def test_show_tells_the_whole_request(shell: Shell) -> None:
    shell.book([full_row()])
    printed = shell.process("show", "kr_full", variables={"COLUMNS": "200"}).stdout
    for part in (
        "attempt 1: ended, status 503, fault overloaded (busy), may have been billed upstream",
        "attempt 2: ended, status 200, answer chatcmpl-77, upstream request trace-5",
        "0.056 USD (reported by the upstream)",
        "0.057 USD (difference -0.001)",
        "moonshot/kimi-k3.1-pro@2026-10-24 writes=replaces",
        "true cost within ± 0.003 USD",
        "waited 20 ms",
        "project=[red]x�[31m",
        "temperature",
        "repaired=2",
    ):
        assert part in printed
    meters = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line and line[0] != " "}
    assert meters["cache_read"] == ["80,000", "0.20", "0.016"]
    assert meters["search"] == ["2", "0.005", "a", "call", "0.01"]
    assert meters["write_1h"] == ["–", "–", "–"]


@pytest.mark.parametrize("words", [("report", "--by", "day,model,key,target"), ("rates",), ("show", "kr_full")])
def test_tables_fit_a_page_of_80_columns(shell: Shell, words: tuple[str, ...]) -> None:
    rows = [full_row(), *(settled_row(f"r{number}", model="kimi-k3.1-pro-highspeed") for number in range(2))]
    for row in rows:
        row.prompt_tokens, row.cached_tokens, row.write_5m_tokens = 1_234_567_890, 1_234_567_000, 890
    shell.book(rows)
    for columns in ("", "80"):
        table = shell.run(*words, variables={"COLUMNS": columns}).stdout.splitlines()
        notes = ("ledger ", "  official", "  second-hand", "  unverified", "    https", "  In force", "  The ")
        lines = [line for line in table if not line.startswith(notes)]
        assert len(lines) > 4
        assert [line for line in lines if len(line) > 80] == []
        assert [line for line in table if line != line.rstrip()] == []


def test_a_report_that_is_too_wide_for_the_page_is_two_tables(shell: Shell) -> None:
    many = {"prompt_tokens": 12_345_678_901, "cached_tokens": 12_345_678_901, "completion_tokens": 123_456_789}
    shell.book([settled_row(f"r{number}", key=f"team-{number}", **many) for number in range(2)])
    wide = shell.run("report", "--by", "day,model,key,target", variables={"COLUMNS": "200"}).stdout
    narrow = shell.run("report", "--by", "day,model,key,target", variables={"COLUMNS": "80"}).stdout
    assert [wide.count(head) for head in ("cost USD", "prompt", "total")] == [1, 1, 1]
    assert [narrow.count(head) for head in ("cost USD", "prompt", "total")] == [1, 1, 2]
    assert narrow.index("cost USD") < narrow.index("prompt")


def test_a_request_is_found_whatever_the_case_of_its_id(shell: Shell) -> None:
    shell.book([settled_row("kr_01JD9QK6Z3V8X2M4N5P7R9T1W0"), settled_row("MiXed")])
    for name in (
        "kr_01jd9qk6z3v8x2m4n5p7r9t1w0",
        "KR_01JD9QK6Z3V8X2M4N5P7R9T1W0",
        " kr_01JD9QK6Z3V8X2M4N5P7R9T1W0 ",
    ):
        assert shell.json("show", name)["request_id"] == "kr_01JD9QK6Z3V8X2M4N5P7R9T1W0"
    assert shell.json("show", "MiXed")["request_id"] == "MiXed"


def test_both_short_forms_of_help_and_the_version_are_there(shell: Shell) -> None:
    for words in (("-h",), ("report", "-h"), ("tokenizer", "fetch", "-h")):
        assert "Usage: kimi-pricing" in shell.run(*words).stdout
    assert re.fullmatch(r"kimi-pricing \d+\.\d+\.\d+\n", shell.run("--version").stdout)


def test_show_as_json_and_csv_is_the_row_object(shell: Shell) -> None:
    shell.book([full_row()])
    row = shell.json("show", "kr_full")
    assert row["lines"] == {"input": "0.01", "cache_read": "0.016", "search": "0.01", "output": "0.02"}
    assert (row["attempts"], row["cost_usd"], row["table_cost_usd"]) == (2, "0.056", "0.057")
    (line,) = csv.DictReader(io.StringIO(shell.run("show", "kr_full", "--format", "csv").stdout))
    assert list(line) == list(row)
    assert json.loads(line["lines"]) == row["lines"]
    assert (line["write_1h_tokens"], line["estimated"]) == ("", "true")


def test_show_of_an_unknown_request_is_exit_1(shell: Shell) -> None:
    shell.book([settled_row("a")])
    assert "no request kr_none" in shell.run("show", "kr_none", expect=1).stderr


def test_rates_name_price_source_confidence_validity_and_rule(shell: Shell) -> None:
    cards = {card["model"]: card for card in shell.json("rates")["cards"]}
    fast = cards["kimi-k3.1-pro-highspeed"]
    assert (fast["rates"]["input"], fast["rates"]["write_1h"], fast["write_rule"]) == ("4.00", "8.00", "replaces")
    assert (fast["confidence"]["input"], fast["confidence"]["cache_read"]) == ("official", "unverified")
    assert cards["moonshotai/kimi-k3.1-pro"]["rates"]["write_5m"] is None
    assert all(source["checked_on"] for card in cards.values() for source in card["sources"])
    table = shell.process("rates").stdout
    assert "0.20 ?" in table
    assert "replace input" in table
    assert len(shell.json("rates", "--all")["cards"]) > len(cards)
    rows = list(csv.DictReader(io.StringIO(shell.run("rates", "--format", "csv").stdout)))
    assert {row["model"]: row["input_usd"] for row in rows}["kimi-k3.1-pro"] == "2.00"


def test_rates_take_the_users_cards(shell: Shell) -> None:
    folder = shell.directory / "cards"
    folder.mkdir()
    (folder / "own.toml").write_text(
        '[[cards]]\nseller = "moonshot"\nmodel = "kimi-k3.1-pro"\neffective_from = 2026-01-01\n'
        '[cards.rates]\ninput = "1.234"\noutput = "5"\n'
    )
    (shell.directory / "kimi-gateway.toml").write_text('[pricing]\ncards_dir = "cards"\n')
    cards = {card["model"]: card for card in shell.json("rates")["cards"]}
    assert cards["kimi-k3.1-pro"]["rates"]["input"] == "1.234"
    (folder / "own.toml").write_text("[[cards]]\n")
    assert "own.toml" in shell.run("rates", expect=2).stderr


@pytest.mark.parametrize("absent", ["typer", "sqlalchemy", "alembic"])
def test_without_the_servers_parts_it_says_what_to_install(absent: str) -> None:
    script = f"import sys, runpy; sys.modules[{absent!r}] = None; runpy.run_module('pricing', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'kimi-gateway[server]'" in done.stderr
    assert "Traceback" not in done.stderr
