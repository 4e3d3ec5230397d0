"""The version of a target's engine: where it is asked for, and what of an answer is believed."""

import asyncio
from io import StringIO

import pytest

from backends.aiohttp_upstream import AiohttpUpstream
from backends.catalog import DIALECTS
from backends.emulator.app import Emulator, EmulatorConfig
from backends.emulator.profiles import PROFILES
from kimi_gateway.adapters.discovery import Discovery
from kimi_gateway.adapters.engine_version import ask_version, root_of, version_in
from kimi_gateway.core.secret import Secret
from kimi_gateway.logs import LineWriter, Log
from kimi_gateway.settings import Target
from support.asgi import serve
from support.checked import Deployment, behind, listing
from support.exchange import Exchange
from support.scripted import Answer, Given, dead_port
from support.transcripts import exchanges

KEY = "sk-version-1f2e3d4c"


def target(base_url: str, dialect: str = "vllm") -> Target:
    return Target(name="t", dialect=dialect, base_url=base_url, models={"k": "k"}, api_key=Secret(KEY))


def asked(one: Target, timeout_s: float = 5.0) -> str:
    async def main() -> str:
        upstream = AiohttpUpstream()
        try:
            return await ask_version(upstream, one, timeout_s=timeout_s)
        finally:
            await upstream.close()

    return asyncio.run(main())


@pytest.mark.parametrize("dialect", sorted(PROFILES))
def test_an_emulated_engine_tells_the_version_it_was_recorded_with(dialect: str) -> None:
    with serve(Emulator(EmulatorConfig(dialect=dialect, api_keys=(KEY,)))) as root_url:
        version = asked(target(f"{root_url}/v1", dialect))
    assert version == {"vllm": "0.32.0", "sglang": "0.5.23"}.get(dialect, "")
    assert bool(version) == bool(DIALECTS[dialect].version_paths)


def test_what_vllm_was_recorded_to_say_is_read() -> None:
    recorded = exchanges("vllm-meta")["get-version"]
    assert (recorded.path,) == DIALECTS["vllm"].version_paths
    assert version_in(recorded.body, DIALECTS["vllm"].version_field) == "0.32.0"
    assert exchanges("sglang-meta")["get-version"].status == 404
    assert exchanges("llamacpp-meta")["get-version"].status == 404


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b'{"version": "0.5.23.post1+cu129"}', "0.5.23.post1+cu129"),
        (b'{"version": 5}', ""),
        (b'{"version": ""}', ""),
        (b'{"version": "0.32.0\\nforged line"}', ""),
        (b'{"version": "\\u0661"}', ""),
        (b'{"version": "' + b"9" * 65 + b'"}', ""),
        (b'{"other": "0.32.0"}', ""),
        (b'["0.32.0"]', ""),
        (b"<html>", ""),
        (b"", ""),
    ],
)
def test_only_what_looks_like_a_version_is_shown(body: bytes, version: str) -> None:
    assert version_in(body, "version") == version


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        ("http://h:8001/v1", "http://h:8001"),
        ("http://h:8001/v1/", "http://h:8001"),
        ("http://h/engines/a/v1", "http://h/engines/a"),
        ("http://h/api", "http://h/api"),
        ("http://h", "http://h"),
    ],
)
def test_the_root_is_the_address_without_the_version_of_the_api(base_url: str, root: str) -> None:
    assert root_of(base_url) == root


def told(version: str) -> Given:
    return {"status": 200, "json": {"version": version, "api_key": "not for anybody"}}


def test_the_first_path_that_tells_a_version_counts_and_the_key_goes_along() -> None:
    with Deployment(paths={"/get_server_info": behind(KEY, told("0.4.1"))}) as up:
        assert asked(target(up.base_url, "sglang")) == "0.4.1"
        assert [probe.path for probe in up.probes] == ["/server_info", "/get_server_info"]
    with Deployment(paths={"/server_info": told("0.5.23"), "/get_server_info": told("0.4.1")}) as up:
        assert asked(target(up.base_url, "sglang")) == "0.5.23"


def test_a_kind_that_tells_no_version_is_not_asked() -> None:
    with Deployment() as up:
        assert asked(target(up.base_url, "moonshot")) == ""
        assert up.probes == []


async def never(exchange: Exchange) -> None:
    await exchange.hold()


def test_whatever_goes_wrong_the_version_is_not_known_and_nothing_is_raised() -> None:
    with dead_port() as port:
        assert asked(target(f"http://127.0.0.1:{port}/v1")) == ""
    broken: list[Answer] = [
        {"status": 500, "text": "no"},
        {"then": "reset"},
        {"status": 200, "text": "x" * 2_000_000},
    ]
    for answer in broken:
        with Deployment(paths={"/version": answer}) as up:
            assert asked(target(up.base_url)) == ""
    with Deployment(paths={"/version": never}) as up:
        assert asked(target(up.base_url), timeout_s=0.1) == ""


def test_a_version_is_asked_for_once_its_target_has_given_its_list() -> None:
    stream = StringIO()
    log = Log(LineWriter(stream, format="text"), wall=lambda: 0.0)

    async def main(one: Target) -> Discovery:
        upstream = AiohttpUpstream()
        found = Discovery(upstream, log, lambda: 0.0)
        try:
            assert await found.look_up([one], timeout_s=5)
            assert not await found.look_up([one], timeout_s=5)
        finally:
            await upstream.close()
        return found

    with Deployment(models=listing("k"), paths={"/version": told("0.33.0")}) as up:
        one = target(up.base_url)
        found = asyncio.run(main(one))
        assert [probe.path for probe in up.probes] == ["/v1/models", "/version"]
    log.close()
    assert found.standings.version_of(one.name, one.base_url) == "0.33.0"
    assert found.standings.version_of(one.name, "http://elsewhere/v1") == ""
    assert stream.getvalue() == ""
