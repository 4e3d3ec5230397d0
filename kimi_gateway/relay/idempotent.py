"""`Idempotency-Key`: a request that comes twice is run once, and answered twice with the same bytes.

What is kept is an answer that came to its clean end (its row says `ok`), folded or streamed, byte for byte as it
was sent. Everything else gives the key back, so that a retry really tries: refusals before anything was planned,
what an upstream refused or failed at, an answer that was cut, a client that left (its upstream is cancelled as
ever). An answer is kept before its last bytes leave: whoever has seen the end finds it.

Two requests are the same when their bodies are the same bytes; headers are not compared. The key belongs to the
caller, which is the key's name and the end user of the body.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final, Literal, Protocol

import msgspec

from backends.messages import is_true
from kimi_gateway.core.idempotency import Answer, Bounds, Place, Standing, place_of
from kimi_gateway.core.thought_record import Raw, owner_of
from kimi_gateway.errors import InvalidRequest, ShuttingDown, StateOut
from kimi_gateway.lifecycle import Lifecycle
from kimi_gateway.ports import StateUnavailable
from kimi_gateway.relay.client import Client, ClientGone, Message, Scope, Send, header
from kimi_gateway.settings import Target

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = (b"x-kimi-replayed", b"1")
UNGUARDED: Final = (b"x-kimi-idempotency", b"unavailable")

_NAME: Final = re.compile(r"[\x20-\x7e]{1,255}\Z")
_NOT_KEPT_HEADERS: Final = (b"x-ratelimit-", b"x-kimi-idempotency")  # they speak of a moment that is over
_QUICK_BYTES: Final = 1024 * 1024
_PATIENCE_PART: Final = 0.8  # of what a client says it waits
_log: Final = logging.getLogger("kimi_gateway.idempotency")
_fields: Final = msgspec.json.Decoder(dict[str, Raw])


class AnswerStore(Protocol):
    """Where claims and answers are kept: in the process or shared by several. All raise `StateUnavailable`.

    `digest` is that of a request's body, `token` names one attempt at it. See `core.idempotency.IdempotencyBook`.
    """

    async def claim(self, place: Place, digest: bytes, token: bytes) -> Standing | Answer:
        """Takes the place where it is free; else says who has it, or gives back the answer."""
        ...

    async def renew(self, place: Place, digest: bytes, token: bytes) -> bool:
        """Extends the claim's lease; false where the place is another's by now."""
        ...

    async def finish(self, place: Place, digest: bytes, token: bytes, answer: Answer | None) -> bool:
        """Keeps the answer, or with None the fact alone; false where the place is another's by now."""
        ...

    async def release(self, place: Place, token: bytes) -> None:
        """Gives the place up."""
        ...

    async def change(self, place: Place) -> None:
        """Returns when the place may be free, or have its answer. Never raises `StateUnavailable`."""
        ...

    async def forget_key(self, key: str) -> int:
        """Deletes the answers kept under a key's name; gives back how many."""
        ...


class Idempotency:
    """What the requests of a process share. `random_bits` gives that many random bits."""

    def __init__(
        self,
        store: AnswerStore,
        lifecycle: Lifecycle,
        random_bits: Callable[[int], int],
        *,
        bounds: Bounds,
        on_outage: Literal["open", "closed"],
    ) -> None:
        self.store = store
        self.lifecycle = lifecycle
        self.bounds = bounds
        self.closed_in_outage = on_outage == "closed"
        self.recorded_bytes = 0  # of answers under way, over all requests
        self._random_bits = random_bits

    def once(self, scope: Scope, send: Send) -> "Once":
        """The guard of one request; without the header it does nothing."""
        return Once(self, header(scope, HEADER.lower().encode()), send)

    def token(self) -> bytes:
        """A name for one attempt, 16 bytes."""
        return self._random_bits(128).to_bytes(16)


