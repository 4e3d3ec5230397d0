"""What the aiohttp adapter is tested for, asked of the lean one: the same tests, over the same servers.

A test function is copied with other globals: where it names the aiohttp adapter, or a helper that makes one, it
finds the lean one. The originals stay as they are, and a new one counts for both without a word here.
"""

import functools
import importlib
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FunctionType, ModuleType
from typing import Any

import pytest
import uvloop

import support.calls
from backends.lean.upstream import LeanUpstream
from backends.ports import Upstream
from support.calls import in_asyncio

MODULES = ("test_aiohttp_faults", "test_aiohttp_leaving", "test_aiohttp_proxy", "test_aiohttp_upstream")
LOOPS = pytest.mark.parametrize(
    "run",
    [
        pytest.param(support.calls._runner(uvloop.new_event_loop), id="uvloop"),
        pytest.param(in_asyncio, id="asyncio", marks=pytest.mark.chaos),  # the gateway's loop is uvloop
    ],
)
ABOUT_AIOHTTP_ALONE = {
    "test_the_proxy_of_an_address",  # a pure function that both use
    "test_a_socks_proxy_is_refused_with_the_remedy",
}


@asynccontextmanager
async def upstream(**options: Any) -> AsyncIterator[Upstream]:
    """The lean client, closed at the end."""
    made = LeanUpstream(**options)
    try:
        yield made
    finally:
        await made.close()


def on_lean(function: FunctionType, world: dict[str, Any]) -> FunctionType:
    """The function with these globals, its marks and defaults kept."""
    made = FunctionType(function.__code__, world, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(made, function)
    vars(made).pop("__wrapped__")  # pytest would look through it, at the original
    return made


def world_of(module: ModuleType, **names: Any) -> dict[str, Any]:
    """The module's globals with every function of its own bound to them, and `names` in place of what it has."""
    world = {**vars(module), **names}
    for name, value in vars(module).items():
        if name not in names and inspect.isfunction(value) and value.__globals__ is vars(module):
            world[name] = on_lean(value, world)
    return world


def scenarios() -> dict[str, Any]:
    """Every test and fixture of the aiohttp adapter's modules, on the lean one."""
    tried = world_of(support.calls, AiohttpUpstream=LeanUpstream, upstream=upstream)["tried"]
    found: dict[str, Any] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        world = world_of(module, AiohttpUpstream=LeanUpstream, upstream=upstream, tried=tried)
        is_on_loops = hasattr(module, "pytestmark")
        for key, value in world.items():
            if key.startswith("test_") and key not in ABOUT_AIOHTTP_ALONE:
                assert key not in found, f"two tests are called {key}"
                found[key] = LOOPS(value) if is_on_loops else value
            elif type(value).__name__ == "FixtureFunctionDefinition":
                found[key] = value
    return found


globals().update(scenarios())


def test_the_scenarios_run_on_the_lean_client(request: pytest.FixtureRequest) -> None:
    mine = [item for item in request.session.items if item.path == request.path]
    assert len(mine) > 80  # of both loops together twice as many: those of asyncio's own are long runs
    for item in mine:
        world = item.function.__globals__  # type: ignore[attr-defined]
        assert world.get("AiohttpUpstream", LeanUpstream) is LeanUpstream
        assert world.get("upstream", upstream) is upstream
