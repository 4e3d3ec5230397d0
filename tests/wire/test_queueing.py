"""Waiting for a place: who waits and how long, who is told to come back, and that all keys get their share."""

import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from pricing.ledger.row import LedgerRow
from support.fleet import OK, PRO, Crowd, Fleet, Scene, Talk, bearer, fleet, hi, key, route, said, together
from support.lab import Heard
from support.pids import becomes_true

KEYS = tuple(f"key{number}" for number in range(10))
KEEPALIVE_S = 0.1
TIMEOUT_S = 0.4
TARGETS: Mapping[str, dict[str, Any]] = {
    "two": {"max_concurrency": 2},
    "left": {"max_concurrency": 3, "account": "shared"},
    "right": {"max_concurrency": 2, "account": "shared"},
    "spare": {},
    "rpm": {"rpm": 60},
    "few": {"rpm": 2},
    "tpm": {"tpm": 300},
    "tpd": {"tpd": 300},
    "grows": {"max_concurrency": 7},
    "bad": {},
    "ten": {"max_concurrency": 10},
    "fifty": {"max_concurrency": 50},
}
ROUTES = {name: [name] for name in TARGETS} | {
    "two-or-spare": ["two", "spare"],
    "tpd-or-spare": ["tpd", "spare"],
    "bad-then-two": ["bad", "two"],
}


def started(head: str) -> Any:
    """A fleet with limits; each target is alone in the route of its name."""
    models = dict.fromkeys(ROUTES, PRO)
    routes = "".join(route(model, names) for model, names in ROUTES.items())
    return fleet(
        {name: {"models": models, **limits} for name, limits in TARGETS.items()},
        routes + "".join(key(name) for name in KEYS),
        head=f"[retry]\nglobal_ratio = 1\n{head}",
        server=f"keepalive_interval_s = {KEEPALIVE_S}\ndrain_timeout_s = 0.4",
        keys=KEYS,
    )


@pytest.fixture(scope="module")
def made() -> Iterator[Fleet]:
    """A queue as it ships."""
    with started("") as found:
        yield found


@pytest.fixture(scope="module")
def short() -> Iterator[Fleet]:
    """A queue with one place and little patience."""
    with started(f"[queue]\nmax = 1\ntimeout_s = {TIMEOUT_S}\n") as found:
        yield found


# --- places -----------------------------------------------------------------------------------------------------


def test_eight_clients_of_an_account_of_two_are_all_served_two_at_a_time(made: Fleet) -> None:
    crowd = Crowd(0.1)
    made.upstreams["two"].add(*[crowd] * 8)
    before = made.metric("kimi_queue_wait_seconds_sum"), made.metric("kimi_queue_wait_seconds_count")
    heard = together(lambda number: made.ask(hi(f"{number}", "two"), bearer("key0")), range(8))
    assert [(one.status, one.json["kimi"]["attempts"]) for one in heard] == [(200, 1)] * 8
    assert crowd.most == 2
    waits = sorted(row.wait_ms for row in made.rows(*heard))
    assert waits[0] == 0
    assert waits[2] >= 80
    assert waits[-1] >= 280
    after = made.metric("kimi_queue_wait_seconds_sum"), made.metric("kimi_queue_wait_seconds_count")
    assert after[0] - before[0] == pytest.approx(sum(waits) / 1000, abs=0.02)
    assert after[1] - before[1] == 8


def test_streams_that_wait_have_keep_alives_and_then_their_answer(made: Fleet) -> None:
    whole = {"status": 200, "sse_text": said("at last")}
    with Scene(made, "two", answer=whole) as scene:
        running = [scene.ask(f"{number}") for number in range(2)]
        scene.runs(2)
        with Talk(made.gateway.base_url, hi("waits", "two", stream=True), bearer("key0")) as talk:
            talk.until(b"\n\n:")
            assert "waits" not in scene.crowd.texts
            assert talk.headers["x-kimi-target"] == "two"
            scene.open()
            heard = talk.rest()
        assert (heard.joined("content"), heard.done, heard.error) == ("at last", True, None)
        assert heard.comments >= 2
        assert [one.result().status for one in running] == [200, 200]
        row = made.row(heard)
        assert row.wait_ms >= 1000 * KEEPALIVE_S
        assert len(row.attempts) == 1


