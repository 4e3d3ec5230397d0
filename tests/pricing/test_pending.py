"""What is under way in a journal: any order, any outage and any crash end with the same rows."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pricing.ledger.pending import Pending
from pricing.ledger.records import Opened, Progressed, Settled
from pricing.ledger.row import Bookable
from support.ledger_rows import open_row, settled_row

Event = Opened | Progressed | Settled


def take_all(pending: Pending, events: list[Event], *, first: int = 0) -> None:
    """Takes events whose offset is their number, one a second."""
    for offset, event in enumerate(events, first):
        pending.take(event, (0, offset), now_s=float(offset))


def due(pending: Pending, *, before_s: float = float("inf")) -> list[tuple[str, str]]:
    """Ids and states of the rows that are due."""
    rows = pending.batch(opened_before_s=before_s, owner="me", lease_until=60.0)
    return [(row.request_id, row.status) for row in rows]


def test_a_short_request_is_one_row() -> None:
    pending = Pending()
    take_all(pending, [Opened(open_row("a")), Settled(settled_row("a"))])
    assert due(pending) == [("a", "ok")]
    assert pending.low_water((0, 2)) == (0, 2)
    pending.confirm()
    assert pending.is_empty


def test_a_long_request_is_an_open_row_first_and_carries_its_owner() -> None:
    pending = Pending()
    take_all(pending, [Opened(open_row("a"))])
    assert due(pending, before_s=-1) == []
    assert pending.low_water((0, 1)) == (0, 0)
    (row,) = pending.batch(opened_before_s=0, owner="me", lease_until=60.0)
    assert (row.status, row.owner, row.lease_until) == ("open", "me", 60.0)
    assert pending.low_water((0, 1)) == (0, 1)
    pending.confirm()
    assert due(pending) == []


def test_progress_makes_an_open_row_due_again() -> None:
    pending = Pending()
    take_all(pending, [Opened(open_row("a"))])
    due(pending)
    pending.confirm()
    take_all(pending, [Progressed(open_row("a", completion_tokens=5))], first=1)
    (row,) = pending.batch(opened_before_s=99, owner="me", lease_until=90.0)
    assert row.completion_tokens == 5


def test_a_batch_that_failed_is_due_again() -> None:
    pending = Pending()
    take_all(pending, [Opened(open_row("a")), Opened(open_row("b")), Settled(settled_row("b"))])
    first = due(pending)
    assert pending.has_settled
    assert due(pending) == first


def test_what_is_under_way_at_the_end_is_unsettled() -> None:
    pending = Pending()
    take_all(pending, [Opened(open_row("a")), Progressed(open_row("a", completion_tokens=5))])
    (row,) = pending.abandon(owner="dead")
    assert (row.status, row.owner, row.completion_tokens) == ("unsettled", "dead", 5)
    assert pending.is_empty


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """The records of up to five requests, mixed: each opened, some with progress, some settled."""
    lanes: list[list[Event]] = []
    for number in range(draw(st.integers(1, 5))):
        lane: list[Event] = [Opened(open_row(f"r{number}"))]
        lane += [
            Progressed(open_row(f"r{number}", completion_tokens=count + 1))
            for count in range(draw(st.integers(0, 2)))
        ]
        if draw(st.booleans()):
            lane.append(Settled(settled_row(f"r{number}")))
        lanes.append(lane)
    mixed: list[Event] = []
    while lanes := [lane for lane in lanes if lane]:
        mixed.append(draw(st.sampled_from(lanes)).pop(0))
    return mixed


def drain(events: list[Event], first: int, ledger: dict[str, str], data: st.DataObject) -> int:
    """Runs one process over the events until it crashes somewhere; says which offset the ledger remembers."""
    pending, remembered = Pending(), first
    crash_at = data.draw(st.integers(first, len(events)))
    for offset in range(first, crash_at):
        pending.take(events[offset], (0, offset), now_s=float(offset))
        if data.draw(st.booleans()):
            rows = pending.batch(opened_before_s=offset - 1, owner="me", lease_until=1)
            place = pending.low_water((0, offset + 1))
            if data.draw(st.booleans()):  # else the database is away
                book(rows, ledger)
                remembered = place[1]
                pending.confirm()
    return remembered


def book(rows: Sequence[Bookable], ledger: dict[str, str]) -> None:
    """What the ledger's upsert does: a row only climbs."""
    ranks = {"open": 0, "unsettled": 1, "ok": 2}
    for row in rows:
        if ranks[row.status] >= ranks.get(ledger.get(row.request_id, "open"), 0):
            ledger[row.request_id] = row.status


@settings(max_examples=200, deadline=None)
@given(histories(), st.data())
def test_after_any_crash_the_rest_of_the_journal_is_enough(events: list[Event], data: st.DataObject) -> None:
    ledger: dict[str, str] = {}
    remembered = drain(events, 0, ledger, data)
    remembered = drain(events, remembered, ledger, data)
    last = Pending()
    take_all(last, [*events[remembered:]], first=remembered)
    book(last.batch(opened_before_s=-1, owner="me", lease_until=0), ledger)
    book(last.abandon(owner="me"), ledger)
    ended = {event.row.request_id for event in events if isinstance(event, Settled)}
    for request_id, status in ledger.items():
        # A row that was open in the ledger already is unsettled by its owner's name, not from the journal.
        assert (status == "ok") == (request_id in ended)
    assert set(ledger) == {event.row.request_id for event in events}
