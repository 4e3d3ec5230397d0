"""`kimi-pricing reconcile` as people and scripts run it, and the bills that it reads."""

import csv
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from backends.emulator.app import Emulator, EmulatorConfig
from pricing.ledger.row import AttemptRecord, LedgerRow
from pricing.reconcile.bills import (
    BillError,
    days,
    read_csv,
    read_generations,
    read_invoice,
    read_mapping,
    read_readings,
)
from pricing.reconcile_source import read_source
from support.asgi import serve
from support.ledger_rows import START, open_row, settled_row
from support.pricing_cli import book_rows, help_examples, pricing_json, run_pricing, too_wide

GENERATION: dict[str, Any] = {
    "id": "gen-1",
    "total_cost": 0.0000114,
    "created_at": "2026-11-30T12:00:00.5Z",
    "model": "moonshotai/kimi-k3.1-pro",
    "is_byok": False,
    "upstream_inference_cost": 0.5,
    "native_tokens_prompt": 7,
    "native_tokens_completion": 1,
    "native_tokens_cached": 7,
}
MAP = "request_id=id,cost=amount"


def invoice_line(name: str, usd: str = "0.0000114", **fields: Any) -> dict[str, Any]:
    counts = {"input": 0, "cache_read": 7, "write_5m": 0, "write_1h": 0, "output": 1}
    return {"id": f"chatcmpl-{name}", "model": "kimi-k3.1-pro", "ttl": "", **counts, "usd": usd, **fields}


def write_invoice(directory: Path, *lines: dict[str, Any]) -> str:
    invoice = {"total_usd": "0", "lines": list(lines), "folded": {"lines": 0, "usd": "0"}}
    (directory / "invoice.json").write_text(json.dumps(invoice), "utf-8")
    return "invoice.json"


def openrouter_row(name: str, number: int, **fields: Any) -> LedgerRow:
    one = AttemptRecord(
        target="openrouter", dialect="openrouter", model="m", start_ms=0, upstream_id=f"gen-{number}", status=200
    )
    return settled_row(name, target="openrouter", attempts=[one], **fields)


