"""One request with an Idempotency-Key beside the endpoint: what is recorded, who waits, what an outage changes."""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from typing_extensions import override

from kimi_gateway.adapters.idempotency.memory import MemoryAnswers
from kimi_gateway.core.idempotency import Answer, Bounds, Place, Standing
from kimi_gateway.errors import GatewayError
from kimi_gateway.lifecycle import Lifecycle
from kimi_gateway.ports import StateUnavailable
from kimi_gateway.relay.client import Client, ClientGone, Message
from kimi_gateway.relay.idempotent import Idempotency, Once
from kimi_gateway.settings import Target

BODY = b'{"model":"kimi-k3.1-pro","messages":[]}'
STREAM = b'{"model":"kimi-k3.1-pro","stream":true,"messages":[]}'
SMALL = Bounds(retention_s=100.0, lease_s=0.3, max_bytes=100_000, max_answer_bytes=1_000)


def target(patience_s: float) -> Target:
    return Target("t", "vllm", "http://h/v1", first_byte_timeout_s=patience_s / 2, idle_timeout_s=patience_s / 2)


class Peer:
    """A client's connection: what it was sent, and the moment it leaves."""

    def __init__(self, shared: Idempotency, *, key: str | None = "k-1", headers: Mapping[str, str] | None = None):
        named = {**(headers or {}), **({"idempotency-key": key} if key is not None else {})}
        scope: dict[str, Any] = {
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
        }
        self.sent: list[Message] = []
        self.leaves = asyncio.Event()
        self.once: Once = shared.once(scope, self._take)
        self.client = Client(scope, self._receive, self.once.send, stall_timeout_s=5.0)

    async def _take(self, message: Message) -> None:
        self.sent.append(message)

    async def _receive(self) -> Message:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    async def asks(self, body: bytes = BODY, *, key: str = "team-a", patience_s: float = 10.0) -> bool:
        """Whether its answer came from what is kept."""
        self.once.check()
        return await self.once.answered(body, key, self.client, [target(patience_s)])

    async def runs(self, answer: bytes, *, ok: bool = True, settled_late: bool = False) -> None:
        """The exchange: an answer with limits of the moment among its headers."""
        state = {"ok": ok and not settled_late}
        self.once.ends_whole(lambda: state["ok"])
        headers = [(b"x-kimi-request-id", b"kr_1"), (b"x-ratelimit-remaining-requests", b"5")]
        await self.client.start(200 if ok else 502, headers)
        await self.client.write(answer)
        await self.client.finish()
        state["ok"] = ok
        await self.once.close()


def shared(
    store: Any = None, *, bounds: Bounds = SMALL, on_outage: Literal["open", "closed"] = "open"
) -> Idempotency:
    numbers = iter(range(1, 1000))
    kept = store or MemoryAnswers(bounds, asyncio.get_running_loop().time)
    return Idempotency(kept, Lifecycle(), lambda bits: next(numbers), bounds=bounds, on_outage=on_outage)


async def code_of(peer: Peer, body: bytes = BODY, *, patience_s: float = 10.0) -> tuple[int, str | None]:
    with pytest.raises(GatewayError) as raised:
        await peer.asks(body, patience_s=patience_s)
    await peer.once.close()
    return raised.value.status, raised.value.code


@pytest.mark.parametrize("settled_late", [False, True])
def test_the_second_gets_the_bytes_of_the_first_without_the_limits_of_that_moment(settled_late: bool) -> None:
    async def main() -> None:
        both = shared()
        first, second = Peer(both), Peer(both)
        assert not await first.asks()
        await first.runs(b"the answer", settled_late=settled_late)
        assert await second.asks()
        assert second.body == first.body == b"the answer"
        assert second.headers == {b"x-kimi-request-id": b"kr_1", b"x-kimi-replayed": b"1"}
        assert b"x-kimi-replayed" not in first.headers
        assert both.recorded_bytes == 0

    asyncio.run(main())


def test_an_answer_is_kept_before_its_end_is_seen() -> None:
    async def main() -> None:
        both = shared()
        first, second = Peer(both), Peer(both)
        await first.asks(STREAM)
        first.once.ends_whole(lambda: True)
        await first.client.start(200, [])
        await first.client.write(b"data")
        assert await code_of(Peer(both), STREAM) == (409, "request_in_progress")
        await first.client.finish()
        assert await second.asks(STREAM)  # and nothing was closed yet
        await first.once.close()

    asyncio.run(main())


