"""Places that several gateways share: who dies, who stalls, what the server forgets and when it is away."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kimi_gateway.adapters.capacity.shared import SharedCapacity
from kimi_gateway.adapters.capacity.store import UNUSED, ValkeyPlaces, Wish
from kimi_gateway.core.routing.facts import Grant, Quota, Refused
from kimi_gateway.ports import StateUnavailable
from support.places import QUICK, Gateways, given, place, play, queue_up, refused, ticket, until
from support.valkey import Server, fresh_prefix, link_to, running

TWO = place(Quota(concurrency=2))
ONE = place(Quota(concurrency=1), "one")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Path(tmp_path_factory.mktemp("v"))) as server:
        yield server


@pytest.fixture
def own(server: Server) -> Iterator[Server]:
    """The server for one who stops it."""
    yield server
    server.stop()
    server.start()


def flush(server: Server) -> None:
    raw: Any = server.client()
    raw.flushall()
    raw.close()


async def settled(capacity: SharedCapacity) -> None:
    """Returns when everything was told."""
    await until(lambda: not capacity._debts and not capacity._news)


def test_two_gateways_share_one_limit_and_see_each_others_queue(server: Server) -> None:
    async def scene(gateways: Gateways) -> None:
        first, second = gateways.shared(), gateways.shared()
        held = [await given(first, ticket("1", TWO)), await given(second, ticket("2", TWO))]
        (waiting,) = await queue_up(first, ticket("3", TWO))
        assert (await refused(gateways.shared(timeout_s=0.05), ticket("4", TWO))).reason == "timeout"
        (other,) = await queue_up(second, ticket("5", TWO))
        assert second.queued(TWO) == 2
        assert not first.room(TWO)
        began_s = time.monotonic()
        await second.leave(held[1], None)
        third = await waiting
        assert time.monotonic() - began_s < 0.5  # it hears of it when it asks next, every hundredth of a second
        assert isinstance(third, Grant)
        await first.leave(third, None)
        assert isinstance(await other, Grant)

    play(server, scene)


def test_the_queue_is_bounded_over_all_gateways(server: Server) -> None:
    async def scene(gateways: Gateways) -> None:
        first, second = gateways.shared(most=2), gateways.shared(most=2)
        await given(first, ticket("held", ONE))
        await queue_up(first, ticket("1", ONE))
        await queue_up(second, ticket("2", ONE))
        assert (await refused(first, ticket("3", ONE))).reason == "full"

    play(server, scene)


def test_what_a_dead_process_held_is_free_after_the_lease_and_its_waiters_are_passed_over(server: Server) -> None:
    async def scene(gateways: Gateways) -> None:
        dead, alive = gateways.shared(QUICK, heartbeat_s=0.1), gateways.shared(QUICK, heartbeat_s=0.1)
        await given(dead, ticket("held", ONE))
        waiters = await queue_up(dead, *(ticket(f"dead-{number}", ONE) for number in range(3)))
        (mine,) = await queue_up(alive, ticket("mine", ONE))
        began_s = time.monotonic()
        gateways.kill(dead)
        for waiter in waiters:
            waiter.cancel()
        assert isinstance(await mine, Grant)
        assert 0.2 < time.monotonic() - began_s < 2
        assert alive.queued(ONE) == 0

    play(server, scene)


def test_a_place_that_a_dead_process_was_given_and_never_took_is_soon_given_to_another(server: Server) -> None:
    async def scene(gateways: Gateways) -> None:
        dead, alive = gateways.shared(heartbeat_s=0.15), gateways.shared(heartbeat_s=0.15)
        held = await given(alive, ticket("held", ONE))
        (lost,) = await queue_up(dead, ticket("lost", ONE))
        (mine,) = await queue_up(alive, ticket("mine", ONE))
        gateways.kill(dead)
        lost.cancel()
        await alive.leave(held, None)  # it is the dead one's turn
        assert not mine.done()
        assert isinstance(await mine, Grant)

    play(server, scene)


def test_leases_are_renewed_for_as_long_as_a_request_runs(server: Server) -> None:
    async def scene(gateways: Gateways) -> None:
        capacity, other = gateways.shared(QUICK), gateways.shared(QUICK, timeout_s=0.6)
        keeping = asyncio.create_task(capacity.keep())
        held = await given(capacity, ticket("held", ONE))
        assert (await refused(other, ticket("1", ONE))).reason == "timeout"  # more than a lease later
        await capacity.leave(held, None)
        assert isinstance(await other.enter(ticket("2", ONE)), Grant)
        keeping.cancel()

    play(server, scene)


def test_a_process_that_was_not_heard_of_for_a_while_keeps_its_place_in_the_queue(server: Server) -> None:
    async def scene(gateways: Gateways) -> None:
        slow, quick = gateways.shared(heartbeat_s=0.2), gateways.shared()
        held = await given(quick, ticket("held", ONE))
        (first,) = await queue_up(slow, ticket("first", ONE))
        (second,) = await queue_up(quick, ticket("second", ONE))
        assert slow._task is not None
        slow._task.cancel()  # its loop is held up
        await until(lambda: quick.queued(ONE) == 1)
        slow._look_after()
        await until(lambda: quick.queued(ONE) == 2)
        await quick.leave(held, None)
        grant = await first
        assert isinstance(grant, Grant)
        assert not second.done()
        await slow.leave(grant, None)
        assert isinstance(await second, Grant)

    play(server, scene)


def test_a_flush_in_mid_traffic_leaves_nothing_stuck_and_nothing_taken(server: Server) -> None:
    async def agent(number: int, capacity: SharedCapacity, until_s: float) -> int:
        served = 0
        while time.monotonic() < until_s:
            grant = await given(capacity, ticket(f"{number}-{served}", TWO, key=f"k{number % 3}"))
            await asyncio.sleep(0.01)
            await capacity.leave(grant, 1)
            served += 1
        return served

    async def scene(gateways: Gateways) -> None:
        capacities = [gateways.shared(QUICK), gateways.shared(QUICK)]
        beside = [asyncio.create_task(capacity.keep()) for capacity in capacities]
        until_s = time.monotonic() + 0.7
        agents = [asyncio.create_task(agent(n, capacities[n % 2], until_s)) for n in range(12)]
        for _ in range(3):
            await asyncio.sleep(0.2)
            flush(server)
        assert min(await asyncio.gather(*agents)) > 0
        for capacity in capacities:
            await settled(capacity)
            assert capacity._leases == {}
        for number in range(2):
            await given(capacities[0], ticket(f"last-{number}", TWO))
        assert (await refused(gateways.shared(timeout_s=0.05), ticket("more", TWO))).reason == "timeout"
        for task in beside:
            task.cancel()

    play(server, scene)


def test_after_a_flush_what_is_under_way_counts_again(server: Server) -> None:
    async def scene(gateways: Gateways) -> None:
        first, second = gateways.shared(), gateways.shared(timeout_s=0.1)
        held = [await given(first, ticket(name, TWO)) for name in ("1", "2")]
        (waiting,) = await queue_up(first, ticket("3", TWO))
        flush(server)
        await until(lambda: first._epoch != "" and not first._renews)
        await asyncio.sleep(0.1)
        assert (await refused(second, ticket("4", TWO))).reason == "timeout"
        for grant in held:
            await first.leave(grant, 0)
        assert isinstance(await waiting, Grant)

    play(server, scene)


def test_a_request_that_was_given_up_while_the_server_was_stuck_holds_nothing(own: Server) -> None:
    async def scene(gateways: Gateways) -> None:
        capacity = gateways.shared()
        await capacity.leave(await given(capacity, ticket("warm", ONE)), None)
        for number in range(3):
            own.freeze()
            asking = asyncio.create_task(capacity.enter(ticket(f"r{number}", ONE)))
            await asyncio.sleep(0.02)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            own.thaw()
            await settled(capacity)
            await capacity.leave(await given(capacity, ticket(f"next-{number}", ONE)), None)

    play(own, scene)


def test_what_was_given_up_before_it_was_asked_for_is_not_taken(server: Server) -> None:
    async def main() -> None:
        link = link_to(server.url, operation_timeout_s=5.0)
        places = ValkeyPlaces(link, "me", lease_s=60, heartbeat_s=5, prefix=fresh_prefix())
        wish = Wish("A", 0.0, Quota(concurrency=1))
        await places.leave([("late", UNUSED)])  # the cancellation was faster than what it cancels
        assert (await places.enter("late", "k", 1, [wish], most=9, patience_s=5)).found == "gone"
        assert (await places.enter("next", "k", 1, [wish], most=9, patience_s=5)).found == "granted"
        await link.close()

    asyncio.run(main())


# --- outages --------------------------------------------------------------------------------------------------


def test_without_its_state_an_open_gateway_gives_its_share_and_tells_it_afterwards(own: Server) -> None:
    six = place(Quota(concurrency=6), "six")

    async def scene(gateways: Gateways) -> None:
        capacity = gateways.shared(timeout_s=0.4, operation_timeout_s=0.3, replicas=2)
        grants = [await given(capacity, ticket("before", six))]
        own.stop()
        grants += [await given(capacity, ticket(f"r{number}", six)) for number in range(2)]
        assert not capacity.room(six)
        assert (await refused(capacity, ticket("more", six))).reason == "timeout"  # three of six are its own
        await capacity.leave(grants.pop(), None)
        grants.append(await given(capacity, ticket("next", six)))
        own.start()
        await until(lambda: not capacity._is_out and not capacity._renews)
        await settled(capacity)
        other = gateways.shared(timeout_s=0.05)
        await asyncio.sleep(0.05)
        for number in range(3):
            await given(other, ticket(f"other-{number}", six))
        assert (await refused(other, ticket("too-many", six))).reason == "timeout"
        for grant in grants:
            await capacity.leave(grant, None)
        assert isinstance(await other.enter(ticket("now", six)), Grant)

    play(own, scene)


def test_those_who_wait_go_on_waiting_through_an_outage(own: Server) -> None:
    async def scene(gateways: Gateways) -> None:
        capacity = gateways.shared(operation_timeout_s=0.3)
        held = [await given(capacity, ticket(name, TWO)) for name in ("1", "2")]
        first, second = await queue_up(capacity, ticket("3", TWO), ticket("4", TWO))
        own.stop()
        await until(lambda: capacity._is_out and capacity.waiting() == 2)
        for grant in held:  # its share is one
            await capacity.leave(grant, None)
        third = await first
        assert isinstance(third, Grant)
        assert not second.done()
        own.start()
        assert isinstance(await second, Grant)  # the server has room for two
        await capacity.leave(third, None)

    play(own, scene)


def test_without_its_state_a_closed_gateway_says_so_at_once_also_to_those_who_wait(own: Server) -> None:
    async def scene(gateways: Gateways) -> None:
        capacity = gateways.shared(is_open=False, operation_timeout_s=0.3, bound_s=0.08)
        held = await given(capacity, ticket("held", ONE))
        (waiting,) = await queue_up(capacity, ticket("1", ONE))
        own.freeze()
        began_s = time.monotonic()
        with pytest.raises(StateUnavailable):
            await capacity.enter(ticket("2", ONE))
        assert time.monotonic() - began_s < 0.25
        with pytest.raises(StateUnavailable):
            await waiting
        await capacity.leave(held, None)
        own.thaw()
        await settled(capacity)
        assert isinstance(await capacity.enter(ticket("3", ONE)), Grant)

    play(own, scene)


# --- everything at once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_clients_do_and_the_server_forgets_nothing_is_left_over(server: Server, seed: int) -> None:
    rng = random.Random(seed)
    a, b = place(Quota(concurrency=3)), place(Quota(concurrency=2, tpm=10**6), "B")

    async def client(number: int, capacity: SharedCapacity, until_s: float) -> None:
        turn = 0
        while time.monotonic() < until_s:
            places = rng.choice([(a,), (b,), (a, b), (b, a)])
            turn += 1
            asked = ticket(f"{number}-{turn}", *places, key=f"k{number % 4}", tokens=rng.randrange(1000))
            asking = asyncio.create_task(capacity.enter(asked))
            if rng.random() < 0.3:
                await asyncio.wait((asking,), timeout=rng.random() * 0.02)
                asking.cancel()
            (found,) = await asyncio.gather(asking, return_exceptions=True)
            if isinstance(found, Grant):
                await asyncio.sleep(rng.random() * 0.01)
                await capacity.leave(found, rng.choice([None, 5]))
            else:
                assert isinstance(found, Refused | asyncio.CancelledError), found

    async def scene(gateways: Gateways) -> None:
        capacities = [gateways.shared(QUICK, timeout_s=0.5) for _ in range(3)]
        until_s = time.monotonic() + 0.6
        clients = [asyncio.create_task(client(n, capacities[n % 3], until_s)) for n in range(24)]
        await asyncio.sleep(0.3)
        flush(server)
        await asyncio.gather(*clients)
        for capacity in capacities:
            await settled(capacity)
            assert (capacity._asked, capacity._leases, capacity._mine) == ({}, {}, {})
        for one, most in ((a, 3), (b, 2)):
            grants = [await given(capacities[0], ticket(f"last-{one.account}-{n}", one)) for n in range(most)]
            assert not capacities[0].room(one)
            for grant in grants:
                await capacities[0].leave(grant, None)
        raw: Any = server.client()
        names = [name for name in raw.keys("*") if name.startswith(gateways.prefix.encode())]
        kinds = {name[len(gateways.prefix) :].partition(b":")[0] for name in names}
        assert kinds <= {b"a", b"epoch", b"lives", b"last", b"alive", b"gen", b"x"}
        raw.close()

    play(server, scene)
