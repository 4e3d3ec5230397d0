"""One request in the words of any target that may serve it, with what that one is thought to have cached."""

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import Struct
from msgspec.structs import replace as replace_struct

from backends.catalog import foreign_fields
from backends.dialect import Dialect
from backends.encode import Incapable, Request, Wish, encode_request, encode_steps, is_costly
from backends.family import family_of
from backends.json import JsonError
from backends.messages import MessageHead, thought_state
from backends.pieces import whole
from backends.ports import Call
from kimi_gateway import __version__
from kimi_gateway.core.effort import is_small
from kimi_gateway.core.repair import RepairPlan, placeholder_for, spliced_steps, with_empty_thoughts
from kimi_gateway.core.room import fitted, output_limit
from kimi_gateway.core.sending import Sending, thought_runs
from kimi_gateway.core.view import Raw, RequestView
from kimi_gateway.core.warmth import TTL_S, known_tokens, predict
from kimi_gateway.errors import InvalidRequest
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.frame import Decided
from kimi_gateway.relay.request import Option, Options
from kimi_gateway.relay.thinking import Recall
from kimi_gateway.relay.turnstile import HEAVY_BYTES, in_pieces
from kimi_gateway.settings import Target
from pricing.estimate import Estimate

SMALL_LIMIT: Final = "small_output_limit"
"""Disclosed where the output limit likely ends inside the thought."""
_USER_AGENT: Final = f"kimi-gateway/{__version__}"
_FRAME_TOKENS_MAX: Final = 64  # what stands around a message, see pricing.estimate
_DEFAULT_TTL: Final = "5m"  # what Moonshot writes at where nobody asks for another


class _History(Struct, frozen=True, gc=False):
    """The messages for one target, and what was done about their thoughts."""

    messages: Sequence[Raw]
    heads: Sequence[MessageHead]
    thinking: str
    plan: RepairPlan | None = None