def test_what_did_not_end_whole_gives_the_key_back() -> None:
    async def main() -> None:
        both = shared()
        first, second, third, fourth = (Peer(both) for _ in range(4))
        await first.asks()
        await first.runs(b"an error", ok=False)
        assert not await second.asks(STREAM)  # also with another body
        await second.once.close()  # refused before anything was sent
        assert not await third.asks()
        third.once.ends_whole(lambda: True)
        await third.client.start(200, [])
        await third.client.write(b"half")
        await third.once.close()
        assert not await fourth.asks()
        assert both.recorded_bytes == 0

    asyncio.run(main())


def test_without_the_header_nothing_is_claimed_or_seen() -> None:
    async def main() -> None:
        both = shared()
        first, second = Peer(both, key=None), Peer(both, key=None)
        assert not await first.asks()
        await first.runs(b"answer")
        assert not await second.asks()
        assert first.once.send == first._take

    asyncio.run(main())


@pytest.mark.parametrize("key", ["", "a" * 256, "caf\xe9", "tab\tbed"])
def test_a_key_that_is_none_is_named(key: str) -> None:
    async def main() -> None:
        peer = Peer(shared(), key=key)
        with pytest.raises(GatewayError, match="Idempotency-Key must have 1 to 255 printable") as raised:
            await peer.asks()
        assert (raised.value.status, raised.value.param) == (400, "Idempotency-Key")

    asyncio.run(main())


def test_the_longest_key_and_one_with_spaces_are_taken() -> None:
    async def main() -> None:
        both = shared()
        assert not await Peer(both, key="~" * 255).asks()
        assert not await Peer(both, key="order 17, second try").asks()

    asyncio.run(main())


def test_another_body_under_the_key_is_told_so() -> None:
    async def main() -> None:
        both = shared()
        await Peer(both).asks()
        assert await code_of(Peer(both), STREAM) == (422, "idempotency_key_reused")

    asyncio.run(main())


def test_end_users_and_keys_are_different_callers() -> None:
    async def main() -> None:
        both = shared()
        named = [b'{"user":"anne","stream":true}', b'{"user":"bob","stream":true}', b'{"stream":true}']
        assert [await Peer(both).asks(body) for body in named] == [False] * 3
        assert not await Peer(both).asks(named[2], key="team-b")
        assert await code_of(Peer(both), named[0]) == (409, "request_in_progress")

    asyncio.run(main())


def test_what_is_no_json_is_left_to_the_endpoint() -> None:
    async def main() -> None:
        for body in (b"{", b"[]", b'"\xff"', b"[" * 100_000):
            assert not await Peer(shared()).asks(body)

    asyncio.run(main())


@pytest.mark.parametrize("sizes", [[1_001], [600, 600]])
def test_an_answer_that_is_too_large_is_not_held_and_its_retry_is_told_so(sizes: list[int]) -> None:
    async def main() -> None:
        both = shared()
        first = Peer(both)
        await first.asks()
        first.once.ends_whole(lambda: True)
        await first.client.start(200, [])
        for size in sizes:
            await first.client.write(b"x" * size)
        assert both.recorded_bytes == 0
        await first.client.finish()
        with pytest.raises(GatewayError, match="at most 1000 bytes an answer") as raised:
            await Peer(both).asks()
        assert (raised.value.status, raised.value.code) == (409, "result_not_kept")
        assert raised.value.headers["x-should-retry"] == "false"
        assert len(first.body) == sum(sizes)

    asyncio.run(main())


def test_answers_under_way_hold_no_more_together_than_all_that_may_be_kept() -> None:
    async def main() -> None:
        both = shared(bounds=Bounds(lease_s=10, max_bytes=2_500))
        peers = [Peer(both, key=f"k-{number}") for number in range(4)]
        for peer in peers:
            await peer.asks()
            peer.once.ends_whole(lambda: True)
            await peer.client.start(200, [])
            await peer.client.write(b"x" * 1_000)
            assert both.recorded_bytes <= 2_500
        for peer in peers:
            await peer.client.finish()
        assert both.recorded_bytes == 0

    asyncio.run(main())


def test_waiting_ends_with_the_answer_and_wakes_all() -> None:
    async def main() -> None:
        both = shared()
        first = Peer(both)
        await first.asks()
        others = [Peer(both) for _ in range(20)]
        waiting = [asyncio.create_task(other.asks()) for other in others]
        await asyncio.sleep(0.01)
        assert both.lifecycle.open_count == 20
        await first.runs(b"answer")
        assert await asyncio.wait_for(asyncio.gather(*waiting), 1) == [True] * 20
        assert {other.body for other in others} == {b"answer"}
        assert both.lifecycle.open_count == 0

    asyncio.run(main())


