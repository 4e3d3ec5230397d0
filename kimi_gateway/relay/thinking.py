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
from kimi_gateway.core.repair import RepairPlan, plan_repair, wanted
from kimi_gateway.core.sending import ToolsMemo
from kimi_gateway.core.thought_record import Owner, owner_of, thought_in
from kimi_gateway.core.view import Raw, RequestView
from kimi_gateway.core.warm_record import Record, pack, unpack
from kimi_gateway.core.warmth import Observed
from kimi_gateway.metrics import Metrics
from kimi_gateway.ports import Conversations, Remembered, StateUnavailable
from kimi_gateway.relay.turnstile import Turnstile, in_pieces

UNAVAILABLE: Final = "state_unavailable"
"""The anomaly of a row whose conversation could not be looked up or kept."""

_PLAIN: Final = re.compile(r"[\x21-\x7e]{1,256}\Z")
_log: Final = logging.getLogger("kimi_gateway.thinking")


@dataclass(frozen=True, slots=True)
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


class Thinking:
    """Recalls and keeps."""

    def __init__(self, store: Conversations, metrics: Metrics, turnstile: Turnstile | None = None) -> None:
        self._store = store
        self._turnstile = turnstile or Turnstile()
        self._memo = TurnMemo()
        self._tools = ToolsMemo()
        self._metrics = metrics
        self._problem = ""

    async def recall(
        self, view: RequestView, key: str, *, repairs: bool, details: bool, conversation: str | None
    ) -> Recall:
        """What is known of this request's conversation.

        `repairs`: thoughts are put back. `details`: a target that may serve it keeps `reasoning_details`.
        `conversation` is what the client calls it in `x-kimi-conversation`.
        """
        history, prefix = await self._history(view, conversation)
        owner = owner_of(key, view.fields)
        wants = wanted(history, view.heads, details=details) if repairs else []
        remembered, anomaly = await self._remembered(owner, [want.keys for want in wants], places_to_look(prefix))
        plan = plan_repair(view.heads, wants, remembered.found) if repairs else None
        return Recall(
            plan,
            owner,
            prefix,
            self._tools.digest(view.fields.get("tools")),
            unpack(remembered.note),
            _passable(conversation, view.fields.get("prompt_cache_key")),
            anomaly,
        )

    async def _history(self, view: RequestView, conversation: str | None) -> tuple[History, Prefix]:
        if not is_large(view.heads):
            history = read_history(view.heads, self._memo)
            return history, self._prefix(history, view, conversation)
        async with self._turnstile:
            history = await in_pieces(history_steps(view.heads, self._memo))
            return history, self._prefix(history, view, conversation)

    def _prefix(self, history: History, view: RequestView, conversation: str | None) -> Prefix:
        return read_prefix(history, view.heads, view.messages, view.fields, self._memo, conversation=conversation)

    async def _remembered(
        self, owner: Owner, keys: Sequence[TurnKeys], places: Sequence[bytes]
    ) -> tuple[Remembered, str]:
        if not keys and not places:
            return Remembered([]), ""
        try:
            remembered = await self._store.recall(owner, keys, places)
        except StateUnavailable as err:
            return Remembered([None] * len(keys)), self._out(err)
        self._back()
        return remembered, ""

    async def keep(
        self, recall: Recall, messages: Sequence[JsonObject], observed: Observed, *, partial: bool = False
    ) -> str:
        """Stores the thoughts of an answer and what was observed of the cache; `partial` for an answer that was
        cut, under the text that was delivered.

        Gives back the anomaly for the row, "" where all is well.
        """
        kept = []
        if recall.plan is not None:
            thoughts = [(message, thought_in(message, partial=partial)) for message in messages]
            kept = [
                (recall.prefix.answered(message), thought) for message, thought in thoughts if thought is not None
            ]
        note = pack(observed.record) if observed.record is not None and observed.places else None
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


def _passable(header: str | None, cache_key: Raw | None) -> str:
    """The client's name for the conversation as every upstream takes it; a digest of one that none would."""
    name = header or ""
    if not name and cache_key is not None:
        try:
            name = msgspec.json.decode(cache_key, type=str)
        except msgspec.DecodeError:
            return ""
    if not name or _PLAIN.match(name):
        return name
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
