"""The profiles vllm and sglang: a launch whose every flag says where it comes from. Engines are not started."""

import re

import pytest

from support.compose import COMPOSE_FILE, ENGINES, REQUIRED, seconds, service

SOURCES = ("recipe", "cookbook", "vllm", "sglang", "seen", "ours")
_FLAG = re.compile(
    r"""^\s+- ["']?--(?P<name>[a-z0-9-]+)(?:=\S*)?["']?(?:\s+# (?P<source>\w+)\b.*)?$""", re.MULTILINE
)


def _flags(engine: str) -> list[tuple[str, str]]:
    """The flags in the text of an engine's service with the first word of the comment behind each."""
    text = COMPOSE_FILE.read_text()
    section = re.search(rf"^  {engine}:\n(.*?)^    environment:", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    return [(match["name"], match["source"] or "") for match in _FLAG.finditer(section[1])]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_flag_names_its_source(engine: str) -> None:
    flags = _flags(engine)
    command = [
        flag.removeprefix("--").partition("=")[0] for flag in service(engine)["command"] if flag[:2] == "--"
    ]
    assert [name for name, _ in flags] == command, "the pattern misses a flag"
    assert {name: source for name, source in flags if source not in SOURCES} == {}
    legend = COMPOSE_FILE.read_text().partition("# Sources of the flags")[2].partition("\n\n")[0]
    assert {source for _, source in flags if not re.search(rf"#   {source} ", legend)} == set()


@pytest.mark.parametrize(
    ("engine", "needed"),
    [
        (
            "vllm",
            {
                "--enable-prompt-tokens-details",
                "--enable-request-id-headers",
                "--reasoning-parser=kimi_k3",
                "--tool-call-parser=kimi_k3",
                "--enable-auto-tool-choice",
                "--shutdown-timeout=300",
            },
        ),
        (
            "sglang",
            {
                "--enable-cache-report",
                "--enable-metrics",
                "--reasoning-parser=kimi_k3",
                "--tool-call-parser=kimi_k3",
            },
        ),
    ],
)
def test_the_engines_have_the_flags_the_gateway_needs(engine: str, needed: set[str]) -> None:
    command = set(service(engine)["command"])
    assert needed <= command
    assert "--served-model-name=moonshotai/Kimi-K3.1-Pro" in command


@pytest.mark.parametrize(("engine", "ranks"), [("vllm", "--tensor-parallel-size"), ("sglang", "--tp-size")])
@pytest.mark.parametrize("count", [8, 4])
def test_as_many_gpus_are_reserved_as_there_are_ranks(engine: str, ranks: str, count: int) -> None:
    env = REQUIRED if count == 8 else {**REQUIRED, "KIMI_GPUS": str(count)}
    found = service(engine, env)
    (device,) = found["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", count, ["gpu"])
    assert f"{ranks}={count}" in found["command"]


def test_vllm_gets_more_time_to_stop_than_it_takes_for_itself() -> None:
    found = service("vllm")
    (own,) = (int(flag.partition("=")[2]) for flag in found["command"] if flag.startswith("--shutdown-timeout="))
    assert seconds(found["stop_grace_period"]) > own


def test_the_gateway_stops_before_the_engines() -> None:
    depends = service("gateway")["depends_on"]
    assert {name: one["required"] for name, one in depends.items()} == dict.fromkeys(ENGINES, False)
