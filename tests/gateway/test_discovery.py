"""What targets say of themselves: windows, the only model of an engine, and silence that stops nothing."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from typing_extensions import override

from backends.aiohttp_upstream import AiohttpUpstream
from backends.faults import Fault, FaultKind
from backends.ports import Call, Reply, Upstream, UpstreamFault
from kimi_gateway.adapters.discovery import Discovery, Listing, NotListed, ask, completed, parse
from kimi_gateway.core.secret import Secret
from kimi_gateway.logs import LineWriter, Log
from kimi_gateway.settings import Target
from support.scripted import ScriptedUpstream

FIELDS = ("context_length", "max_model_len")
ENGINE = Target(
    name="vllm",
    dialect="vllm",
    base_url="http://h/v1",
    models={"kimi-k3.1-pro": "moonshotai/Kimi-K3.1-Pro"},
    models_assumed=True,
)


def body(*models: Mapping[str, Any]) -> bytes:
    return json.dumps({"object": "list", "data": list(models)}).encode()


def test_windows_are_read_under_either_name() -> None:
    models: list[dict[str, Any]] = [{"id": "a", "context_length": 5}, {"id": "b", "max_model_len": 7}, {"id": "c"}]
    found = parse(body(*models, {"id": "d", "max_model_len": "x"}), FIELDS)
    assert found == Listing({"a": 5, "b": 7, "c": 0, "d": 0})


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"<html>"])
def test_what_is_no_list_is_given_up(raw: bytes) -> None:
    with pytest.raises(NotListed) as caught:
        parse(raw, FIELDS)
    assert caught.value.final


@pytest.mark.parametrize("raw", [b'{"data": 3}', b'{"data": [3, {"id": 4}, {"id": ""}]}'])
def test_entries_without_a_name_are_left_out(raw: bytes) -> None:
    assert parse(raw, FIELDS) == Listing({})


def test_the_window_of_the_mapped_model_is_taken_unless_configured() -> None:
    listing = Listing({"moonshotai/Kimi-K3.1-Pro": 262_144, "other": 9})
    assert completed(ENGINE, listing)[0].window == 262_144
    assert completed(replace(ENGINE, context_window=1000), listing)[0].window == 1000
    assert completed(ENGINE, Listing({"moonshotai/Kimi-K3.1-Pro": 0}))[0].window == 1_048_576


def test_the_only_model_of_an_engine_is_meant_where_nobody_stated_one() -> None:
    found, warning = completed(ENGINE, Listing({"my-kimi": 4096}))
    assert dict(found.models) == {"kimi-k3.1-pro": "my-kimi"}
    assert (found.window, warning) == (4096, "")


def test_a_stated_model_that_is_not_listed_is_named_and_kept() -> None:
    for target, listing in (
        (replace(ENGINE, models_assumed=False), Listing({"my-kimi": 1})),
        (ENGINE, Listing({"a": 1, "b": 1})),
    ):
        found, warning = completed(target, listing)
        assert dict(found.models) == dict(ENGINE.models)
        assert "does not list moonshotai/Kimi-K3.1-Pro" in warning


def test_a_list_is_asked_for_over_the_wire_with_the_targets_key() -> None:
    with ScriptedUpstream(models=["my-kimi"]) as upstream:
        target = replace(ENGINE, base_url=upstream.base_url, api_key=Secret("sk-engine"))

        async def main() -> Listing:
            client = AiohttpUpstream()
            try:
                return await ask(client, target, timeout_s=5)
            finally:
                await client.close()

        assert asyncio.run(main()) == Listing({"my-kimi": 0})
        assert upstream.probes[0].path == "/v1/models"
        assert upstream.probes[0].headers["authorization"] == "Bearer sk-engine"


class Scripted(Upstream):
    """Gives one answer after another: a status and a body, or a fault."""

    def __init__(self, *answers: tuple[int, bytes] | Fault | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    @override
    async def open(self, call: Call) -> Reply:
        self.asked += 1
        answer = self.answers.pop(0)
        if answer is None:
            await asyncio.sleep(60)
            raise AssertionError("waited for")
        if isinstance(answer, Fault):
            raise UpstreamFault(answer)
        return Whole(*answer)

    @override
    async def close(self) -> None:
        return


class Whole(Reply):
    """A whole answer."""

    def __init__(self, status: int, data: bytes) -> None:
        self._status = status
        self._parts = [data, b""] if data else [b""]

    @property
    @override
    def status(self) -> int:
        return self._status

    @property
    @override
    def headers(self) -> Mapping[str, str]:
        return {}

    @override
    async def read(self, wait_s: float) -> bytes | None:
        return self._parts.pop(0)

    @override
    def close(self) -> None:
        return


def discovery(upstream: Upstream) -> tuple[Discovery, StringIO, Log]:
    stream = StringIO()
    log = Log(LineWriter(stream, format="text"), wall=lambda: 0.0)
    return Discovery(upstream, log, lambda: 0.0), stream, log


def test_a_target_that_is_away_is_asked_again_until_it_answers() -> None:
    upstream = Scripted(
        Fault(FaultKind.CONNECT, "refused"),
        None,
        (503, b""),
        (200, body({"id": "my-kimi"})),
        (200, b'{"version":"0.32.0"}'),
    )
    found, stream, log = discovery(upstream)
    heard: list[int] = []

    async def main() -> None:
        assert not await found.look_up([ENGINE], timeout_s=0.05)
        assert found.completed([ENGINE]) == (ENGINE,)
        await found.keep_looking(lambda: [ENGINE], lambda: heard.append(1), every_s=0.001, timeout_s=0.05)

    asyncio.run(main())
    log.close()
    assert upstream.asked == 5
    assert found.standings.version_of(ENGINE.name, ENGINE.base_url) == "0.32.0"
    assert heard == [1]
    assert dict(found.completed([ENGINE])[0].models) == {"kimi-k3.1-pro": "my-kimi"}
    assert stream.getvalue().count("gave no model list") == 3


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_final_refusal_is_not_asked_again(status: int) -> None:
    upstream = Scripted((status, b"no"))
    found, stream, log = discovery(upstream)

    async def main() -> None:
        await found.look_up([ENGINE], timeout_s=1)
        await found.keep_looking(lambda: [ENGINE], lambda: None, every_s=0.001, timeout_s=1)

    asyncio.run(main())
    log.close()
    assert upstream.asked == 1
    assert f"status {status}" in stream.getvalue()


def test_an_absurd_list_is_given_up() -> None:
    upstream = Scripted((200, b"x" * 5_000_000))
    found, stream, log = discovery(upstream)
    asyncio.run(found.look_up([ENGINE], timeout_s=1))
    log.close()
    assert "absurdly long" in stream.getvalue()
    assert found.unknown([ENGINE]) == []
