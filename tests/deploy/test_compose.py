"""docker-compose.yml: every profile, the image and the gateway, as far as it goes without a Docker engine."""

import http.server
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from typing_extensions import override

from kimi_gateway.settings import Settings, load
from support.compose import (
    COMPOSE_FILE,
    ENGINES,
    REQUIRED,
    ROOT,
    TOOLS,
    compose,
    project,
    run_script,
    seconds,
    service,
    services,
)

GATEWAY_TOML = ROOT / "deploy" / "gateway.toml"
SERVICES = {
    "": {"gateway"},
    "vllm": {"gateway", "vllm"},
    "sglang": {"gateway", "sglang"},
    "monitoring": {"gateway", "prometheus", "grafana"},
    "stores": {"gateway", "valkey", "postgres"},
}
_SETTLE_S = 15  # after drain_timeout_s: cut answers say goodbye (5 s), the books close (10 s)


def dockerfile() -> str:
    """The inline Dockerfile."""
    text: str = service("gateway")["build"]["dockerfile_inline"]
    return text.replace("$$", "$")


def gateway_settings(env: Mapping[str, str] = REQUIRED) -> Settings:
    """The gateway's settings in the container that compose would start with these variables."""
    return load(GATEWAY_TOML, service("gateway", env)["environment"])


# The file as a whole


@pytest.mark.parametrize("profile", SERVICES)
def test_each_profile_is_accepted_with_the_required_variable_alone(profile: str) -> None:
    done = compose(*(["--profile", profile] if profile else []), "config", "--services")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == SERVICES[profile]


@pytest.mark.parametrize("profile", SERVICES)
@pytest.mark.parametrize("env", [{}, {"KIMI_GATEWAY_KEY": ""}])
def test_without_the_gateway_key_compose_refuses_and_names_it(profile: str, env: dict[str, str]) -> None:
    done = compose(*(["--profile", profile] if profile else []), "config", "--quiet", env=env)
    assert done.returncode != 0
    assert "set KIMI_GATEWAY_KEY to the API key that callers will send" in done.stderr


def test_every_variable_is_explained_at_the_top_of_the_file() -> None:
    listed = compose("config", "--variables").stdout.splitlines()[1:]
    variables = {line.split()[0] for line in listed}
    explained = COMPOSE_FILE.read_text().partition("\nname:")[0]
    assert "KIMI_GATEWAY_KEY" in variables
    assert {name for name in variables if not re.search(rf"\b{name}\b", explained)} == set()


def test_every_service_restarts_limits_its_log_and_has_a_health_check() -> None:
    for name, found in services().items():
        assert found["restart"] == "unless-stopped", name
        assert found["logging"]["options"] == {"max-size": "10m", "max-file": "5"}, name
        assert found["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL"), name


def test_every_image_is_pinned() -> None:
    for name, found in services().items():
        tag = found["image"].rpartition(":")[2]
        assert found["image"].count(":") == 1, name
        assert tag != "latest", name
        assert re.search(r"\d", tag) or found.get("pull_policy") == "build", name


def test_only_gateway_and_grafana_are_published_and_on_this_machine_only() -> None:
    published = {
        (name, port["host_ip"], port["published"], port["target"])
        for name, found in services().items()
        for port in found.get("ports", [])
    }
    assert published == {("gateway", "127.0.0.1", "8000", 8000), ("grafana", "127.0.0.1", "3000", 3000)}