def test_an_invoice_that_agrees_is_exit_0_and_one_that_does_not_is_exit_1(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a"), settled_row("b")])
    name = write_invoice(tmp_path, invoice_line("a"), invoice_line("b"))
    found = pricing_json(tmp_path, "reconcile", "--invoice", name)
    assert (found["explained"], found["difference_usd"], found["rows"]) == (True, "0", [])
    assert {one["class"]: one["findings"] for one in found["classes"] if one["findings"]} == {"equal": 2}
    write_invoice(tmp_path, invoice_line("a"), invoice_line("b", "0.0000314", output=3), invoice_line("z", "1"))
    found = pricing_json(tmp_path, "reconcile", "--invoice", name, expect=1)
    assert (found["explained"], found["ledger_usd"], found["bill_usd"]) == (False, "0.0000228", "1.0000428")
    assert (found["difference_usd"], found["not_explained_usd"]) == ("1.00002", "1.00002")
    other, unknown = found["rows"]
    assert (other["class"], other["request_id"], other["bill_id"]) == ("priced_differently", "b", "chatcmpl-b")
    assert other["meters"] == [{"meter": "output", "ledger": 1, "bill": 3, "usd": "0.00002"}]
    assert (unknown["class"], unknown["request_id"], unknown["ledger_usd"]) == ("unexplained", None, None)
    assert pricing_json(tmp_path, "reconcile", "--invoice", name, "--within", "1.1")["explained"] is True


def test_the_table_shows_every_row_that_nothing_explains(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a"), settled_row("b"), open_row("n", status="error", cost_nano=0)])
    name = write_invoice(tmp_path, invoice_line("b", "0.0000314", output=3), invoice_line("z", "1"))
    printed = run_pricing(tmp_path, "reconcile", "--invoice", name, expect=1).stdout
    assert too_wide(printed) == []
    for words in (
        "priced differently: b (ok)",
        "  output: ledger 1, bill 3 tokens: 0.00002 USD",
        "unexplained: a (ok)",
        "  measured and booked, and not on the bill",
        "unexplained: bill chatcmpl-z",
        "not explained: 1.0000314 USD, signs left out",
        "1 requests cost nothing and are not on the bill",
    ):
        assert words in printed
    (total,) = [line.split() for line in printed.splitlines() if line.startswith("total")]
    assert total == ["total", "3", "0.0000228", "1.0000314", "+1.0000086"]


def test_csv_has_a_line_for_everything_that_is_not_equal(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a"), settled_row("b")])
    name = write_invoice(tmp_path, invoice_line("a"))
    printed = run_pricing(tmp_path, "reconcile", "--invoice", name, "--format", "csv", expect=1).stdout
    (row,) = csv.DictReader(io.StringIO(printed))
    assert (row["class"], row["request_id"], row["difference_usd"]) == ("unexplained", "b", "-0.0000114")


def test_the_invoice_of_a_running_emulator_is_read_from_its_address(tmp_path: Path) -> None:
    book_rows(tmp_path, [])
    with serve(Emulator(EmulatorConfig())) as url:
        found = pricing_json(tmp_path, "reconcile", "--invoice", f"{url}/emulator/invoice")
        assert found["against"] == f"0 lines of {url}/emulator/invoice"
        said = run_pricing(tmp_path, "reconcile", "--invoice", f"{url}/nowhere", expect=2).stderr
        assert "answered 404" in said
    said = run_pricing(tmp_path, "reconcile", "--invoice", f"{url}/emulator/invoice", expect=2).stderr
    assert "does not answer" in said


@pytest.mark.parametrize("address", ["https://127.0.0.1/x", "http://example.com/x", "http://127.0.0.1.nip.io/x"])
def test_only_this_machine_is_asked(address: str) -> None:
    with pytest.raises(BillError, match="is not on this machine; download it"):
        read_source(address)


def test_generations_are_matched_by_id_and_other_targets_are_not_missed(tmp_path: Path) -> None:
    book_rows(tmp_path, [openrouter_row("a", 1), openrouter_row("b", 2), settled_row("m")])
    second = {**GENERATION, "id": "gen-2", "is_byok": True, "total_cost": "0.025"}
    text = "\n".join([json.dumps({"data": GENERATION}), "", json.dumps(second)])
    (tmp_path / "g.jsonl").write_text(text, "utf-8")
    found = pricing_json(tmp_path, "reconcile", "--openrouter", "g.jsonl", expect=1)
    (row,) = found["rows"]
    assert (row["request_id"], row["bill_usd"], row["class"]) == ("b", "0.525", "priced_differently")
    assert found["classes"][0]["findings"] == 1


def test_a_request_after_the_last_record_is_not_missed_and_one_between_is(tmp_path: Path) -> None:
    rows = [openrouter_row("a", 1), openrouter_row("b", 2, started_at=START + 60)]
    book_rows(tmp_path, [*rows, openrouter_row("c", 3, started_at=START + 3600)])
    later = {**GENERATION, "id": "gen-3", "created_at": "2026-11-30T13:00:01Z"}
    (tmp_path / "g.jsonl").write_text(json.dumps(GENERATION), "utf-8")
    assert pricing_json(tmp_path, "reconcile", "--openrouter", "g.jsonl")["explained"] is True
    (tmp_path / "g.jsonl").write_text(f"{json.dumps(GENERATION)}\n{json.dumps(later)}", "utf-8")
    found = pricing_json(tmp_path, "reconcile", "--openrouter", "g.jsonl", expect=1)
    assert [row["request_id"] for row in found["rows"]] == ["b"]
    until = ("--until", "2026-11-30T12:00:30Z")
    assert pricing_json(tmp_path, "reconcile", "--openrouter", "g.jsonl", *until)["explained"] is True


def test_a_csv_bill_is_matched_by_its_mapped_columns(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a"), settled_row("b", target="other")])
    (tmp_path / "bill.csv").write_text("id,amount,note\na,$0.00001,x\n", "utf-8")
    found = pricing_json(tmp_path, "reconcile", "--csv", "bill.csv", "--map", MAP, "--target", "moonshot")
    assert [row["class"] for row in found["rows"]] == ["rounding"]
    found = pricing_json(tmp_path, "reconcile", "--csv", "bill.csv", "--map", MAP, expect=1)
    assert [row["class"] for row in found["rows"]] == ["rounding", "unexplained"]


def test_a_csv_bill_without_ids_is_held_day_by_day(tmp_path: Path) -> None:
    rows = [settled_row(f"r{at}", started_at=START + 86_400 * at, cost_nano=2 * 10**9) for at in range(3)]
    book_rows(tmp_path, rows)
    (tmp_path / "d.csv").write_text("day,total\n2026-11-30,1.50\n2026-11-30,0.50\n2026-12-01,3\n", "utf-8")
    found = pricing_json(tmp_path, "reconcile", "--csv", "d.csv", "--map", "cost=total,started_at=day", expect=1)
    (row,) = found["rows"]
    assert (row["class"], row["bill_id"]) == ("unexplained", "2026-12-01T00:00:00Z/2026-12-02T00:00:00Z")
    assert (row["ledger_usd"], row["bill_usd"]) == ("2", "3")


def reading(at: str | None, balance: float, **fields: Any) -> str:
    answer = {"code": 0, "data": {"available_balance": balance}, "scode": "0x0", "status": True, **fields}
    return json.dumps(answer if at is None else {"at": at, **answer})


def test_balances_are_held_against_what_was_booked_between_them(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a", cost_nano=1_500_000_000), openrouter_row("o", 1)])
    lines = [
        reading("2026-11-30T11:00:00Z", 49.5),
        reading("2026-11-30T13:00:00Z", 48.0),
        reading("2026-11-30T14:00:00Z", 97.99, topped_up="50"),
    ]
    (tmp_path / "b.jsonl").write_text("\n".join(lines), "utf-8")
    found = pricing_json(tmp_path, "reconcile", "--balance", "b.jsonl", expect=1)
    (row,) = found["rows"]
    assert (row["bill_id"], row["bill_usd"]) == ("2026-11-30T13:00:00Z/2026-11-30T14:00:00Z", "0.01")
    assert found["classes"][0]["findings"] == 1


def test_two_bare_answers_are_readings_at_the_ends_of_the_period(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a", cost_nano=1_500_000_000)])
    for name, balance in (("before.json", 49.5), ("after.json", 48.0)):
        (tmp_path / name).write_text(reading(None, balance), "utf-8")
    words = ("reconcile", "--balance", "before.json", "--balance", "after.json")
    assert "--since and --until" in run_pricing(tmp_path, *words, expect=2).stderr
    period = ("--since", "2026-11-30T11:00", "--until", "2026-11-30T13:00")
    assert pricing_json(tmp_path, *words, *period)["explained"] is True


def test_wrong_use_is_exit_2_with_the_remedy(tmp_path: Path) -> None:
    book_rows(tmp_path, [])
    write_invoice(tmp_path)
    (tmp_path / "bill.csv").write_text("id,amount\na,1\n", "utf-8")
    for words, expected in (
        ((), "give exactly one of --balance, --openrouter, --csv and --invoice"),
        (("--invoice", "invoice.json", "--csv", "bill.csv"), "give exactly one of"),
        (("--csv", "bill.csv"), "--csv needs --map"),
        (("--invoice", "invoice.json", "--map", MAP), "--map is only for --csv"),
        (("--invoice", "absent.json"), "absent.json cannot be read"),
        (("--csv", "bill.csv", "--map", "cost"), "'cost' is no mapping; write NAME=COLUMN"),
        (("--csv", "bill.csv", "--map", "cost=amount"), "the mapping needs cost=… and request_id=…"),
        (
            ("--csv", "bill.csv", "--map", "cost=amount,request_id=x"),
            "no such column; there are id, amount",
        ),
        (("--invoice", "invoice.json", "--within", "much"), "--within: 'much' is no amount"),
        (("--invoice", "invoice.json", "--within", "-1"), "0 or more was expected"),
    ):
        assert expected in run_pricing(tmp_path, "reconcile", *words, expect=2).stderr


def test_a_bill_that_is_none_says_where_it_is_wrong() -> None:
    for data, expected in (
        (b"{", "the invoice: not JSON"),
        (b"[]", "a JSON object was expected"),
        (b"{}", "no list `lines`"),
        (b'{"lines":[1]}', "lines\\[0\\]: a JSON object"),
        (b'{"lines":[{"id":"a","usd":"x"}]}', "lines\\[0\\].usd: 'x' is no amount"),
        (b'{"lines":[{"id":"a","usd":true}]}', "an amount in dollars was expected"),
        (b'{"lines":[{"id":"a","usd":"NaN"}]}', "'NaN' is no amount"),
        (b'{"lines":[{"id":"a","usd":"1","output":-1}]}', "lines\\[0\\].output: a count"),
    ):
        with pytest.raises(BillError, match=expected):
            read_invoice(data)
    for data, expected in (
        (b"\n{}", "line 2: no `id`"),
        (b'{"id":"g"}', "line 1: total_cost: an amount"),
        (b'{"id":"g","total_cost":1,"created_at":"soon"}', "created_at: 'soon' is no time"),
    ):
        with pytest.raises(BillError, match=expected):
            read_generations(data)
    for data, expected in (
        (b"id,amount\na,\n", "line 2: cost: '' is no amount"),
        (b"id,amount\na,1e\n", "line 2: cost"),
        (b"\xff", "not a CSV file in UTF-8"),
    ):
        with pytest.raises(BillError, match=expected):
            read_csv(data, read_mapping(MAP))


def test_amounts_keep_all_of_their_digits() -> None:
    (line,) = read_generations(b'{"id":"g","total_cost":1.2345678901234567e-05}').lines
    assert line.usd == Decimal("0.000012345678901234567")
    bill = read_csv(b"id,amount\na,0.123456789\nb,1\n", read_mapping(MAP))
    assert (bill.lines[0].usd, bill.step) == (Decimal("0.123456789"), Decimal("0.000000001"))


def test_a_bill_in_whole_dollars_is_not_taken_for_rounded_to_dollars() -> None:
    assert read_csv(b"id,amount\na,5\n", read_mapping(MAP)).step == Decimal("0.01")


def test_counts_of_a_csv_bill_are_disjoint_meters() -> None:
    mapping = read_mapping("request_id=id,cost=c,prompt_tokens=p,cache_read=r,output=o")
    (line,) = read_csv(b"id,c,p,r,o\na,1,100,80,5\n", mapping).lines
    assert line.counts == {"input": 20, "cache_read": 80, "output": 5}


def test_times_are_rfc_3339_or_unix_seconds_or_milliseconds() -> None:
    mapping = read_mapping("cost=c,started_at=t")
    text = b"c,t\n1,2026-11-30T12:00:00.25Z\n1,1796040000.25\n1,1796040000250\n"
    assert {line.started_at for line in read_csv(text, mapping).lines} == {START}
    (day,) = days(read_csv(text, mapping))
    assert (day.charged, day.until - day.since) == (Decimal(3), 86_400)


def test_readings_may_be_a_list_lines_or_files_in_any_order() -> None:
    first, second = reading("2026-11-30T11:00:00Z", 49.5), reading("2026-11-30T12:00:00Z", 49.25)
    listed = f"[{second},\n {first}]".encode()
    by_line = f"{first}\n{second}\n".encode()
    pretty = [json.dumps(json.loads(one), indent=2).encode() for one in (first, second)]
    for files in ([listed], [by_line], pretty):
        (interval,) = read_readings(files, (None, None))
        assert interval.charged == Decimal("0.25")
    with pytest.raises(BillError, match="two readings of the balance are needed"):
        read_readings([first.encode()], (None, None))


def test_every_example_of_its_help_runs(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a"), openrouter_row("o", 1)])
    write_invoice(tmp_path, invoice_line("a"), {**invoice_line("a"), "id": "gen-1"})
    (tmp_path / "generations.jsonl").write_text(json.dumps(GENERATION), "utf-8")
    (tmp_path / "bill.csv").write_text("id,amount\na,0.0000114\no,0.0000114\n", "utf-8")
    (tmp_path / "days.csv").write_text("day,total\n2026-11-30,0.0000228\n", "utf-8")
    readings = (reading("2026-11-30T11:00:00Z", 1.0), reading("2026-11-30T13:00:00Z", 0.9999886))
    (tmp_path / "readings.jsonl").write_text("\n".join(readings), "utf-8")
    examples = list(help_examples(tmp_path, "reconcile"))
    assert len(examples) >= 5
    for words in examples:
        assert run_pricing(tmp_path, *words).stdout
