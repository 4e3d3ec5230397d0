"""What is remembered of conversations: recalled before a request goes upstream, kept before its answer ends.

Thoughts that clients lose, and the record of what which target has cached. Long histories are digested one at a
time and in pieces, so that they do not stall other answers. Where the store does not answer, thoughts are missing
and the row says so: no request fails for it.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import msgspec

from backends.json import JsonObject
from kimi_gateway.core.digest import History, TurnKeys, TurnMemo, history_steps, is_large, read_history
from kimi_gateway.core.prefix import Prefix, places_to_look, read_prefix
from kimi_gateway.core.repair import RepairPlan, Want, plan_repair, wanted
from kimi_gateway.core.sending import ToolsMemo
from kimi_gateway.core.thought_record import Owner, Thought, owner_of, thought_in
from kimi_gateway.core.view import Raw, RequestView
from kimi_gateway.core.warm_record import Record, pack, unpack
from kimi_gateway.core.warmth import Observed
from kimi_gateway.metrics import Metrics
from kimi_gateway.ports import AtOnce, Conversations, Remembered, StateUnavailable
from kimi_gateway.relay.turnstile import Turnstile, in_pieces

NOTHING: Final = Remembered([])
"""What is remembered where there is nothing to look up."""
UNAVAILABLE: Final = "state_unavailable"
"""The anomaly of a row whose conversation could not be looked up or kept."""

_PLAIN: Final = re.compile(r"[\x21-\x7e]{1,256}\Z")
_log: Final = logging.getLogger("kimi_gateway.thinking")


@dataclass(slots=True)  # not frozen: to set its fields past the freeze takes 0.8 µs
class Recall:
    """What is remembered of a request's conversation. `plan` None: nothing is put back or kept of thoughts.

    `tools` is the digest of the client's list, `conversation` the client's name for it, as it may be passed on.
    """

    plan: RepairPlan | None
    owner: Owner
    prefix: Prefix = field(repr=False)
    tools: bytes = b""
    record: Record | None = field(default=None, repr=False)
    conversation: str = ""
    anomaly: str = ""


class _Read(msgspec.Struct, frozen=True, gc=False):
    """What a request says of its conversation. `wants` None: no thoughts are put back."""

    owner: Owner
    prefix: Prefix
    wants: Sequence[Want] | None
    places: Sequence[bytes]
    conversation: str

    @property
    def keys(self) -> list[TurnKeys]:
        return [want.keys for want in self.wants or ()]

    @property
    def looks_up(self) -> bool:
        return bool(self.wants or self.places)


class Thinking:
    """Recalls and keeps."""

    def __init__(self, store: Conversations, metrics: Metrics, turnstile: Turnstile | None = None) -> None:
        self._store = store
        self._at_once = store if isinstance(store, AtOnce) else None
        self._turnstile = turnstile or Turnstile()
        self._memo = TurnMemo()
        self._tools = ToolsMemo()
        self._metrics = metrics
        self._problem = ""

    def recall_now(
        self, view: RequestView, key: str, *, repairs: bool, details: bool, conversation: str | None
    ) -> Recall | None:
        """What is known of this request's conversation, where nothing has to be waited for; else None.

        `repairs`: thoughts are put back. `details`: a target that may serve it keeps `reasoning_details`.
        `conversation` is what the client calls it in `x-kimi-conversation`.
        """
        store = self._at_once
        if store is None or is_large(view.heads):
            return None
        read = self._read(
            view, read_history(view.heads, self._memo, view.messages), key, repairs, details, conversation
        )
        remembered = store.recall_now(read.owner, read.keys, read.places) if read.looks_up else NOTHING
        return self._recalled(view, read, remembered)

    async def recall(
        self, view: RequestView, key: str, *, repairs: bool, details: bool, conversation: str | None
    ) -> Recall:
        """The same in every case."""
        if is_large(view.heads):
            async with self._turnstile:
                history = await in_pieces(history_steps(view.heads, self._memo, view.messages))
                read = self._read(view, history, key, repairs, details, conversation)
        else:
            read = self._read(
                view, read_history(view.heads, self._memo, view.messages), key, repairs, details, conversation
            )
        if not read.looks_up:
            return self._recalled(view, read, NOTHING)
        try:
            remembered = await self._store.recall(read.owner, read.keys, read.places)
        except StateUnavailable as err:
            return self._recalled(view, read, Remembered([None] * len(read.keys)), self._out(err))
        self._back()
        return self._recalled(view, read, remembered)

    def _read(
        self, view: RequestView, history: History, key: str, repairs: bool, details: bool, conversation: str | None
    ) -> "_Read":
        prefix = read_prefix(history, view.heads, view.fields, conversation=conversation)
        wants = wanted(history, view.heads, details=details) if repairs else None
        name = _passable(conversation, view.fields.get("prompt_cache_key"))
        return _Read(owner_of(key, view.fields), prefix, wants, places_to_look(prefix), name)

    def _recalled(self, view: RequestView, read: "_Read", remembered: Remembered, anomaly: str = "") -> Recall:
        plan = plan_repair(view.heads, read.wants, remembered.found) if read.wants is not None else None
        tools = view.fields.get("tools")
        return Recall(
            plan,
            read.owner,
            read.prefix,
            self._tools.digest(tools) if tools is not None else b"",
            unpack(remembered.note),
            read.conversation,
            anomaly,
        )

    def keep_now(
        self, recall: Recall, messages: Sequence[JsonObject], observed: Observed, *, partial: bool = False
    ) -> bool:
        """The same as `keep` where nothing has to be waited for, and so nothing can go wrong; else False, and
        nothing is kept."""
        store = self._at_once
        if store is None:
            return False
        kept, note = _to_keep(recall, messages, observed, partial=partial)
        if kept or note is not None:
            conversation = recall.plan.conversation if recall.plan is not None else b""
            store.keep_now(recall.owner, kept, conversation=conversation, places=observed.places, note=note)
        return True

    async def keep(
        self, recall: Recall, messages: Sequence[JsonObject], observed: Observed, *, partial: bool = False
    ) -> str:
        """Stores the thoughts of an answer and what was observed of the cache; `partial` for an answer that was
        cut, under the text that was delivered.

        Gives back the anomaly for the row, "" where all is well.
        """
        kept, note = _to_keep(recall, messages, observed, partial=partial)
        if not kept and note is None:
            return ""
        conversation = recall.plan.conversation if recall.plan is not None else b""
        try:
            await self._store.keep(
                recall.owner, kept, conversation=conversation, places=observed.places, note=note
            )
        except StateUnavailable as err:
            return self._out(err)
        self._back()
        return ""

    def _out(self, err: StateUnavailable) -> str:
        """The anomaly for the row. An outage is said once, not for each request that meets it."""
        if str(err) != self._problem:
            self._problem = str(err)
            _log.warning("conversations are neither looked up nor kept: %s", err)
        return UNAVAILABLE

    def _back(self) -> None:
        if self._problem:
            self._problem = ""
            _log.warning("the state answers again: conversations are looked up and kept")

    async def forget_key(self, key: str) -> int:
        """Deletes what is kept under a key's name; gives back how many thoughts. Raises `StateUnavailable`."""
        return await self._store.forget_key(key)

    async def sample(self) -> None:
        """Brings the metrics of the store up to date, where it answers."""
        try:
            self._metrics.thinking(await self._store.statistics())
        except StateUnavailable:
            return


def _to_keep(
    recall: Recall, messages: Sequence[JsonObject], observed: Observed, *, partial: bool
) -> tuple[list[tuple[TurnKeys, Thought]], bytes | None]:
    """The thoughts of an answer under their keys, and the note on the conversation."""
    kept = []
    if recall.plan is not None:
        for message in messages:
            thought = thought_in(message, partial=partial)
            if thought is not None:
                # One answer's keys are known already where it was observed: 3 µs.
                known = observed.keys if len(messages) == 1 else None
                kept.append((known or recall.prefix.answered(message), thought))
    return kept, pack(observed.record) if observed.record is not None and observed.places else None


def _passable(header: str | None, cache_key: Raw | None) -> str:
    """The client's name for the conversation as every upstream takes it; a digest of one that none would."""
    name = header or ""
    if not name:
        if cache_key is None:
            return ""
        try:
            name = msgspec.json.decode(cache_key, type=str)
        except msgspec.DecodeError:
            return ""
    if not name or _PLAIN.match(name):
        return name
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