@dataclass(slots=True)
class Encoder:
    """Encodes one request for any target, and remembers why some could not take it."""

    view: RequestView
    ctx: Context = field(repr=False)
    decided: Decided
    recall: Recall
    prompt: Estimate
    now_s: float
    targets: tuple[tuple[str, str], ...] = ()  # those planned, with their names of the model
    _refusals: list[Incapable] = field(default_factory=list)

    async def option(self, name: str, upstream_model: str) -> Option | None:
        """The request for one target; None where it lacks what the request needs."""
        target = next(target for target in self.ctx.settings.targets if target.name == name)
        dialect = self.ctx.dialects[target.dialect]
        is_large = sum(map(len, self.view.messages)) >= HEAVY_BYTES
        steps = self._history(target, dialect, upstream_model)
        if is_large:  # when it is its turn, so that several never hold up the loop
            async with self.ctx.turnstile:
                history = await in_pieces(steps)
        else:
            history = whole(steps)
        sending = self._sending(target, dialect, upstream_model, history)
        warmth = predict(self.recall.record, self.recall.prefix, sending, self.now_s)
        wish, lowered = self._wish(target, upstream_model, history, warmth.expected_read_tokens)
        try:
            if not is_large and not is_costly(wish, dialect):
                request = encode_request(wish, dialect, foreign_fields(dialect))
            else:
                request = await self._encoded(wish, dialect)
        except Incapable as refusal:
            self._refusals.append(refusal)
            return None
        except JsonError as err:
            raise InvalidRequest(f"a field of the body is no usable JSON ({err})", code="invalid_json") from err
        if request.narrowed:
            sending = replace(sending, narrowed=self.view.named_tool or "")
            warmth = predict(self.recall.record, self.recall.prefix, sending, self.now_s)
        return Option(
            target,
            dialect,
            upstream_model,
            _call(target, request),
            sending,
            warmth,
            adjusted=(*request.adjusted, *lowered),
            thinking=history.thinking,
            repaired=len(history.plan.repairs) if history.plan is not None else 0,
            tool_ids=request.tool_ids,
        )

    async def options(self, targets: Sequence[tuple[str, str]]) -> Options:
        """The options of these targets. Raises `InvalidRequest` where none can take the request."""
        found = Options(targets, self.option)
        if await found.peek() is None:
            raise self.refusal()
        return found

    async def lowered(self, limit: int) -> Options:
        """The same with this output limit. Raises `InvalidRequest`."""
        self.decided = replace_struct(self.decided, limit=limit)
        return await self.options(self.targets)

    def known(self) -> tuple[int, int] | None:
        """The tokens of the conversation's last prompt as reported, and the bytes that came since, thoughts that
        are put back included; None where the request does not simply go on from there."""
        recall, plan = self.recall, self.recall.plan
        found = known_tokens(recall.record, recall.prefix, recall.tools, thought_runs(self.view.heads, plan))
        if found is None:
            return None
        tokens, index = found
        since = self.view.messages[index:]
        thoughts = [item.thought for item in plan.repairs if item.index >= index] if plan is not None else []
        added = sum(map(len, since)) + sum(thought.size_bytes for thought in thoughts)
        return tokens, added + _FRAME_TOKENS_MAX * len(since)

    def refusal(self) -> InvalidRequest:
        """The 400 that names the field which no target can take."""
        first = self._refusals[0]
        return InvalidRequest(str(first), code="unsupported_value", param=first.param)

    def refuse(self, refusal: Incapable) -> None:
        """Notes why a target was left out before it was looked at."""
        self._refusals.append(refusal)

    async def _encoded(self, wish: Wish, dialect: Dialect) -> Request:
        foreign = foreign_fields(dialect)
        if is_costly(wish, dialect):
            return await asyncio.to_thread(encode_request, wish, dialect, foreign)
        if sum(map(len, wish.messages)) < HEAVY_BYTES:
            return encode_request(wish, dialect, foreign)
        async with self.ctx.turnstile:
            return await in_pieces(encode_steps(wish, dialect, foreign))

    def _wish(
        self, target: Target, upstream_model: str, history: _History, warm_tokens: int
    ) -> tuple[Wish, tuple[str, ...]]:
        """What to encode, and what is to be disclosed of its output limit."""
        view, decided = self.view, self.decided
        limit = decided.limit and output_limit(
            decided.limit,
            prompt=self.prompt,
            window=target.window,
            thoughts_bytes=history.plan.text_bytes if history.plan is not None else 0,
        )
        disclosed = (view.limit_field or "max_completion_tokens",) if limit != decided.limit else ()
        is_judged = not family_of(upstream_model).passes_through
        if limit is not None and is_judged and is_small(limit, decided.effort_sent):
            disclosed = (*disclosed, SMALL_LIMIT)
        wish = Wish(
            fields=view.fields,
            messages=history.messages,
            heads=history.heads,
            model=upstream_model,
            stream=view.stream or target.fold,
            stream_options=view.stream_options,
            effort=decided.effort.value,
            thinking_off=decided.effort.off,
            ttl=decided.ttl,
            output_limit=limit,
            n=view.n,
            named_tool=view.named_tool,
            warm_tokens=warm_tokens,
            narrow_tools_above=decided.narrow_tools_above,
            conversation=self.recall.conversation,
            extra_body=target.extra_body,
        )
        return wish, disclosed

    def _history(self, target: Target, dialect: Dialect, upstream_model: str) -> Generator[None, None, _History]:
        """The history with its thoughts put back, as far as this target's window has room for them; in pieces."""
        view, recall = self.view, self.recall
        if recall.plan is None:
            return _History(view.messages, view.heads, _stated_thinking(view))
        output = self.decided.limit or 0
        placeholder = placeholder_for(upstream_model)
        plan = fitted(recall.plan, dialect, prompt=self.prompt, window=target.window, output=output)
        yield
        plan = with_empty_thoughts(plan, view.heads, placeholder)
        messages, heads = yield from spliced_steps(
            view.messages,
            view.heads,
            plan,
            placeholder=placeholder,
            keeps_details=dialect.keeps_thought_details,
        )
        return _History(messages, heads, plan.disclosure, plan)

    def _sending(self, target: Target, dialect: Dialect, upstream_model: str, history: _History) -> Sending:
        return Sending(
            target=target.name,
            model=upstream_model,
            effort=self.decided.effort_sent,
            tools=self.recall.tools,
            thoughts=thought_runs(self.view.heads, history.plan),
            ttl_s=TTL_S[self.decided.ttl or _DEFAULT_TTL] if dialect.cache_options else 0,
            prompt_tokens=self.prompt.tokens,
        )


def _stated_thinking(view: RequestView) -> str:
    """What the history itself says of its thoughts: "" without an assistant turn."""
    turns, missing = thought_state(view.heads)
    if not turns:
        return ""
    return f"missing={missing}" if missing else "intact"


def _call(target: Target, request: Request) -> Call:
    """Headers by allow-list: nothing of the caller's goes upstream, least of all its key."""
    headers = {
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "user-agent": _USER_AGENT,
        **request.headers,
    }
    if target.api_key is not None:
        headers["authorization"] = f"Bearer {target.api_key.reveal()}"
    return Call(
        url=f"{target.base_url}/chat/completions",
        headers=headers,
        body=request.body,
        connect_timeout_s=target.connect_timeout_s,
    )