def test_a_client_that_leaves_the_queue_makes_way_and_is_never_sent(made: Fleet) -> None:
    with Scene(made, "two") as scene:
        running = [scene.ask(f"{number}") for number in range(2)]
        scene.runs(2)
        with Talk(made.gateway.base_url, hi("leaves", "two", stream=True), bearer("key0")) as talk:
            talk.until(b":")
            last = scene.ask("stays")
            time.sleep(0.05)
            gone = Heard(200, talk.headers, b"")
        row = made.row(gone)
        scene.open()
        assert {one.result().status for one in (*running, last)} == {200}
        assert sorted(scene.crowd.texts) == ["0", "1", "stays"]
    assert (row.status, row.attempts, row.cost_nano) == ("client_disconnected", [], 0)
    assert row.wait_ms > 0


def test_a_client_that_leaves_its_place_gives_it_to_who_waits(made: Fleet) -> None:
    with Scene(made, "two") as scene:
        staying = scene.ask("stays")
        with Talk(made.gateway.base_url, hi("leaves", "two", stream=True), bearer("key0")):
            scene.runs(2)
            waiting = scene.ask("waits")
            time.sleep(0.05)
            assert "waits" not in scene.crowd.texts
        assert becomes_true(lambda: "waits" in scene.crowd.texts, 3)
        scene.open()
        assert [one.result().status for one in (staying, waiting)] == [200, 200]


def test_an_attempt_that_fails_gives_its_place_to_who_waits(made: Fleet) -> None:
    broken = {"status": 400, "json": {"error": {"message": "no", "type": "invalid_request_error"}}}
    crowd = Crowd(0.05, answer=broken)
    made.upstreams["two"].add(*[crowd] * 6)
    heard = together(lambda number: made.ask(hi(f"{number}", "two"), bearer("key0")), range(6))
    assert ([one.status for one in heard], crowd.most) == ([400] * 6, 2)


def test_targets_of_one_account_share_its_places_and_the_smallest_limit_counts(made: Fleet) -> None:
    with Scene(made, "left", shared="right") as scene:
        asked = [scene.ask(f"{number}", model=("left", "right")[number % 2]) for number in range(6)]
        scene.runs(2)
        time.sleep(0.1)
        assert scene.crowd.most == 2
        scene.open()
        assert {one.result().status for one in asked} == {200}
    assert scene.crowd.most == 2
    assert Counter(one.result().json["kimi"]["target"] for one in asked) == {"left": 3, "right": 3}


def test_where_another_target_has_room_nobody_waits(made: Fleet) -> None:
    with Scene(made, "two") as scene:
        running = [scene.ask(f"{number}") for number in range(2)]
        scene.runs(2)
        made.upstreams["spare"].add(OK)
        heard = made.ask(hi("more", "two-or-spare"), bearer("key0"))
        assert (heard.json["kimi"]["target"], heard.json["kimi"]["attempts"]) == ("spare", 1)
        scene.open()
        assert {one.result().status for one in running} == {200}


def test_a_request_whose_target_fails_waits_for_the_next_one_s_place(made: Fleet) -> None:
    with Scene(made, "two", answer={"status": 200, "sse_text": said("second")}) as scene:
        running = [scene.ask(f"{number}") for number in range(2)]
        scene.runs(2)
        made.upstreams["bad"].add({"then": "reset"})
        request = hi("moves", "bad-then-two", stream=True)
        with Talk(made.gateway.base_url, request, {**bearer("key0"), "x-kimi-meta": "1"}) as talk:
            talk.until(b"\n\n:")
            scene.open()
            heard = talk.rest()
        assert {one.result().status for one in running} == {200}
    assert (heard.joined("content"), heard.done) == ("second", True)
    assert (heard.chunks[-1]["kimi"]["attempts"], heard.chunks[-1]["kimi"]["target"]) == (2, "two")
    row = made.row(heard)
    assert row.wait_ms >= 1000 * KEEPALIVE_S
    assert [(one.target, one.fault) for one in row.attempts] == [("bad", "reset"), ("two", None)]


def test_a_whole_answer_that_waits_has_white_space_for_a_client_without_patience(made: Fleet) -> None:
    with Scene(made, "two") as scene:
        running = [scene.ask(f"{number}") for number in range(2)]
        scene.runs(2)
        headers = {**bearer("key0"), "x-stainless-read-timeout": "0.8"}
        with Talk(made.gateway.base_url, hi("waits", "two"), headers) as talk:
            talk.until(b" ")
            assert "waits" not in scene.crowd.texts
            scene.open()
            heard = talk.rest()
        assert {one.result().status for one in running} == {200}
    assert (heard.status, heard.json["kimi"]["attempts"]) == (200, 1)


