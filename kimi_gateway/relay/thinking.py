"""The thoughts of conversations: recalled before a request goes upstream, kept before its answer ends.

The store belongs to the event loop. Long histories are digested in one thread, so that they do not stall other
answers; one, because several would only take turns at the interpreter's lock.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from backends.json import JsonObject
from kimi_gateway.core.digest import Tail, TurnMemo, is_large, read_history
from kimi_gateway.core.repair import RepairPlan, repair
from kimi_gateway.core.thought_record import Owner, owner_of, thought_in
from kimi_gateway.core.thoughts import Bounds, ThoughtStore
from kimi_gateway.core.view import RequestView
from kimi_gateway.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Recall:
    """What is remembered of a request's history, and where its answer will belong."""

    plan: RepairPlan
    owner: Owner
    tail: Tail


class Thinking:
    """Recalls and keeps thoughts. `mono` is the clock that retention is measured by, in seconds."""

    def __init__(self, bounds: Bounds, metrics: Metrics, mono: Callable[[], float]) -> None:
        self._store = ThoughtStore(bounds)
        self._memo = TurnMemo()
        self._metrics = metrics
        self._mono = mono
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="digests")

    async def recall(self, view: RequestView, key: str, *, details: bool) -> Recall:
        """What to put back into this history. `details`: a target that may serve it keeps `reasoning_details`."""
        if is_large(view.heads):
            loop = asyncio.get_running_loop()
            history = await loop.run_in_executor(self._thread, read_history, view.heads, self._memo)
        else:
            history = read_history(view.heads, self._memo)
        owner = owner_of(key, view.fields)
        plan = repair(history, view.heads, owner, self._store, self._mono(), details=details)
        return Recall(plan, owner, history.tail)

    def keep(self, recall: Recall, messages: Sequence[JsonObject], *, partial: bool = False) -> None:
        """Stores the thoughts of an answer; `partial` for one that was cut, under the text that was delivered."""
        now_s = self._mono()
        for message in messages:
            thought = thought_in(message, partial=partial)
            if thought is not None:
                keys = recall.tail.answer(message)
                self._store.keep(recall.owner, keys, thought, now_s, conversation=recall.plan.conversation)
        self._metrics.thinking(self._store.size_bytes)

    def close(self) -> None:
        """Ends the thread once what it is at is done."""
        self._thread.shutdown(wait=False, cancel_futures=True)
