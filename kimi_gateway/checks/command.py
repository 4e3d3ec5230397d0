"""The whole check, from the settings to the exit code."""

import asyncio
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import uvloop

from backends.catalog import DIALECTS
from backends.lean.upstream import LeanUpstream
from kimi_gateway.checks.fetch import Tools
from kimi_gateway.checks.findings import Findings, Mistake, Output, settings_mistakes
from kimi_gateway.checks.judge import clock_mistake
from kimi_gateway.checks.launch import is_self_hosted
from kimi_gateway.checks.local import look_at_addresses, look_at_books, look_at_cards
from kimi_gateway.checks.probe import probe_target
from kimi_gateway.checks.progress import Progress
from kimi_gateway.checks.shared import look_at_keys, look_at_state
from kimi_gateway.checks.show import shown
from kimi_gateway.checks.targets import Look, look_at_target
from kimi_gateway.settings import Settings, SettingsError, Target, load
from pricing.cards import CardBook

WELL: Final = 0
WRONG: Final = 1


def run_check(config: Path | None, environ: Mapping[str, str], *, probe: bool, output: Output) -> int:
    """Checks, prints what was found on standard output, and gives back the exit code: 0 or 1."""
    secrets: list[str] = []
    try:
        settings = load(config, environ)
    except SettingsError as err:
        found = Findings()
        found.wrong(*settings_mistakes(err.mistakes, err.source))
    else:
        secrets += settings.secrets()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(check_settings(settings, Progress(sys.stderr), probe=probe))
    sys.stdout.write(shown(found, output, secrets))
    return WRONG if found.mistakes else WELL


async def check_settings(settings: Settings, progress: Progress, *, probe: bool) -> Findings:
    """Everything that can be found about settings that were read."""
    found = Findings()
    now_s = time.time()  # noqa: TID251  # the shell reads the clock
    found.well("settings", settings.source or "environment and defaults", _told(settings))
    found.take(await asyncio.to_thread(look_at_addresses, settings))
    with progress.waiting_for("the ledger"):
        found.take(await asyncio.to_thread(look_at_books, settings))
    found.take(await look_at_state(settings))
    found.take(await asyncio.to_thread(look_at_keys, settings))
    of_cards, cards = await asyncio.to_thread(look_at_cards, settings, now_s)
    found.take(of_cards)
    if not settings.targets:
        found.wrong(no_target())
        found.bad("targets", settings.source or "environment and defaults")
    found.take(await _check_targets(settings.targets, cards, progress, probe=probe))
    return found


def _told(settings: Settings) -> str:
    counts = {"target": settings.targets, "route": settings.routes, "key": settings.keys}
    return ", ".join(f"{len(items)} {name}{'' if len(items) == 1 else 's'}" for name, items in counts.items())


def no_target() -> Mistake:
    """The mistake of settings that name nobody to answer."""
    variables = sorted({d.key_variable or d.url_variable for d in DIALECTS.values()} - {""})
    remedy = f"set one of {', '.join(variables)}, or write [[targets]] into kimi-gateway.toml"
    return Mistake("targets", "no target is configured", remedy)


async def _check_targets(
    targets: tuple[Target, ...], cards: CardBook, progress: Progress, *, probe: bool
) -> Findings:
    """All targets at once; what is found of them stands in the order of the configuration."""
    async with AsyncExitStack() as stack:
        upstream = LeanUpstream()
        stack.push_async_callback(upstream.close)
        tools = Tools(upstream, wall=time.time, mono=time.monotonic)  # noqa: TID251  # the shell reads the clock

        async def look(target: Target) -> Look:
            with progress.waiting_for(target.name):
                looked = await look_at_target(tools, target, cards)
                looked.findings.take(await _deeper(tools, looked, cards, probe=probe))
                return looked

        looks = await asyncio.gather(*(look(target) for target in targets))
    found = Findings()
    found.take(one.findings for one in looks)
    offsets = {one.target.name: one.clock_offset_s for one in looks if one.clock_offset_s is not None}
    wrong = clock_mistake(offsets)
    found.wrong(wrong)
    if wrong is not None:
        found.bad("clock", ", ".join(offsets))
    elif offsets:
        found.well(
            "clock", ", ".join(offsets), f"within {max(map(abs, offsets.values())):.0f} s of this machine's"
        )
    elif targets:
        found.unseen("clock", "this machine", "no target told its time")
    return found


async def _deeper(tools: Tools, look: Look, cards: CardBook, *, probe: bool) -> Findings:
    """What only an answer shows: by probes where they are wanted, else said to be unchecked."""
    if probe:
        return await probe_target(tools, look, cards)
    found = Findings()
    if is_self_hosted(DIALECTS[look.target.dialect]):
        found.unseen("engine flags", look.target.name, "they show in an answer; --probe asks for one")
    return found