class Once:
    """One request. In this order: `check`, `answered`, `ends_whole`, then `close` whatever happened.

    `send` takes the place of the server's: it sees what the client gets.
    """

    def __init__(self, shared: Idempotency, name: str | None, send: Send) -> None:
        self.send: Send = send if name is None else self._sent
        self.is_unguarded = False  # the state is out, and the request runs without it
        self._shared = shared
        self._name = name
        self._out = send
        self._claim: _Claim | None = None
        self._is_whole: Callable[[], bool] = _never

    def check(self) -> None:
        """Raises a 400 for a key that is none."""
        if self._name is not None and not _NAME.match(self._name):
            raise InvalidRequest(
                f"{HEADER} must have 1 to 255 printable ASCII characters; a UUID is a good one",
                code="invalid_header",
                param=HEADER,
            )

    async def answered(self, body: bytes, key: str, client: Client, targets: Sequence[Target]) -> bool:
        """True where the kept answer was sent, and there is no more to do; false where the request is to run.

        Waits while the same request is under way elsewhere. Raises 409, 422, `StateOut`, `ShuttingDown`,
        `ClientGone`.
        """
        if self._name is None:
            return False
        fields = _read(body)
        place = place_of(owner_of(key, fields), self._name)
        claim = _Claim(self._shared, place, await _digest(body))
        try:
            standing = await claim.stand()
            if standing == "running" and not is_true(fields.get("stream", Raw(b""))):
                standing = await _waited(self._shared, claim, client, _patience_s(client, targets))
        except StateUnavailable as err:
            if self._shared.closed_in_outage:
                raise StateOut(str(err)) from err
            self.is_unguarded = True
            return False
        if isinstance(standing, Answer):
            await _replay(client, standing)
            return True
        if standing != "taken":
            raise _refusal(standing, self._shared.bounds)
        self._claim = claim
        claim.hold()
        return False

    def ends_whole(self, is_whole: Callable[[], bool]) -> None:
        """How to tell that the answer came to its clean end."""
        self._is_whole = is_whole

    async def close(self) -> None:
        """Keeps a whole answer that is not kept yet; else gives the place up."""
        claim = self._claim
        if claim is not None:
            await claim.close(keep=self._is_whole())

    async def _sent(self, message: Message) -> None:
        if self.is_unguarded and message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], UNGUARDED]}
        claim = self._claim
        if claim is not None:
            claim.recording.add(message)
            if claim.recording.is_whole and self._is_whole():
                await claim.keep()
        await self._out(message)


