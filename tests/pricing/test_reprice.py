"""`kimi-pricing reprice`: both figures are kept, and only what the gateway reckoned itself is reckoned anew."""

import csv
import io
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pricing.ledger.row import AttemptRecord, LedgerRow
from pricing.ledger.store import Store
from pricing.ledger.store.repricings import Repricing
from support.ledger_rows import START, USD, open_row, settled_row
from support.postgres import Postgres
from support.pricing_cli import book_rows, help_examples, pricing_json, run_pricing, too_wide

CARD = """
[[cards]]
seller = "{seller}"
model = "{model}"
effective_from = {start}
[cards.rates]
input = "1.00"
cache_read = "0.10"
output = "5.00"
"""
REPRICED = "0.0000057"
"""Seven cached tokens and one of output at that card; 0.0000114 is booked for them."""


def add_card(
    directory: Path, *, seller: str = "moonshot", model: str = "kimi-k3.1-pro", start: str = "2026-11-01"
) -> Path:
    """A folder with one card at half the prices."""
    folder = directory / "cards"
    folder.mkdir(exist_ok=True)
    name = f"{seller}-{model.replace('/', '-')}.toml"
    (folder / name).write_text(CARD.format(seller=seller, model=model, start=start), "utf-8")
    return folder


def attempt(target: str, dialect: str, model: str) -> AttemptRecord:
    return AttemptRecord(target=target, dialect=dialect, model=model, start_ms=0, end_ms=9, status=200)


def totals(directory: Path, *words: str) -> tuple[str, str]:
    """The total as booked and as repriced."""
    booked = pricing_json(directory, "report", *words)["total_usd"]
    return booked, pricing_json(directory, "report", "--repriced", *words)["total_usd"]


