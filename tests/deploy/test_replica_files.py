"""deploy/replicas on top of docker-compose.yml: two gateways behind a balancer, one Valkey, one PostgreSQL."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kimi_gateway.settings import Settings, load
from support.compose import REQUIRED, ROOT, compose, seconds

FOLDER = ROOT / "deploy" / "replicas"
FILE = FOLDER / "docker-compose.yml"
NEEDED = {
    **REQUIRED,
    "KIMI_THINKING_KEY": "test-thinking-0123456789",
    "VALKEY_PASSWORD": "testvalkey",
    "POSTGRES_PASSWORD": "testpostgres",
}
BALANCER = (FOLDER / "haproxy.cfg").read_text()
_SETTLE_S = 15  # after drain_timeout_s: cut answers say goodbye (5 s), the books close (10 s)


@cache
def project() -> Any:
    """What compose makes of both files, without any profile."""
    done = compose("--file", str(FILE), "config", "--format", "json", env=NEEDED)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def service(name: str) -> Any:
    """One service."""
    return project()["services"][name]


def settings() -> Settings:
    """The gateways' settings, read by the gateway's own loader."""
    environment = service("gateway")["environment"]
    (mount,) = (it for it in service("gateway")["volumes"] if it["type"] == "bind")
    path = Path(environment["KIMI_GATEWAY_CONFIG"])
    return load(Path(mount["source"]) / path.relative_to(mount["target"]), environment)


def value(name: str) -> int:
    """A period of the balancer's configuration, in seconds."""
    found = re.search(rf"^\s+{name} (\d+)(ms|s|m)\b", BALANCER, re.MULTILINE)
    assert found is not None, name
    return int(found[1]) * {"s": 1, "m": 60}[found[2]]


def test_both_stores_and_the_balancer_start_with_the_gateways() -> None:
    assert set(project()["services"]) == {"gateway", "balancer", "valkey", "postgres"}
    depends = service("gateway")["depends_on"]
    assert {name: depends[name]["condition"] for name in ("valkey", "postgres")} == dict.fromkeys(
        ("valkey", "postgres"), "service_healthy"
    )
    assert depends["vllm"]["required"] is False


def test_the_profiles_of_the_file_below_still_work() -> None:
    done = compose("--file", str(FILE), "--profile", "vllm", "config", "--services", env=NEEDED)
    assert set(done.stdout.split()) == {"gateway", "balancer", "valkey", "postgres", "vllm"}


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_without_a_secret_compose_refuses_and_names_it(name: str) -> None:
    done = compose("--file", str(FILE), "config", "--quiet", env={**NEEDED, name: ""})
    assert done.returncode != 0
    assert f"set {name}" in done.stderr


def test_there_are_two_gateways_and_as_many_as_are_asked_for() -> None:
    assert service("gateway")["deploy"]["replicas"] == 2
    assert service("balancer")["environment"]["KIMI_REPLICAS"] == "2"
    done = compose("--file", str(FILE), "config", "--format", "json", env={**NEEDED, "KIMI_REPLICAS": "3"})
    found = json.loads(done.stdout)["services"]
    assert found["gateway"]["deploy"]["replicas"] == 3
    assert found["balancer"]["environment"]["KIMI_REPLICAS"] == "3"
    assert settings().state.replicas == 2


def test_only_the_balancer_is_published_and_only_it_shares_a_network_with_the_outside() -> None:
    published = {name for name, found in project()["services"].items() if found.get("ports")}
    assert published == {"balancer"}
    (port,) = service("balancer")["ports"]
    (bind,) = re.findall(r"^frontend callers\n\s+bind :(\d+)$", BALANCER, re.MULTILINE)
    assert (port["host_ip"], port["published"], port["target"]) == ("127.0.0.1", "8000", int(bind))
    assert set(service("balancer")["networks"]) == {"edge", "balanced"}
    assert project()["networks"]["balanced"]["internal"] is True
    assert "balanced" in service("gateway")["networks"]


