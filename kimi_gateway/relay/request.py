"""From a body to a call: read, check the caller's rights, plan, encode. Raises before anything is booked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from backends.catalog import foreign_fields
from backends.dialect import Dialect
from backends.encode import Incapable, Request, Wish, encode_request
from backends.json import JsonError
from backends.messages import MessageHead, thought_state
from backends.ports import Call
from kimi_gateway import __version__
from kimi_gateway.core.effort import Effort, EffortPolicy, resolve
from kimi_gateway.core.keys import KeyPolicy
from kimi_gateway.core.plan import Asked, Plan, find_route, plan
from kimi_gateway.core.repair import placeholder_for, spliced
from kimi_gateway.core.room import fitted, output_limit
from kimi_gateway.core.tags import read_tags
from kimi_gateway.core.view import Raw, RequestView, read
from kimi_gateway.errors import Forbidden, InvalidRequest
from kimi_gateway.relay.client import Client
from kimi_gateway.relay.context import Context
from kimi_gateway.relay.thinking import Recall
from kimi_gateway.settings import Route, Settings, Target
from pricing.estimate import Estimate, estimate_prompt

_PATIENCE_MAX_S: Final = 86_400.0
_USER_AGENT: Final = f"kimi-gateway/{__version__}"


@dataclass(slots=True)
class Option:
    """One target that can take the request, with the request in its words."""

    target: Target
    dialect: Dialect
    upstream_model: str
    call: Call = field(repr=False)
    adjusted: tuple[str, ...] = ()
    thinking: str = ""  # what was done about the history's thoughts, "" without an assistant turn
    repaired: int = 0  # how many were put back

    def release(self) -> None:
        """Lets go of the request's body: it will not be sent again."""
        self.call = replace(self.call, body=b"")


@dataclass(slots=True)
class Prepared:
    """One request, checked and planned. It holds the client's body until `release`."""

    route: str
    model: str
    tier: str
    effort: str  # as sent; "unset" where none was
    ttl: str
    stream: bool
    n: int
    wants_usage: bool
    wants_meta: bool
    named_tool: bool
    named_tier: bool  # the request has a service_tier, so the answer says which one served
    prompt_estimate: Estimate
    recall: Recall | None = field(repr=False)  # None: nothing is put back or kept
    adjusted: tuple[str, ...]
    tags: dict[str, str]
    read_timeout_s: float | None  # how long the client waits between bytes, where it said so
    options: "Options" = field(repr=False)

    def release(self) -> None:
        """Lets go of the bodies: content was forwarded, so no further attempt can follow."""
        self.options = Options((), lambda name, model: None)


class Options:
    """The capable targets of a plan in order, each encoded when its turn comes."""

    def __init__(self, planned: Sequence[tuple[str, str]], encode: Callable[[str, str], "Option | None"]) -> None:
        self._left = list(planned)
        self._encode = encode
        self._next: Option | None = None

    def peek(self) -> Option | None:
        """The next target that can take the request, None where none is left."""
        while self._next is None and self._left:
            self._next = self._encode(*self._left.pop(0))
        return self._next

    def take(self) -> Option | None:
        """The same, taken."""
        option, self._next = self.peek(), None
        return option


async def prepare(body: bytes, client: Client, policy: KeyPolicy, ctx: Context) -> Prepared:
    """The prepared request. Raises `InvalidRequest`, `NotFound`, `Forbidden`."""
    view, settings = read(body), ctx.settings
    found = _plan(view, client, policy, settings)
    route = find_route(view.model, settings.routes)
    effort = resolve(view.effort, _effort_policy(policy, route))
    ttl = view.ttl or policy.default_ttl or (route.default_ttl if route is not None else "")
    limit = view.output_limit or policy.max_completion_tokens or (route.max_completion_tokens if route else 0)
    recall = await _recall(view, found, policy, ctx)
    encoder = _Encoder(view, ctx, effort=effort, ttl=ttl, limit=limit or None, recall=recall)
    options = Options(found.targets, encoder.option)
    if options.peek() is None:
        raise encoder.refusal()
    return Prepared(
        route=found.route,
        model=found.model,
        tier=found.tier,
        effort=_effort_sent(effort),
        ttl=ttl,
        stream=view.stream,
        n=view.n,
        wants_usage=view.include_usage,
        wants_meta=view.include_usage or client.header(b"x-kimi-meta") == "1",
        named_tool=view.named_tool is not None,
        named_tier=view.service_tier is not None,
        prompt_estimate=encoder.prompt,
        recall=recall,
        adjusted=tuple(dict.fromkeys((*found.adjusted, *effort.adjusted))),
        tags=read_tags(client.header(b"x-kimi-tags")),
        read_timeout_s=_seconds(client.header(b"x-stainless-read-timeout")),
        options=options,
    )


