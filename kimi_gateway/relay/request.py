"""From a body to a call: read, check the caller's rights, plan, encode. Raises before anything is booked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from backends.catalog import foreign_fields
from backends.dialect import Dialect
from backends.encode import Incapable, Request, Wish, encode_request
from backends.messages import thought_state
from backends.ports import Call
from kimi_gateway import __version__
from kimi_gateway.core.effort import Effort, EffortPolicy, resolve
from kimi_gateway.core.keys import KeyPolicy
from kimi_gateway.core.plan import Asked, Plan, find_route, plan
from kimi_gateway.core.tags import read_tags
from kimi_gateway.core.view import RequestView, read
from kimi_gateway.errors import Forbidden, InvalidRequest
from kimi_gateway.relay.client import Client
from kimi_gateway.settings import Route, Settings, Target
from pricing.estimate import Estimate, estimate_prompt

_USER_AGENT: Final = f"kimi-gateway/{__version__}"


@dataclass(slots=True)
class Prepared:
    """One request, ready to be sent to one target. It holds the upstream's body until `take_call`."""

    target: Target
    dialect: Dialect
    upstream_model: str
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
    prompt_estimate: Estimate
    thinking: str
    adjusted: tuple[str, ...]
    tags: dict[str, str]
    call: Call | None = field(repr=False)

    def take_call(self) -> Call:
        """The call, which is given away: its body is not kept for the length of the answer."""
        if self.call is None:
            raise RuntimeError("the call of this request was taken already")
        call, self.call = self.call, None
        return call


def prepare(
    body: bytes, client: Client, policy: KeyPolicy, settings: Settings, dialects: Mapping[str, Dialect]
) -> Prepared:
    """The prepared request. Raises `InvalidRequest`, `NotFound`, `Forbidden`."""
    view = read(body)
    found = _plan(view, client, policy, settings)
    route = find_route(view.model, settings.routes)
    effort = resolve(view.effort, _effort_policy(policy, route))
    ttl = view.ttl or policy.default_ttl or (route.default_ttl if route is not None else "")
    limit = view.output_limit or policy.max_completion_tokens or (route.max_completion_tokens if route else 0)
    target, dialect, upstream_model, request = _encoded(
        view, found, settings, dialects, effort=effort, ttl=ttl, limit=limit or None
    )
    return Prepared(
        target=target,
        dialect=dialect,
        upstream_model=upstream_model,
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
        prompt_estimate=estimate_prompt(view.text, messages=len(view.messages), tools="tools" in view.fields),
        thinking=_thinking(view),
        adjusted=tuple(dict.fromkeys((*found.adjusted, *effort.adjusted, *request.adjusted))),
        tags=read_tags(client.header(b"x-kimi-tags")),
        call=_call(target, request),
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


def _effort_policy(policy: KeyPolicy, route: Route | None) -> EffortPolicy:
    default = policy.default_effort or (route.default_effort if route is not None else "")
    return EffortPolicy(default=default or None, ceiling=policy.max_effort or "max")


def _effort_sent(effort: Effort) -> str:
    return "none" if effort.off else effort.value or "unset"


def _thinking(view: RequestView) -> str:
    """What the history says of its thoughts: "" without an assistant turn."""
    turns, missing = thought_state(view.heads)
    if not turns:
        return ""
    return f"missing={missing}" if missing else "intact"


def _encoded(
    view: RequestView,
    found: Plan,
    settings: Settings,
    dialects: Mapping[str, Dialect],
    *,
    effort: Effort,
    ttl: str,
    limit: int | None,
) -> tuple[Target, Dialect, str, Request]:
    """The request for the first target that is capable of it."""
    refusals: list[Incapable] = []
    by_name = {target.name: target for target in settings.targets}
    for name, upstream_model in found.targets:
        target = by_name[name]
        dialect = dialects[target.dialect]
        wish = Wish(
            fields=view.fields,
            messages=view.messages,
            heads=view.heads,
            model=upstream_model,
            stream=view.stream or target.fold,
            stream_options=view.stream_options,
            effort=effort.value,
            thinking_off=effort.off,
            ttl=ttl,
            output_limit=limit,
            n=view.n,
            named_tool=view.named_tool,
            extra_body=target.extra_body,
        )
        try:
            return target, dialect, upstream_model, encode_request(wish, dialect, foreign_fields(dialect))
        except Incapable as refusal:
            refusals.append(refusal)
    first = refusals[0]
    raise InvalidRequest(str(first), code="unsupported_value", param=first.param) from first


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