def test_a_reload_with_more_places_lets_in_who_waits(made: Fleet) -> None:
    config = made.gateway.program.directory / "kimi-gateway.toml"
    with Scene(made, "grows") as scene:
        asked = [scene.ask(f"{number}") for number in range(9)]
        scene.runs(7)
        config.write_text(config.read_text().replace("max_concurrency = 7", "max_concurrency = 8"))
        made.heal()
        scene.runs(8)
        config.write_text(config.read_text().replace("max_concurrency = 8", "max_concurrency = 0"))
        made.heal()
        scene.runs(9)
        scene.open()
        assert {one.result().status for one in asked} == {200}


def test_keys_take_turns_and_one_key_is_served_in_order(made: Fleet) -> None:
    with Scene(made, "two") as scene:
        asked = [scene.ask(f"{number}") for number in range(2)]
        scene.runs(2)
        for by, name in [
            ("key1", "a1"),
            ("key1", "a2"),
            ("key1", "a3"),
            ("key1", "a4"),
            ("key2", "b1"),
            ("key3", "c1"),
        ]:
            asked.append(scene.ask(name, by))
            time.sleep(0.03)
        scene.crowd.hold_s = 0.03
        scene.open()
        assert {one.result().status for one in asked} == {200}
        order = scene.crowd.texts[2:]
    assert [name for name in order if name[0] == "a"] == ["a1", "a2", "a3", "a4"]
    assert set(order[:4]) == {"a1", "b1", "c1", "a2"}


# --- by the minute and the day ----------------------------------------------------------------------------------


def test_requests_beyond_those_of_a_minute_wait_for_the_next(made: Fleet) -> None:
    made.upstreams["rpm"].add(*[OK] * 61)
    heard = together(lambda number: made.ask(hi(f"{number}", "rpm"), bearer("key0")), range(61))
    assert {one.status for one in heard} == {200}
    waits = sorted(row.wait_ms for row in made.rows(*heard))
    assert 0 < waits[-1] <= 1200
    assert waits[-2] < waits[-1]


def test_tokens_of_a_minute_are_held_at_most_and_given_back_when_they_are_known(made: Fleet) -> None:
    """Three that may use 100 tokens and a prompt each; 300 are enough for two until those have used 12 each."""
    with Scene(made, "tpm") as scene:
        asked = [scene.ask(f"{number}", max_completion_tokens=100) for number in range(3)]
        scene.runs(2)
        time.sleep(0.2)
        assert scene.crowd.now == 2
        scene.open()
        assert {one.result().status for one in asked} == {200}
        waits = [row.wait_ms for row in made.rows(*[one.result() for one in asked])]
    assert sorted(wait > 150 for wait in waits) == [False, False, True]
    assert max(waits) < 3000


def test_tokens_of_a_day_that_are_spent_send_requests_elsewhere_or_tell_when(made: Fleet) -> None:
    usage = {"prompt_tokens": 150, "completion_tokens": 60, "total_tokens": 210}
    made.upstreams["tpd"].add({"status": 200, "json_usage": usage})
    made.upstreams["spare"].add(OK)
    wide = hi("first", "tpd", max_completion_tokens=100)
    assert made.ask(wide, bearer("key0")).status == 200
    began = time.monotonic()
    refused = made.ask(wide, bearer("key0"))
    assert (refused.status, refused.error["code"]) == (429, "queue_timeout")
    midnight_s = 86_400 - time.time() % 86_400
    assert abs(int(refused.headers["retry-after"]) - midnight_s) < 5
    assert time.monotonic() - began < 2
    heard = made.ask(hi("elsewhere", "tpd-or-spare", max_completion_tokens=100), bearer("key0"))
    assert heard.json["kimi"]["target"] == "spare"
    made.upstreams["tpd"].add(OK)
    small = made.ask(hi("small", "tpd", max_completion_tokens=16), bearer("key0"))
    assert small.status == 200


# --- full and too late ------------------------------------------------------------------------------------------


def check_turned_away(heard: Heard, row: LedgerRow, *, waited: bool) -> None:
    """429 with the time to come back, and a row without an attempt."""
    assert heard.error["code"] == "queue_timeout"
    assert heard.error["type"] == "rate_limit_error"
    assert (row.status, row.error_code, row.http_status) == ("error", "queue_timeout", 429)
    assert (row.attempts, row.cost_nano) == ([], 0)
    assert (row.wait_ms >= 1000 * TIMEOUT_S - 50) is waited
    assert row.wait_ms < 1000 * TIMEOUT_S + 2000