def test_a_dry_run_shows_both_sums_and_writes_nothing(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a"), settled_row("b")])
    add_card(tmp_path)
    found = pricing_json(tmp_path, "reprice", "--cards-dir", "cards")
    assert (found["applied"], found["requests"], found["changed"]) == (False, 2, 2)
    assert (found["booked_usd"], found["repriced_usd"]) == ("0.0000228", "0.0000114")
    assert found["difference_usd"] == "-0.0000114"
    (card,) = found["cards"]
    assert card["booked_at"] == "moonshot/kimi-k3.1-pro@2026-10-24 writes=replaces"
    assert card["card"] == "moonshot/kimi-k3.1-pro@2026-11-01 writes=replaces"
    assert totals(tmp_path) == ("0.0000228", "0.0000228")


def test_applied_costs_stand_beside_the_booked_ones_in_report_and_show(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a"), settled_row("b", started_at=START - 40 * 86_400)])
    add_card(tmp_path)
    run_pricing(tmp_path, "reprice", "--cards-dir", "cards", "--apply")
    assert totals(tmp_path) == ("0.0000228", "0.0000171")  # the older one began before the card
    shown = pricing_json(tmp_path, "show", "a")
    assert (shown["cost_usd"], shown["repriced_usd"]) == ("0.0000114", REPRICED)
    assert shown["repriced_card"].startswith("moonshot/kimi-k3.1-pro@2026-11-01")
    assert "repriced_usd" not in pricing_json(tmp_path, "show", "b")
    assert f"repriced: {REPRICED} USD" in run_pricing(tmp_path, "show", "a").stdout
    assert "repriced costs stand in place" in run_pricing(tmp_path, "report", "--repriced").stdout


def test_the_configuration_names_the_cards_and_a_later_run_takes_back_what_agrees_again(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a")])
    add_card(tmp_path)
    (tmp_path / "kimi-gateway.toml").write_text('[pricing]\ncards_dir = "cards"\n', "utf-8")
    assert pricing_json(tmp_path, "reprice", "--apply")["changed"] == 1
    assert totals(tmp_path) == ("0.0000114", REPRICED)
    (tmp_path / "kimi-gateway.toml").unlink()
    assert pricing_json(tmp_path, "reprice", "--apply")["changed"] == 0
    assert totals(tmp_path) == ("0.0000114", "0.0000114")


def test_reports_by_hour_tag_and_class_follow(tmp_path: Path) -> None:
    book_rows(
        tmp_path,
        [
            settled_row("a", tags={"team": "x"}, estimated=True),
            settled_row("b", tags={"team": "x"}, assumed=True),
            settled_row("c", tags={"team": "y"}),
        ],
    )
    add_card(tmp_path)
    run_pricing(tmp_path, "reprice", "--cards-dir", "cards", "--apply")
    for by in ("hour", "day", "key,model", "tag:team"):
        found = pricing_json(tmp_path, "report", "--repriced", "--by", by)
        classes = [found[f"{name}_usd"] for name in ("measured", "estimated", "assumed")]
        assert classes == [REPRICED] * 3
        assert sum(row["requests"] for row in found["rows"]) == 3
    since = ("--since", "2026-11-30T12:00:00.5Z")
    assert totals(tmp_path, *since) == ("0", "0")


def test_an_unpriced_request_gets_a_price_once_there_is_a_card(tmp_path: Path) -> None:
    unknown = settled_row(
        "u",
        model="kimi-k9",
        upstream_model="kimi-k9",
        cost_nano=None,
        cost_source="unpriced",
        card="",
        attempts=[attempt("moonshot", "moonshot", "kimi-k9")],
    )
    book_rows(tmp_path, [unknown])
    found = pricing_json(tmp_path, "reprice")
    assert (found["requests"], found["left_alone"]["no_card"]) == (0, 1)
    add_card(tmp_path, model="kimi-k9")
    found = pricing_json(tmp_path, "reprice", "--cards-dir", "cards", "--apply")
    assert (found["unpriced_before"], found["repriced_usd"]) == (1, REPRICED)
    report = pricing_json(tmp_path, "report", "--repriced")
    assert (report["total_usd"], report["unpriced_requests"]) == (REPRICED, 0)
    booked = pricing_json(tmp_path, "report")
    assert (booked["total_usd"], booked["unpriced_requests"]) == ("0", 1)
    assert booked["rows"][0]["cost_usd"] is None


@pytest.mark.parametrize(
    ("base_url", "left"),
    [("https://api.moonshot.ai/v1", 0), ("https://api.moonshot.cn/v1", 1)],
    ids=["dollars", "another currency"],
)
def test_a_seller_in_another_currency_is_never_priced_in_dollars(tmp_path: Path, base_url: str, left: int) -> None:
    row = settled_row("u", target="m", cost_nano=None, cost_source="unpriced", card="")
    book_rows(tmp_path, [row])
    (tmp_path / "kimi-gateway.toml").write_text(
        f'[[targets]]\nname = "m"\ndialect = "moonshot"\nbase_url = "{base_url}"\n', "utf-8"
    )
    assert pricing_json(tmp_path, "reprice")["left_alone"]["unknown_seller"] == left


def priced_elsewhere() -> list[LedgerRow]:
    """One row priced by its target, one by its upstream's report."""
    return [
        settled_row("t", target="own", card="target:own", cost_source="target", cost_nano=USD),
        settled_row(
            "u",
            target="openrouter",
            card="openrouter/moonshotai/kimi-k3.1-pro@2026-10-24 writes=replaces",
            cost_source="upstream",
            cost_nano=2 * USD,
            table_cost_nano=11_400,
        ),
    ]


def test_what_a_target_or_an_upstream_priced_is_left_alone_unless_asked_for(tmp_path: Path) -> None:
    book_rows(tmp_path, priced_elsewhere())
    (tmp_path / "kimi-gateway.toml").write_text(
        '[[targets]]\nname = "own"\ndialect = "vllm"\nbase_url = "http://127.0.0.1:1/v1"\n'
        'prices = { input = "2.00", cache_read = "1.00", output = "3.00" }\n',
        "utf-8",
    )
    found = pricing_json(tmp_path, "reprice", "--apply")
    assert (found["requests"], found["left_alone"]["target"], found["left_alone"]["upstream"]) == (0, 1, 1)
    found = pricing_json(tmp_path, "reprice", "--apply", "--also", "target,upstream")
    assert {card["booked_at"]: card["repriced_usd"] for card in found["cards"]} == {
        "target:own": "0.00001",
        "reported by the upstream": "0.0000114",
    }
    assert totals(tmp_path) == ("3", "0.0000214")


def test_what_has_no_end_or_no_use_is_left_alone_and_counted(tmp_path: Path) -> None:
    rows = [
        open_row("o"),
        open_row("d", status="unsettled"),
        open_row("n", status="error", cost_nano=0),
        settled_row("c", prompt_tokens=None),
    ]
    book_rows(tmp_path, rows)
    left = pricing_json(tmp_path, "reprice")["left_alone"]
    assert {reason: count for reason, count in left.items() if count} == {
        "used_nothing": 1,
        "under_way": 2,
        "without_counts": 1,
    }


def test_a_repricing_goes_with_its_row_and_needs_one(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'l.db'}", create=True)
    store.upsert([settled_row("a"), settled_row("b", started_at=START + 7200)])
    found = [Repricing(name, "card", 5, START) for name in ("a", "b", "nobody")]
    store.repricings.put(found, [])
    assert store.repricings.count() == 2
    assert store.repricings.get("a") == found[0]
    assert store.delete_before(START + 3600) == 1
    assert (store.repricings.get("a"), store.repricings.count()) == (None, 1)
    # The sums kept by the hour still have the booked cost of the row that is gone.
    assert sum(row.cost_nano or 0 for row in store.report([], repriced=True)) == 11_400 + 5
    store.repricings.put([], ["b"])
    assert store.repricings.count() == 0
    store.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A new ledger."""
    if request.param == "sqlite":
        yield from opened(f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'l.db'}")
    else:
        server: Postgres = request.getfixturevalue("server")
        yield from opened(server.new_database())


def opened(url: str) -> Iterator[Store]:
    made = Store(url, create=True)
    yield made
    made.close()


def test_a_repriced_report_is_the_sum_of_the_repriced_rows_however_it_is_grouped(store: Store) -> None:
    dice = random.Random(7)
    costs: dict[str, tuple[str, int | None, int | None]] = {}
    for number in range(200):
        name, hours = f"r{number}", dice.randrange(72)
        booked = dice.choice([None, dice.randrange(10**12)])
        repriced = dice.randrange(10**12) if dice.random() < 0.5 else None
        source = "unpriced" if booked is None else "card"
        key = dice.choice("abc")
        store.upsert(
            [
                settled_row(
                    name,
                    key=key,
                    tags={"team": key},
                    started_at=START - 3600 * hours,
                    cost_nano=booked,
                    cost_source=source,
                    estimated=number % 3 == 0,
                    assumed=number % 2 == 0,
                )
            ]
        )
        if repriced is not None:
            store.repricings.put([Repricing(name, "card", repriced, START)], [])
        costs[name] = (key, booked, booked if repriced is None else repriced)
    while store.sum_up_day(before=START):
        pass
    for by in (["key"], ["key", "day"], ["key", "hour"], ["tag:team"], ["key", "tier", "status"]):
        sums: dict[str, int] = {}
        for row in store.report(by, repriced=True):
            key = row.by[by[0]] or ""
            sums[key] = sums.get(key, 0) + (row.cost_nano or 0)
        expected = {key: sum(new or 0 for owner, _, new in costs.values() if owner == key) for key in "abc"}
        assert sums == expected
    unpriced = sum(1 for _, booked, new in costs.values() if booked is None and new is None)
    assert sum(row.unpriced_requests for row in store.report([], repriced=True)) == unpriced
    booked_sum = sum(booked or 0 for _, booked, _ in costs.values())
    assert sum(row.cost_nano or 0 for row in store.report([])) == booked_sum


def test_table_and_csv_have_the_same_sums_and_fit_the_page(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a"), settled_row("e", estimated=True), *priced_elsewhere()])
    add_card(tmp_path)
    words = ("reprice", "--cards-dir", "cards")
    printed = run_pricing(tmp_path, *words).stdout
    assert too_wide(printed) == []
    (figures,) = [line.split() for line in printed.splitlines() if line.split()[:1] == ["2"]]
    assert figures == ["2", "2", "0.0000228", "0.0000114", "-0.0000114"]
    assert "dry run: nothing was written" in printed
    assert "1 estimated: nobody reported their tokens" in printed
    assert "1 left alone: priced by their target; `--also target`" in printed
    (row,) = csv.DictReader(io.StringIO(run_pricing(tmp_path, *words, "--format", "csv").stdout))
    assert (row["changed"], row["difference_usd"]) == ("2", "-0.0000114")
    assert "2 repriced costs kept" in run_pricing(tmp_path, *words, "--apply").stdout


def test_wrong_use_is_exit_2_with_the_remedy(tmp_path: Path) -> None:
    assert "no ledger" in run_pricing(tmp_path, "reprice", expect=2).stderr
    book_rows(tmp_path, [])
    assert (
        "--also: 'all' is none of target, upstream"
        in run_pricing(tmp_path, "reprice", "--also", "all", expect=2).stderr
    )
    assert "is not a folder" in run_pricing(tmp_path, "reprice", "--cards-dir", "absent", expect=2).stderr


def test_every_example_of_its_help_runs(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("a")])
    examples = list(help_examples(tmp_path, "reprice"))
    assert len(examples) >= 4
    for words in examples:
        assert run_pricing(tmp_path, *words).stdout
