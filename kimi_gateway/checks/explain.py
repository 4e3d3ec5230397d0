"""Where a request would go: the plan of a request that stands in a file, without sending it anywhere.

The check runs beside the gateway, so it knows the configuration and the prices and nothing of caches, load and
health. It says so where a figure would stand.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Final, cast

import msgspec
from rich.console import Console

from backends.catalog import DIALECTS
from kimi_gateway.checks.findings import Findings, Mistake, Output, settings_mistakes
from kimi_gateway.checks.local import look_at_cards
from kimi_gateway.checks.show import shown
from kimi_gateway.checks.targets import tag_of
from kimi_gateway.core.effort import EffortPolicy, resolve
from kimi_gateway.core.plan import Asked, Plan, find_route, plan
from kimi_gateway.core.routing.candidate import (
    USUAL_OUTPUT_TOKENS,
    Candidate,
    Policy,
    Wants,
    candidate_of,
    policy_of,
)
from kimi_gateway.core.routing.explain import UNKNOWN_HERE, Entry, plan_object
from kimi_gateway.core.routing.needs import Needs, needs_of
from kimi_gateway.core.routing.rank import rank
from kimi_gateway.core.routing.tiers import account_of_file
from kimi_gateway.core.view import RequestView, read
from kimi_gateway.errors import GatewayError
from kimi_gateway.settings import Route, Settings, SettingsError, load
from pricing.cards import CardBook
from pricing.estimate import estimate_prompt
from pricing.render import table, text
from pricing.usage import METERS

_WELL: Final = 0
_WRONG: Final = 1
_WIDTH: Final = 10_000  # the table sees to the page itself
_USUAL_TTL: Final = "5m"  # what Moonshot writes at where nobody asks for another
_NOTE: Final = (
    "note: caches, load and health are known to a running gateway only: send it the request with the header "
    "x-kimi-explain: 1\n"
)
_CONFIGURED: Final = (
    "each sum is for a prompt of about {prompt:,} tokens, of which nothing is warm, and an answer of {output:,}"
)


@dataclass(frozen=True, slots=True)
class Explained:
    """A plan, as `kimi_gateway.core.routing.explain.plan_object` has it, and the mistakes that keep it from being
    one: there is either."""

    plan: Mapping[str, object]
    mistakes: tuple[Mistake, ...] = ()


def route_policy(route: Route | None) -> Policy:
    """The policy of a route; a model without a route goes by cost."""
    if route is None:
        return policy_of("cost")
    return policy_of(route.policy, route.weights, route.wait_usd_per_hour)


def run_explain(config: Path | None, request: Path, environ: Mapping[str, str], *, output: Output) -> int:
    """Prints the plan of a request that stands in a file, and gives back the exit code: 0, or 1 where the
    configuration or the request is wrong or no target can take it."""
    found, secrets = Findings(), list[str]()
    try:
        settings = load(config, environ)
        secrets += settings.secrets()
        body = request.read_bytes()
    except SettingsError as err:
        found.wrong(*settings_mistakes(err.mistakes, err.source))
    except OSError as err:
        what = f"{request} cannot be read ({err.strerror})"
        found.wrong(
            Mistake("--explain", what, "name a file that holds the JSON body of a chat completion request")
        )
    else:
        now_s = time.time()  # noqa: TID251  # the shell reads the clock
        of_cards, cards = look_at_cards(settings, now_s)
        found.wrong(*of_cards.mistakes)
        explained = explain_request(settings, cards, body, now_s=now_s)
        found.wrong(*explained.mistakes)
        if not found.mistakes:
            sys.stdout.write(plan_text(explained.plan, output))
            return _WELL if any("refused" not in one for one in _targets(explained.plan)) else _WRONG
    sys.stdout.write(shown(found, output, secrets))
    return _WRONG


def explain_request(settings: Settings, cards: CardBook, body: bytes, *, now_s: float) -> Explained:
    """The plan of a request with this body, sent without a key; what is wrong with it is a mistake. `now_s` is
    Unix seconds."""
    try:
        view = read(body)
        route = find_route(view.model, settings.routes)
        falls_back = route is not None and route.tier_fallback
        asked = Asked(view.model, view.service_tier, tier_fallback=falls_back)
        found = plan(asked, settings.routes, settings.targets)
        effort = resolve(view.effort, EffortPolicy())
        needs = needs_of(view.heads, view.fields, thinking_off=effort.off)
        candidates = _candidates(settings, cards, found, route, view.ttl, now_s)
        wants = _wants(view, needs, candidates)
    except GatewayError as err:
        what, _, remedy = err.message.partition("; ")
        return Explained({}, (Mistake(err.param or "request", what, remedy),))
    chosen = route_policy(route)
    ranking = rank(wants, candidates, chosen)
    return Explained(plan_object(ranking, wants, chosen, model=found.model, tier=found.tier, is_live=False))


def _candidates(
    settings: Settings, cards: CardBook, found: Plan, route: Route | None, ttl: str, now_s: float
) -> list[Candidate]:
    """All targets of the route, those too that do not map the model."""
    names = route.targets if route is not None else tuple(target.name for target in settings.targets)
    by_name = {target.name: target for target in settings.targets}
    made = []
    for place, name in enumerate(names):
        target = by_name[name]
        dialect, model = DIALECTS[target.dialect], target.models.get(found.model, "")
        tag = tag_of(target, dialect, model, cards, at_s=now_s)
        made.append(
            msgspec.structs.replace(
                candidate_of(
                    name,
                    model,
                    dialect,
                    tag.rates,
                    tag.write_rule,
                    account=target.account,
                    place=place,
                    window=target.window,
                    ttl=ttl or _USUAL_TTL,
                    weight=route.weights.get(name, 1.0) if route is not None else 1.0,
                    quota=target.quota,
                ),
                read_tokens=None,
            )
        )
    return made


def _wants(view: RequestView, needs: Needs, candidates: list[Candidate]) -> Wants:
    limit = view.output_limit
    accounts = [one.account for one in candidates if one.model and one.abilities.files]
    return Wants(
        prompt=estimate_prompt(view.text, messages=len(view.messages), tools="tools" in view.fields),
        output_tokens=min(limit, USUAL_OUTPUT_TOKENS) if limit else USUAL_OUTPUT_TOKENS,
        n=view.n,
        thinking_off=needs.thinking_off,
        remote_media=needs.remote_media,
        file=needs.file,
        file_account=account_of_file(needs.file, None, accounts) if needs.file else "",
    )


# --- output -----------------------------------------------------------------------------------------------------


def plan_text(found: Mapping[str, object], output: Output) -> str:
    """The plan as a table for people or as JSON, with a line feed at its end."""
    if output is Output.JSON:
        return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"
    head = f"{found['model']}, tier {found['tier']}, policy {found['policy']}: "
    sizes = _CONFIGURED.format(prompt=found["prompt_tokens"], output=found["output_tokens"])
    return f"{head}{sizes}\n\n{_table(_targets(found))}\n{_NOTE}"


def _targets(found: Mapping[str, object]) -> list[Entry]:
    return cast("list[Entry]", found["targets"])


def _table(entries: list[Entry]) -> str:
    billed = [cast("Mapping[str, str]", one.get("usd", {})) for one in entries]
    meters = [meter for meter in METERS if any(meter in one for one in billed)]
    names = [
        ("target", False),
        ("result", False),
        *((f"{meter} USD", True) for meter in meters),
        ("sum USD", True),
    ]
    names += [("warm tokens, age, wait, score", False), ("why", False)]
    grid = table(names)
    for number, (entry, money) in enumerate(zip(entries, billed, strict=True), 1):
        refused = str(entry.get("refused", ""))
        result = f"refused: {refused}" if refused else f"choice {number}"
        cells = [entry["target"], result, *(money.get(meter, "") for meter in meters), entry.get("money_usd", "")]
        grid.add_row(*(text(cell) for cell in (*cells, "" if refused else UNKNOWN_HERE, _why(entry))))
    page = StringIO()
    Console(file=page, width=_WIDTH, highlight=False, color_system=None).print(grid)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def _why(entry: Entry) -> str:
    """What is to be said of a target besides its figures."""
    parts = [str(entry["why"])] if "why" in entry else []
    if "price" in entry:
        parts.append("paid by the hour, not by the token" if entry["price"] == "by the hour" else "price unknown")
    return "; ".join([*parts, *cast("list[str]", entry.get("notes", []))])