def test_a_queue_that_is_full_turns_away_at_once_and_one_who_waits_too_long_later(short: Fleet) -> None:
    with Scene(short, "two") as scene:
        running = [scene.ask(f"{number}") for number in range(2)]
        scene.runs(2)
        waiting = scene.ask("waits")
        time.sleep(0.1)
        full = short.ask(hi("full", "two"), bearer("key1"))
        late = waiting.result()
        with Talk(short.gateway.base_url, hi("streams", "two", stream=True), bearer("key0")) as talk:
            stream = talk.rest()
        scene.open()
        assert {one.result().status for one in running} == {200}
        assert sorted(scene.crowd.texts) == ["0", "1"]
    for heard, waited in ((full, False), (late, True)):
        assert heard.status == 429
        assert int(heard.headers["retry-after"]) >= 1
        assert heard.headers["x-should-retry"] == "true"
        check_turned_away(heard, short.row(heard), waited=waited)
    assert (stream.status, stream.error["status"], stream.done, len(stream.events)) == (200, 429, False, 1)
    assert stream.comments >= 2
    check_turned_away(stream, short.row(stream), waited=True)


def test_requests_beyond_those_of_a_minute_hear_when_there_are_more(short: Fleet) -> None:
    short.upstreams["few"].add(*[OK] * 2)
    heard = [short.ask(hi(f"{number}", "few"), bearer("key0")) for number in range(3)]
    assert [one.status for one in heard] == [200, 200, 429]
    assert 25 <= int(heard[2].headers["retry-after"]) <= 30
    check_turned_away(heard[2], short.row(heard[2]), waited=True)


def test_at_a_shutdown_who_waits_is_told_so(short: Fleet) -> None:
    """The last test of this gateway."""
    with Scene(short, "two") as scene:
        asked = [scene.ask(f"{number}", stream=number == 2) for number in range(3)]
        scene.runs(2)
        time.sleep(0.1)
        short.gateway.program.signal(signal.SIGTERM)
        heard = [one.result() for one in asked]
        assert short.gateway.program.wait() == 0
    assert {one.error["code"] for one in heard} <= {"shutting_down", "queue_timeout"}
    assert not any(one.done for one in heard)
    rows = short.rows(*heard)
    assert {row.status for row in rows} <= {"shutting_down", "error"}
    assert sorted(len(row.attempts) for row in rows) == [0, 1, 1]


# --- a crowd ----------------------------------------------------------------------------------------------------


def crowded(made: Fleet, name: str, *, places: int, owners: Sequence[str], seconds: float, hold_s: float) -> None:
    """One agent for each of these owners, asking again and again. None hears an error, there are never more at the
    upstream than it has places, and each key gets its share, whatever number of agents it has."""
    crowd = Crowd(hold_s)
    made.upstreams[name].add(*[crowd] * 50_000)
    until_s = time.monotonic() + seconds

    def agent(owner: str) -> list[Heard]:
        heard = []
        while time.monotonic() < until_s:
            heard.append(made.ask(hi(owner, name), bearer(owner)))
        return heard

    answers = [one for found in together(agent, owners) for one in found]
    made.upstreams[name].forget()
    assert Counter(one.status for one in answers) == {200: len(answers)}
    assert crowd.most == places
    # The beginning, when places are free, and the end, when agents leave one by one, say nothing of shares.
    served = Counter(crowd.texts[places : -len(owners) - places])
    share = sum(served.values()) / len(set(owners))
    assert share > 10
    assert {owner: count / share for owner, count in served.items() if not 0.75 < count / share < 1.25} == {}
    assert set(served) == set(owners)


def test_thirty_agents_on_an_account_of_ten_share_it(made: Fleet) -> None:
    owners = [*["key0"] * 10, *[name for name in KEYS[1:5] for _ in range(5)]]
    crowded(made, "ten", places=10, owners=owners, seconds=1.4, hold_s=0.1)


@pytest.mark.chaos
def test_a_hundred_and_fifty_agents_on_an_account_of_fifty_share_it(made: Fleet) -> None:
    owners = [*["key0"] * 60, *[name for name in KEYS[1:] for _ in range(10)]]
    crowded(made, "fifty", places=50, owners=owners, seconds=20, hold_s=0.5)