def test_the_gateways_share_state_ledger_and_journal() -> None:
    found = settings()
    assert found.state.url == "redis://:testvalkey@valkey:6379/0"
    assert found.ledger.url == "postgresql+psycopg://kimi:testpostgres@postgres:5432/kimi"
    postgres = service("postgres")["environment"]
    assert (postgres["POSTGRES_USER"], postgres["POSTGRES_DB"]) == ("kimi", "kimi")
    volumes = {it["target"]: it["source"] for it in service("gateway")["volumes"] if it["type"] == "volume"}
    assert volumes[found.ledger.journal_dir] == "journal"
    for name in ("valkey", "postgres"):
        assert set(service(name)["networks"]) & set(service("gateway")["networks"])


def test_nobody_is_killed_while_streams_are_open() -> None:
    server = settings().server
    drain_s = server.drain_grace_s + server.drain_timeout_s
    for name in ("gateway", "balancer"):
        assert seconds(service(name)["stop_grace_period"]) >= drain_s + _SETTLE_S, name
    assert value("hard-stop-after") > server.drain_timeout_s
    assert "gateway" in service("balancer")["depends_on"], "the balancer stops before the gateways do"


def test_a_gateway_that_drains_is_left_before_it_closes() -> None:
    found = re.search(r"default-server check inter (\d+)s fall (\d+)", BALANCER)
    assert found is not None
    server = settings().server
    assert int(found[1]) * int(found[2]) + int(found[1]) < server.drain_grace_s
    assert "http-check send meth GET uri /ready" in BALANCER
    assert "http-check expect status 200" in BALANCER
    assert re.search(
        rf"server-template \S+ \"\${{KIMI_REPLICAS}}\" gateway:{server.port}$", BALANCER, re.MULTILINE
    )
    assert "on-marked-down" not in BALANCER, "that would cut the streams of a gateway that drains"


def test_the_balancer_lets_silent_answers_live_and_repeats_nothing_that_may_have_cost_money() -> None:
    first_byte_s = load(None, {"MOONSHOT_API_KEY": "test"}).targets[0].first_byte_timeout_s
    for name in ("timeout client", "timeout server"):
        assert value(name) > 2 * first_byte_s, name
    assert re.findall(r"retry-on (.*?)\s*#", BALANCER) == ["conn-failure"]
    for buffering in ("http-buffer-request", "compression", "timeout tunnel"):
        assert buffering not in BALANCER
    assert "option http-no-delay" in BALANCER


def test_the_balancer_has_the_file_and_the_room_it_needs() -> None:
    found = service("balancer")
    (mount,) = found["volumes"]
    assert (mount["source"], mount["read_only"]) == (str(FOLDER / "haproxy.cfg"), True)
    assert mount["target"] == "/usr/local/etc/haproxy/haproxy.cfg"
    maxconn = int(re.findall(r"^    maxconn (\d+)", BALANCER, re.MULTILINE)[0])
    assert found["ulimits"]["nofile"] >= 2 * maxconn + 1000
    assert maxconn >= 2 * settings().server.max_connections
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert int(found["user"].split(":")[0]) > 0
    assert re.search(r":\d[\w.]*-alpine$", found["image"])
    (port,) = re.findall(r"bind 127\.0\.0\.1:(\d+)", BALANCER)
    assert found["healthcheck"]["test"][-1] == f"http://127.0.0.1:{port}/health"


def test_every_variable_is_explained_in_one_of_the_files() -> None:
    listed = compose("--file", str(FILE), "config", "--variables", env=NEEDED).stdout.splitlines()[1:]
    explained = FILE.read_text().partition("\nservices:")[0] + (ROOT / "docker-compose.yml").read_text()
    assert {line.split()[0] for line in listed if not re.search(rf"#.*\b{line.split()[0]}\b", explained)} == set()