class _Recording:
    """What was sent so far, as long as it is small enough to be kept."""

    def __init__(self, shared: Idempotency) -> None:
        self._shared = shared
        self._status = 0
        self._headers: tuple[tuple[bytes, bytes], ...] = ()
        self._parts: list[bytes] = []
        self._held_bytes = 0
        self._is_dropped = False
        self.is_whole = False

    def add(self, message: Message) -> None:
        """Takes one message of the answer."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = tuple(
                (name, value) for name, value in message["headers"] if not name.startswith(_NOT_KEPT_HEADERS)
            )
            return
        if message["type"] != "http.response.body":
            return
        self._take(message.get("body", b""))
        self.is_whole = not message.get("more_body", False)

    def answer(self) -> Answer | None:
        """The whole answer, None where it was too large."""
        return None if self._is_dropped else Answer(self._status, self._headers, b"".join(self._parts))

    def drop(self) -> None:
        """Forgets the bytes."""
        self._is_dropped = True
        self._shared.recorded_bytes -= self._held_bytes
        self._held_bytes = 0
        self._parts = []

    def _take(self, data: bytes) -> None:
        if self._is_dropped:
            return
        self._parts.append(data)
        self._held_bytes += len(data)
        self._shared.recorded_bytes += len(data)
        bounds = self._shared.bounds
        if self._held_bytes > bounds.max_answer_bytes or self._shared.recorded_bytes > bounds.max_bytes:
            self.drop()


class _Claim:
    """One attempt at one request: its place, its lease while it runs, and what its client was sent."""

    def __init__(self, shared: Idempotency, place: Place, digest: bytes) -> None:
        self.place = place
        self.recording = _Recording(shared)
        self._shared = shared
        self._digest = digest
        self._token = shared.token()
        self._renewal: asyncio.Task[None] | None = None
        self._is_over = False

    async def stand(self) -> Standing | Answer:
        """Tries to take the place."""
        return await self._shared.store.claim(self.place, self._digest, self._token)

    def hold(self) -> None:
        """Keeps the lease alive from now on."""
        self._renewal = asyncio.create_task(self._renew())

    async def keep(self) -> None:
        """Stores the recorded answer. The client gets it in any case."""
        self._is_over = True
        self._stop_renewal()
        try:
            answer = self.recording.answer()
            if not await self._shared.store.finish(self.place, self._digest, self._token, answer):
                _log.warning("an answer is not kept: its lease ran out and the request was sent again")
        except StateUnavailable as err:
            _log.warning("an answer cannot be kept: %s", err)
        finally:
            self.recording.drop()

    async def close(self, *, keep: bool) -> None:
        """The end of the attempt."""
        if self._is_over:
            return
        if keep and self.recording.is_whole:
            await self.keep()
            return
        await self.release()

    async def release(self) -> None:
        """Gives the place up. Where that cannot be said, its lease runs out."""
        self._is_over = True
        self._stop_renewal()
        self.recording.drop()
        with suppress(StateUnavailable):
            await self._shared.store.release(self.place, self._token)

    def _stop_renewal(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._shared.bounds.lease_s / 3)
            try:
                if not await self._shared.store.renew(self.place, self._digest, self._token):
                    return
            except StateUnavailable:
                continue  # the lease is longer than most outages, and one that ran out is taken again


class _Waiter:
    """A request that waits for another, as something a shutdown can end."""

    def __init__(self) -> None:
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def interrupt(self) -> None:
        """The process is ending."""
        if not self.stopped.done():
            self.stopped.set_result(None)


async def _waited(shared: Idempotency, claim: _Claim, client: Client, patience_s: float) -> Standing | Answer:
    """How the place stands once it runs no more, or is taken; `running` where the patience is over before."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_s
    waiter, gone = _Waiter(), asyncio.create_task(client.gone())
    shared.lifecycle.track(waiter)
    try:
        while (left_s := until - loop.time()) > 0:
            change = asyncio.create_task(shared.store.change(claim.place))
            try:
                await asyncio.wait({change, gone, waiter.stopped}, timeout=left_s, return_when="FIRST_COMPLETED")
            finally:
                change.cancel()
            if waiter.stopped.done():
                raise ShuttingDown
            if gone.done():
                raise ClientGone
            standing = await claim.stand()
            if standing == "taken" and waiter.stopped.done():
                await claim.release()
                raise ShuttingDown
            if standing != "running":
                return standing
        return "running"
    finally:
        shared.lifecycle.untrack(waiter)
        gone.cancel()


async def _replay(client: Client, answer: Answer) -> None:
    await client.start(answer.status, [*answer.headers, REPLAYED])
    await client.finish_slowly(answer.body)


def _refusal(standing: Standing, bounds: Bounds) -> InvalidRequest:
    if standing == "other":
        return InvalidRequest(
            f"{HEADER}: this key came with another body before; take a new key for a new request",
            status=422,
            code="idempotency_key_reused",
            param=HEADER,
        )
    if standing == "not_kept":
        return InvalidRequest(
            f"{HEADER}: the request with this key was answered and paid for, and its answer is not kept (at most "
            f"{bounds.max_answer_bytes} bytes an answer, {bounds.max_bytes} over all); a new key runs it again",
            status=409,
            code="result_not_kept",
            param=HEADER,
            headers={"x-should-retry": "false"},
        )
    return InvalidRequest(
        f"{HEADER}: the request with this key is still being answered; send it again a little later",
        status=409,
        code="request_in_progress",
        param=HEADER,
        headers={"x-should-retry": "true", "retry-after": "1"},
    )


def _patience_s(client: Client, targets: Sequence[Target]) -> float:
    """How long a request waits: as long as an upstream may stay silent, but less than what its client says it
    waits for the first byte."""
    longest_s = max((target.first_byte_timeout_s + target.idle_timeout_s for target in targets), default=0.0)
    try:
        announced_s = float(client.header(b"x-stainless-read-timeout") or "")
    except ValueError:
        return longest_s
    return min(longest_s, _PATIENCE_PART * announced_s) if announced_s > 0 else longest_s


def _read(body: bytes) -> Mapping[str, Raw]:
    """The top level of a body; nothing of one that will be refused as no JSON object."""
    try:
        return _fields.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}


async def _digest(body: bytes) -> bytes:
    """SHA-256; of a large body beside the loop."""
    if len(body) <= _QUICK_BYTES:
        return sha256(body).digest()
    return (await asyncio.to_thread(sha256, body)).digest()


def _never() -> bool:
    return False