def test_all_but_the_engines_run_read_only_without_root_and_without_capabilities() -> None:
    for name, found in services().items():
        assert found["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in found, name
        if name in ENGINES:
            continue
        assert found["read_only"] is True, name
        assert found["cap_drop"] == ["ALL"], name
        assert "cap_add" not in found, name
        assert int(found["user"].split(":")[0]) > 0, name
        assert int(found["deploy"]["resources"]["limits"]["memory"]) > 0, name


def test_the_stores_cannot_be_reached_from_outside_and_have_no_way_out() -> None:
    networks = project()["networks"]
    for name in ("valkey", "postgres"):
        assert set(service(name)["networks"]) == {"stores"}
    assert networks["stores"]["internal"] is True
    assert networks["metrics"]["internal"] is True


@pytest.mark.parametrize(
    ("name", "variable"),
    [("prometheus", "KIMI_ADMIN_KEY"), ("grafana", "GRAFANA_ADMIN_PASSWORD"), ("valkey", "VALKEY_PASSWORD")],
)
def test_a_service_without_its_secret_says_what_to_set(name: str, variable: str) -> None:
    values = [key for key, value in service(name)["environment"].items() if value == ""]
    done = run_script(name, dict.fromkeys(values, ""))
    assert done.returncode != 0
    assert f"set {variable}" in done.stderr


# The image


def hadolint(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """What hadolint says of a Dockerfile, with no configuration of anybody's."""
    file = tmp_path / "Dockerfile"
    file.write_text(text)
    command = [str(TOOLS / "hadolint"), "--no-color", "--failure-threshold", "style", str(file)]
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=30, check=False)


def test_the_dockerfile_passes_hadolint_with_no_rule_ignored(tmp_path: Path) -> None:
    done = hadolint(dockerfile(), tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "hadolint ignore" not in dockerfile()


def test_hadolint_sees_a_bad_dockerfile(tmp_path: Path) -> None:
    done = hadolint("FROM python\nRUN pip install aiohttp\n", tmp_path)
    assert done.returncode != 0
    assert "DL3006" in done.stdout
    assert "DL3013" in done.stdout


def test_the_image_holds_all_packages_and_ends_without_root() -> None:
    text = dockerfile()
    copied = {
        name.removeprefix("./")
        for line in re.findall(r"^COPY (?!--)(.*)$", text, re.MULTILINE)
        for name in line.split()[:-1]
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert copied == packages | {"pyproject.toml", "constraints.txt", project["project"]["readme"], "LICENSE"}
    assert all((ROOT / name).exists() for name in copied)
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"python:3.11.16-slim-trixie"}
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == [service("gateway")["user"]]
    assert "$" not in text


# The gateway


class _Ready(http.server.BaseHTTPRequestHandler):
    """Answers /ready with the server's status."""

    def do_GET(self) -> None:
        status = getattr(self.server, "status", 500)
        self.send_response(status if self.path == "/ready" else 404)
        self.end_headers()

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def _answering(status: int) -> Iterator[int]:
    """The port of a server whose /ready has this status."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Ready) as server:
        server.status = status  # type: ignore[attr-defined]  # read by the handler
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def _health_check(port: int) -> int:
    """The exit code of the gateway's health check against another port, with a proxy set that is not there."""
    test: list[str] = service("gateway")["healthcheck"]["test"]
    assert test[:3] == ["CMD", "python", "-c"]
    assert test[3].count("127.0.0.1:8000") == 1
    code = test[3].replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    env = {"http_proxy": "http://127.0.0.1:9"}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, timeout=30, check=False
    ).returncode


def test_the_health_check_tells_ready_from_not_ready_and_from_gone() -> None:
    with _answering(200) as port:
        assert _health_check(port) == 0
    with _answering(503) as draining:
        assert _health_check(draining) != 0
    assert _health_check(port) != 0


def test_the_gateway_starts_with_a_key_and_on_all_addresses_of_its_container() -> None:
    settings = gateway_settings()
    assert (settings.server.host, settings.server.port) == ("0.0.0.0", 8000)
    assert not settings.open_mode
    assert settings.key_ring.find("test-caller") == settings.keys[0]
    assert settings.targets == ()
    assert settings.admin.key is None


@pytest.mark.parametrize(
    ("variable", "value", "target", "base_url"),
    [
        ("MOONSHOT_API_KEY", "test-upstream", "moonshot", "https://api.moonshot.ai/v1"),
        ("OPENROUTER_API_KEY", "test-upstream", "openrouter", "https://openrouter.ai/api/v1"),
        ("VLLM_BASE_URL", "http://vllm:8000/v1", "vllm", "http://vllm:8000/v1"),
        ("SGLANG_BASE_URL", "http://sglang:30000/v1", "sglang", "http://sglang:30000/v1"),
    ],
)
def test_each_upstream_variable_reaches_the_gateway_as_a_target(
    variable: str, value: str, target: str, base_url: str
) -> None:
    found = gateway_settings({**REQUIRED, variable: value}).targets
    assert [(one.name, one.base_url) for one in found] == [(target, base_url)]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engine_addresses_in_the_comments_are_where_the_engines_listen(engine: str) -> None:
    port = next(flag.removeprefix("--port=") for flag in service(engine)["command"] if flag.startswith("--port="))
    assert f"{engine.upper()}_BASE_URL=http://{engine}:{port}/v1" in COMPOSE_FILE.read_text()


def test_ledger_and_journal_lie_in_volumes_of_their_own() -> None:
    settings = gateway_settings()
    volumes = {one["target"]: one for one in service("gateway")["volumes"] if one["type"] == "volume"}
    ledger = settings.ledger.url.removeprefix("sqlite:///")
    assert ledger.startswith("/")
    assert volumes[str(Path(ledger).parent)]["source"] == "ledger"
    assert volumes[settings.ledger.journal_dir]["source"] == "journal"
    assert set(volumes) == set(re.findall(r" (/var/lib/kimi/\w+)", dockerfile())), "made for the user of the image"


def test_the_configuration_is_mounted_where_the_gateway_looks_for_it() -> None:
    found = service("gateway")
    mounted = [one for one in found["volumes"] if one["type"] == "bind"]
    assert [(one["source"], one["read_only"]) for one in mounted] == [(str(ROOT / "deploy"), True)]
    assert found["environment"]["KIMI_GATEWAY_CONFIG"] == f"{mounted[0]['target']}/gateway.toml"


def test_docker_waits_longer_than_the_gateway_drains_and_leaves_it_enough_descriptors() -> None:
    server, found = gateway_settings().server, service("gateway")
    drain_s = max(server.drain_grace_s, server.drain_timeout_s)
    assert seconds(found["stop_grace_period"]) >= drain_s + _SETTLE_S
    assert found["ulimits"]["nofile"] >= 2 * server.max_connections + 64
    assert int(found["deploy"]["resources"]["limits"]["memory"]) > server.max_buffered_bytes
