"""A call of a chat as the application sees it: question, rounds of tools, a repair, the turn that is kept. Pure.

The conversation's history changes only at the very end. What broke off before that is remembered for `resume`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from backends.json import as_list, encode
from kimi_sdk.broken import StreamCut, ThinkingExhausted, TooManyRounds
from kimi_sdk.errors import BadOutput, ContentFiltered, KimiError
from kimi_sdk.events import Done, Usage
from kimi_sdk.exchange import Call, Exchange, Settings
from kimi_sdk.questions import tool_turn
from kimi_sdk.reply import NO_OPENING, Opening, Reply, with_output
from kimi_sdk.request import Manner, Wish
from kimi_sdk.steps import Logic, RunTools
from kimi_sdk.structured import Misfit, Output
from kimi_sdk.thread import Thread
from kimi_sdk.tools_calls import ToolResult

REPAIRS_MAX: Final = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A call of a chat: its turns so far, beyond the history, and how it goes on.

    `rounds` is how many rounds of tools may be run, 0 for none at all; `pending` an answer whose calls are run
    first.
    """

    turns: tuple[bytes, ...]
    wish: Wish
    output: Output[Any] | None = None
    rounds: int = 0
    pending: Reply | None = None


@dataclass(slots=True)
class Talk:
    """One call of a chat. `broke` is told what `resume` would go on with, None after an answer that is whole."""

    manner: Manner
    settings: Settings
    thread: Thread
    plan: Plan
    broke: Callable[[Plan | None], None]
    _turns: list[bytes] = field(init=False)
    _repairs: int = 0

    def __post_init__(self) -> None:
        self._turns = list(self.plan.turns)

    def run(self) -> Logic[Reply]:
        """The events of the call, `Done` at last; its reply. Raises `KimiError`, and the history is as before."""
        try:
            reply = yield from self._rounds()
        except KimiError as err:
            self._remember(err)
            raise
        wants_answer = self.thread.accept(self._turns, reply)
        rest = replace(self.plan, turns=(), wish=_without_opening(self.plan.wish), pending=None)
        self.broke(rest if wants_answer else None)
        yield Done(reply)
        return reply

    def _rounds(self) -> Logic[Reply]:
        opening, left = self.plan.wish.opening, self.plan.rounds
        if self.plan.pending is not None:
            yield from self._run_tools(self.plan.pending)
        while True:
            reply = yield from self._answer(opening)
            opening = NO_OPENING
            if reply.tool_calls and self.plan.rounds:
                if left == 0:
                    raise TooManyRounds(
                        f"the model still calls tools after {self.plan.rounds} rounds; give a larger max_rounds, "
                        "or go on with chat.resume()",
                        reply=reply,
                        rounds=self.plan.rounds,
                    )
                left -= 1
                yield from self._run_tools(reply)
                continue
            if self.plan.output is None or reply.tool_calls:
                return reply
            try:
                return with_output(reply, self.plan.output.read(reply.text))
            except Misfit as misfit:
                self._repair(reply, misfit, self.plan.output)

    def _answer(self, opening: Opening) -> Logic[Reply]:
        wish = replace(self.plan.wish, opening=opening)
        turns = [*self.thread.turns, *self._turns]
        call = Call(self.manner, turns, wish, self.thread.counted)
        reply = yield from Exchange(call, self.settings).run()
        yield from reply.tool_calls
        yield Usage(reply.usage, reply.cost, reply.cost_source)
        _refuse_empty(reply, wish)
        return reply

    def _run_tools(self, reply: Reply) -> Logic[None]:
        results: Sequence[ToolResult] = yield RunTools(reply.tool_calls)
        self._turns.append(encode(reply.message))
        self._turns += [tool_turn(result) for result in results]
        yield from results

    def _repair(self, reply: Reply, misfit: Misfit, output: Output[Any]) -> None:
        """Asks once more, with what is wrong. Raises `BadOutput` where that was done, or cannot help."""
        if self._repairs >= REPAIRS_MAX or reply.finish_reason == "length":
            limit = " The output limit cut it." if reply.finish_reason == "length" else ""
            raise BadOutput(
                f"the answer does not fit {output.name}: {misfit}.{limit}",
                text=reply.text,
                problems=misfit.problems,
                request_id=reply.request_id,
            ) from misfit
        self._repairs += 1
        if reply.text.strip():
            self._turns.append(encode(reply.message))
        self._turns.append(encode({"role": "user", "content": output.repair(misfit)}))

    def _remember(self, err: KimiError) -> None:
        """What to go on with: the answer that broke off, or the rounds before an error."""
        plan = replace(self.plan, turns=tuple(self._turns), pending=None)
        if isinstance(err, StreamCut):
            self.broke(replace(plan, wish=self._resumed(err.reply)))
        elif isinstance(err, TooManyRounds):
            self.broke(replace(plan, wish=_without_opening(plan.wish), pending=err.reply))
        elif len(self._turns) > len(self.plan.turns):
            self.broke(replace(plan, wish=_without_opening(plan.wish)))

    def _resumed(self, reply: Reply) -> Wish:
        if not reply.text:  # nothing that an answer could begin with: it is asked for anew
            return self.plan.wish
        details = tuple(as_list(reply.message.get("reasoning_details")))
        return replace(self.plan.wish, opening=Opening(reply.text, reply.thinking, details))


def _without_opening(wish: Wish) -> Wish:
    return replace(wish, opening=NO_OPENING)


def _refuse_empty(reply: Reply, wish: Wish) -> None:
    """Raises for an answer that has nothing in it for a reason."""
    if reply.thinking_exhausted:
        limit = "the server's own" if wish.limit is None else f"{wish.limit:,}"
        raise ThinkingExhausted(
            f"the thinking used up the output limit ({limit}), so there is no answer; give a larger "
            "max_completion_tokens or a lower effort. The tokens are billed",
            reply=reply,
        )
    if reply.is_empty and reply.finish_reason == "content_filter":
        raise ContentFiltered(
            "the answer was withheld by the content filter", status=200, request_id=reply.request_id
        )
