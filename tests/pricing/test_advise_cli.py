"""`kimi-pricing advise-ttl` as people and scripts run it."""

import csv
import io
from pathlib import Path

from pricing.ledger.row import LedgerRow
from support.ledger_rows import START, open_row, settled_row
from support.pricing_cli import book_rows, help_examples, pricing_json, run_pricing, too_wide


def ledger() -> list[LedgerRow]:
    """Three uses of one prefix ten minutes apart, and rows that say nothing."""
    rows = [
        settled_row(f"r{at}", started_at=START + 600 * at, prefix="p", prompt_tokens=1_000_000, cached_tokens=None)
        for at in range(3)
    ]
    return [*rows, settled_row("n"), open_row("o")]


def test_the_object_has_the_optimum_the_saving_and_the_arithmetic(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    found = pricing_json(tmp_path, "advise-ttl", "--what-if", "none")
    assert (found["saving_usd"], found["what_if_saving_usd"], found["uses"]) == ("1.6", "0", 3)
    assert found["not_usable"]["no_prefix"] == 1
    assert found["not_usable"]["under_way"] == 1
    assert len(found["assumptions"]) >= 5
    (group,) = found["groups"]
    assert (group["route"], group["key"], group["best"]) == ("kimi-k3.1-pro", "team-a", "1h")
    assert {choice: value["cost_usd"] for choice, value in group["choices"].items()} == {
        "today": "6",
        "5m": "6",
        "1h": "4.4",
        "none": "6",
    }
    assert group["choices"]["1h"]["arithmetic"] == [
        {
            "seller": "moonshot",
            "model": "kimi-k3.1-pro",
            "meter": meter,
            "tokens": tokens,
            "usd_per_mtok": price,
            "usd": money,
        }
        for meter, tokens, price, money in (
            ("cache_read", 2_000_000, "0.20", "0.4"),
            ("write_1h", 1_000_000, "4.00", "4"),
        )
    ]


def test_the_table_shows_the_sum_and_what_was_assumed(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    printed = run_pricing(tmp_path, "advise-ttl", "--what-if", "5m").stdout
    assert "best: 1h, saves 1.6 USD (6 today, 4.4 then)" in printed
    assert "what if: 5m, saves 0 USD" in printed
    assert "gaps between uses: 0 under 5 min, 2 from there to under 1 h, 0 longer" in printed
    assert "1 not usable: no prefix" in printed
    assert "The lifetime is fixed when a cold prefix is written" in printed
    (best,) = [line.split() for line in printed.splitlines() if line.startswith("1h *")]
    assert best == ["1h", "*", "–", "2,000,000", "–", "1,000,000", "4.4"]
    assert too_wide(printed) == []


def test_csv_has_a_line_per_group(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    printed = run_pricing(tmp_path, "advise-ttl", "--by", "key", "--format", "csv").stdout
    (row,) = csv.DictReader(io.StringIO(printed))
    assert (row["key"], row["best"], row["saving_usd"], row["1h_usd"]) == ("team-a", "1h", "1.6", "4.4")


def test_wrong_use_is_exit_2_with_the_remedy(tmp_path: Path) -> None:
    assert "no ledger" in run_pricing(tmp_path, "advise-ttl", expect=2).stderr
    book_rows(tmp_path, ledger())
    assert (
        "--by: cannot group by 'colour'" in run_pricing(tmp_path, "advise-ttl", "--by", "colour", expect=2).stderr
    )


def test_every_example_of_its_help_runs(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    examples = list(help_examples(tmp_path, "advise-ttl"))
    assert len(examples) >= 4
    for words in examples:
        assert run_pricing(tmp_path, *words).stdout


def test_a_ledger_without_rows_is_no_mistake(tmp_path: Path) -> None:
    book_rows(tmp_path, [])
    assert pricing_json(tmp_path, "advise-ttl")["groups"] == []
    assert "0 usable requests" in run_pricing(tmp_path, "advise-ttl").stdout