def _plan(view: RequestView, client: Client, policy: KeyPolicy, settings: Settings) -> Plan:
    pinned = client.header(b"x-kimi-target")
    if pinned is not None and not policy.pin:
        raise Forbidden(
            "this key may not choose a target; leave x-kimi-target out, or set pin = true for the key",
            code="pin_not_allowed",
            param="x-kimi-target",
        )
    asked = Asked(model=view.model, service_tier=view.service_tier, pinned=pinned, tiers=policy.tiers)
    return plan(asked, settings.routes, settings.targets)


def _seconds(header: str | None) -> float | None:
    """A positive number of seconds; anything else is no announcement."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if 0 < seconds < _PATIENCE_MAX_S else None


def _effort_policy(policy: KeyPolicy, route: Route | None) -> EffortPolicy:
    default = policy.default_effort or (route.default_effort if route is not None else "")
    return EffortPolicy(default=default or None, ceiling=policy.max_effort or "max")


def _effort_sent(effort: Effort) -> str:
    return "none" if effort.off else effort.value or "unset"


async def _recall(view: RequestView, found: Plan, policy: KeyPolicy, ctx: Context) -> Recall | None:
    """What is remembered of the history; None where repair is off, for all or for this key."""
    if not (ctx.settings.thinking.repair and policy.thinking_repair):
        return None
    by_name = {target.name: target for target in ctx.settings.targets}
    details = any(ctx.dialects[by_name[name].dialect].keeps_thought_details for name, _ in found.targets)
    return await ctx.thinking.recall(view, policy.name, details=details)


def _stated_thinking(view: RequestView) -> str:
    """What the history itself says of its thoughts: "" without an assistant turn."""
    turns, missing = thought_state(view.heads)
    if not turns:
        return ""
    return f"missing={missing}" if missing else "intact"


class _Encoder:
    """Encodes one request for any target, and remembers why some could not take it."""

    def __init__(
        self,
        view: RequestView,
        ctx: Context,
        *,
        effort: Effort,
        ttl: str,
        limit: int | None,
        recall: Recall | None,
    ) -> None:
        self._view = view
        self._targets = {target.name: target for target in ctx.settings.targets}
        self._dialects = ctx.dialects
        self._recall = recall
        self.prompt = estimate_prompt(view.text, messages=len(view.messages), tools="tools" in view.fields)
        self._effort = effort
        self._ttl = ttl
        self._limit = limit
        self._refusals: list[Incapable] = []

    def option(self, name: str, upstream_model: str) -> Option | None:
        """The request for one target; None where it lacks what the request needs."""
        view, target = self._view, self._targets[name]
        dialect = self._dialects[target.dialect]
        messages, heads, thinking, repaired = self._repaired(target, dialect, upstream_model)
        limit = self._limit and output_limit(self._limit, prompt=self.prompt, window=target.window)
        wish = Wish(
            fields=view.fields,
            messages=messages,
            heads=heads,
            model=upstream_model,
            stream=view.stream or target.fold,
            stream_options=view.stream_options,
            effort=self._effort.value,
            thinking_off=self._effort.off,
            ttl=self._ttl,
            output_limit=limit,
            n=view.n,
            named_tool=view.named_tool,
            extra_body=target.extra_body,
        )
        try:
            request = encode_request(wish, dialect, foreign_fields(dialect))
        except Incapable as refusal:
            self._refusals.append(refusal)
            return None
        except JsonError as err:
            raise InvalidRequest(f"a field of the body is no usable JSON ({err})", code="invalid_json") from err
        lowered = (view.limit_field or "max_completion_tokens",) if limit != self._limit else ()
        call, adjusted = _call(target, request), (*request.adjusted, *lowered)
        return Option(target, dialect, upstream_model, call, adjusted, thinking, repaired)

    def _repaired(
        self, target: Target, dialect: Dialect, upstream_model: str
    ) -> tuple[Sequence[Raw], Sequence[MessageHead], str, int]:
        """The history with its thoughts put back, as far as this target's window has room for them; what was done,
        in words and in a number."""
        view, recall = self._view, self._recall
        if recall is None:
            return view.messages, view.heads, _stated_thinking(view), 0
        plan = fitted(recall.plan, dialect, prompt=self.prompt, window=target.window, output=self._limit or 0)
        messages, heads = spliced(
            view.messages,
            view.heads,
            plan,
            placeholder=placeholder_for(upstream_model),
            keeps_details=dialect.keeps_thought_details,
        )
        return messages, heads, plan.disclosure, len(plan.repairs)

    def refusal(self) -> InvalidRequest:
        """The 400 that names the field which no target can take."""
        first = self._refusals[0]
        return InvalidRequest(str(first), code="unsupported_value", param=first.param)


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