def test_one_of_those_that_wait_takes_over_where_the_first_fails() -> None:
    async def main() -> None:
        both = shared()
        first = Peer(both)
        await first.asks()
        others = [Peer(both) for _ in range(5)]
        waiting = [asyncio.create_task(other.asks()) for other in others]
        await asyncio.sleep(0.01)
        await first.runs(b"error", ok=False)
        done, _ = await asyncio.wait(waiting, timeout=0.1)
        assert [task.result() for task in done] == [False]
        heir = others[waiting.index(done.pop())]
        await heir.runs(b"answer")
        assert sorted(await asyncio.wait_for(asyncio.gather(*waiting), 1)) == [False, True, True, True, True]

    asyncio.run(main())


def test_waiting_ends_with_the_client_with_a_shutdown_and_with_patience() -> None:
    async def main() -> None:
        both = shared(bounds=Bounds())
        await Peer(both).asks()
        leaver, stopped = Peer(both), Peer(both)
        leaving, stopping = asyncio.create_task(leaver.asks()), asyncio.create_task(code_of(stopped))
        await asyncio.sleep(0.01)
        leaver.leaves.set()
        with pytest.raises(ClientGone):
            await asyncio.wait_for(leaving, 1)
        assert both.lifecycle.interrupt_all() == 1
        assert await asyncio.wait_for(stopping, 1) == (503, "shutting_down")
        assert await code_of(Peer(both), patience_s=0.05) == (409, "request_in_progress")
        began = asyncio.get_running_loop().time()
        hasty = Peer(both, headers={"x-stainless-read-timeout": "0.1"})
        assert await code_of(hasty) == (409, "request_in_progress")
        assert asyncio.get_running_loop().time() - began < 0.1
        for nonsense in ("nan", "-1", "soon"):
            peer = Peer(both, headers={"x-stainless-read-timeout": nonsense})
            assert await code_of(peer, patience_s=0.02) == (409, "request_in_progress")

    asyncio.run(main())


def test_a_request_that_runs_keeps_its_claim_beyond_its_first_lease() -> None:
    async def main() -> None:
        both = shared(bounds=Bounds(lease_s=0.3))
        first = Peer(both)
        await first.asks()
        await asyncio.sleep(0.5)
        assert await code_of(Peer(both), patience_s=0.01) == (409, "request_in_progress")
        await first.runs(b"answer")
        assert await Peer(both).asks()

    asyncio.run(main())


class Moody(MemoryAnswers):
    """A store that may be out of reach."""

    is_out = False

    @override
    async def claim(self, place: Place, digest: bytes, token: bytes) -> Standing | Answer:
        self._look()
        return await super().claim(place, digest, token)

    @override
    async def finish(self, place: Place, digest: bytes, token: bytes, answer: Answer | None) -> bool:
        self._look()
        return await super().finish(place, digest, token, answer)

    @override
    async def release(self, place: Place, token: bytes) -> None:
        self._look()
        await super().release(place, token)

    def _look(self) -> None:
        if self.is_out:
            raise StateUnavailable("the state at redis://h:1/0 is out of reach")


def test_open_runs_without_the_state_and_says_so() -> None:
    async def main() -> None:
        store = Moody(SMALL, lambda: 0.0)
        both = shared(store)
        store.is_out = True
        peer = Peer(both)
        assert not await peer.asks()
        assert peer.once.is_unguarded
        await peer.runs(b"answer")
        assert peer.headers[b"x-kimi-idempotency"] == b"unavailable"
        store.is_out = False
        assert not await Peer(both).asks()

    asyncio.run(main())


def test_closed_refuses_at_once() -> None:
    async def main() -> None:
        store = Moody(SMALL, lambda: 0.0)
        store.is_out = True
        both = shared(store, on_outage="closed")
        assert await code_of(Peer(both)) == (503, "state_unavailable")
        assert not await Peer(both, key=None).asks()

    asyncio.run(main())


def test_an_outage_at_the_end_costs_the_client_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = Moody(SMALL, lambda: 0.0)
        both = shared(store)
        first, second = Peer(both), Peer(both)
        await first.asks()
        await second.asks(STREAM.replace(b"{", b'{"user":"u",'))
        store.is_out = True
        await first.runs(b"answer")
        await second.runs(b"answer", ok=False)
        assert first.body == b"answer"

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "an answer cannot be kept: the state at redis://h:1/0 is out of reach"
    ]
