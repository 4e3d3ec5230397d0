"""The profile monitoring: what Prometheus scrapes, with which key, and a dashboard that asks for what there is."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kimi_gateway.errors import Unauthenticated
from kimi_gateway.metrics import Metrics
from kimi_gateway.routes.metrics import check_admin
from kimi_gateway.settings import load
from pricing.ledger.row import LedgerRow
from support.compose import ENGINES, MONITORING, REQUIRED, ROOT, run_script, script, service, yaml_document

PROMETHEUS_YML = MONITORING / "prometheus.yml"
GRAFANA = MONITORING / "grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "kimi-gateway.json").read_text())

# Names of the design page that a gateway may not have yet; their labels are not known before they are built.
DESIGNED: dict[str, frozenset[str]] = {}
# Read in the sources of vLLM 0.33.0 (v1/metrics/loggers.py) and SGLang 0.5.23 (srt/observability).
OF_ENGINES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:token_usage",
}
_NAME = re.compile(r"\b(?:kimi_|vllm:|sglang:)\w+")
_USE = re.compile(r"\b(?P<name>kimi_\w+)(?:\{(?P<selector>[^}]*)\})?")
_GROUPED = re.compile(r"by \((?P<labels>[^)]*)\) \((?:rate|increase)\((?P<name>kimi_\w+)")


def built() -> dict[str, frozenset[str]]:
    """The samples of a gateway with the names of their labels."""
    metrics = Metrics(targets=["a"], models=["m"], keys=["k"])
    metrics.in_flight_changed(1)
    metrics.first_token("a", 0.1)
    metrics.chunk_gap(0.1)
    metrics.fault("a", "rate")
    metrics.loop_lag(0.001)
    row = LedgerRow(request_id="kr_1", started_at=0.0, key="k", target="a", model="m", status="ok")
    row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.cost_nano = 10, 5, 3, 1000
    metrics.settled(row, 1.0)
    families = text_string_to_metric_families(metrics.render().decode())
    return {sample.name: frozenset(sample.labels) for family in families for sample in family.samples}


def panels() -> list[dict[str, Any]]:
    """The panels that show something."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Title of the panel and expression, for every query."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


# The dashboard


def test_every_metric_on_the_dashboard_exists_or_is_designed() -> None:
    known = built().keys() | DESIGNED.keys() | OF_ENGINES
    assert {
        (title, name) for title, text in queries() for name in _NAME.findall(text) if name not in known
    } == set()


@pytest.mark.parametrize(
    "name",
    [
        "kimi_requests_total",
        "kimi_tokens_total",
        "kimi_cost_usd_total",
        "kimi_request_seconds_bucket",
        "kimi_ttft_seconds_bucket",
        "kimi_chunk_gap_seconds_bucket",
        "kimi_in_flight",
        "kimi_upstream_faults_total",
        "kimi_event_loop_lag_seconds_bucket",
        *DESIGNED,
        *sorted(OF_ENGINES),
    ],
)
def test_every_metric_of_the_design_is_on_the_dashboard(name: str) -> None:
    assert any(re.search(rf"\b{re.escape(name)}\b", text) for _, text in queries())


def test_every_label_a_query_selects_or_groups_by_is_one_of_its_metric() -> None:
    labels = DESIGNED | built()
    wrong = set()
    for title, text in queries():
        for use in _USE.finditer(text):
            asked = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", use["selector"] or ""))
            wrong |= {(title, use["name"], label) for label in asked - labels[use["name"]]}
        for use in _GROUPED.finditer(text):
            asked = {label.strip() for label in use["labels"].split(",")}
            wrong |= {(title, use["name"], label) for label in asked - labels[use["name"]]}
    assert wrong == set()


def test_meters_and_kinds_that_queries_name_are_those_of_the_gateway() -> None:
    meters = {"input", "cache_read", "write_5m", "write_1h", "output", "search"}
    kinds = {"ok", "client_disconnected", "client_stalled", "refused"}
    asked: dict[str, set[str]] = {"meter": set(), "kind": set()}
    for _, text in queries():
        for label, value in re.findall(r'\b(meter|kind)(?:=~|!~|!=|=)"([^"]*)"', text):
            asked[label] |= set(value.split("|"))
    assert asked == {"meter": meters - {"output"}, "kind": kinds}


def test_every_quantile_is_taken_of_buckets_by_their_bounds() -> None:
    quantiles = [text for _, text in queries() if "histogram_quantile" in text]
    assert len(quantiles) > 10
    for text in quantiles:
        assert re.fullmatch(r"histogram_quantile\(0\.\d+, sum by \(le(, \w+)?\) \(rate\(\w+_bucket.*\)\)\)", text)


def test_counters_are_only_ever_shown_as_rates_or_increases() -> None:
    for title, text in queries():
        naked = re.findall(r"(?<!rate\()(?<!increase\()\b(kimi_\w+_(?:total|bucket))", text)
        assert naked == [], title


def test_expressions_are_balanced_and_use_only_variables_there_are() -> None:
    given = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval", "__range"}
    for title, text in queries():
        for left, right in ("()", "{}", "[]"):
            assert text.count(left) == text.count(right), title
        assert set(re.findall(r"\$(\w+)", text)) <= given, title


def test_all_panels_and_variables_ask_the_chosen_source() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert all(variables[name]["datasource"] == source for name in ("target", "key"))
    for panel in panels():
        assert panel["datasource"] == source
        assert all(target["datasource"] == source for target in panel["targets"])


def test_panels_have_their_own_ids_and_places_and_say_their_unit() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in panels())


# What Prometheus scrapes


def test_prometheus_starts_with_the_admin_key_in_the_file_that_its_configuration_reads(tmp_path: Path) -> None:
    key_file = _gateway_job(tmp_path)["authorization"]["credentials_file"]
    stub = tmp_path / "prometheus"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    here = tmp_path / "admin-key"
    text = script("prometheus").replace(key_file, str(here))
    done = run_script("prometheus", {"KIMI_ADMIN_KEY": "test$admin'key", "PATH": str(tmp_path)}, text)
    assert (done.returncode, done.stderr) == (0, "")
    assert here.read_text() == "test$admin'key"
    assert here.stat().st_mode & 0o777 == 0o600
    arguments = dict(line.split("=") for line in done.stdout.split())
    mounts = {one["target"]: one["source"] for one in service("prometheus")["volumes"]}
    assert mounts[arguments["--config.file"]] == str(PROMETHEUS_YML)
    assert mounts[arguments["--storage.tsdb.path"]] == "prometheus"
    assert any(one.startswith(f"{Path(key_file).parent}:") for one in service("prometheus")["tmpfs"])


def test_the_gateway_shows_its_metrics_where_prometheus_asks_and_to_the_admin_key_only(tmp_path: Path) -> None:
    env = {**REQUIRED, "KIMI_ADMIN_KEY": "test-admin"}
    admin = load(ROOT / "deploy" / "gateway.toml", service("gateway", env)["environment"]).admin
    assert admin.listen is not None
    host, port = admin.listen
    job = _gateway_job(tmp_path)
    (found,) = job["dns_sd_configs"]
    assert (found["names"], found["type"], found["port"]) == (["gateway"], "A", port)
    assert job["authorization"]["type"] == "Bearer"
    check_admin(_headers("test-admin"), admin.key, host)
    with pytest.raises(Unauthenticated):
        check_admin(_headers("test-caller"), admin.key, host)
    assert service("prometheus", env)["environment"]["KIMI_ADMIN_KEY"] == "test-admin"


def _gateway_job(scratch: Path) -> dict[str, Any]:
    jobs: list[dict[str, Any]] = yaml_document(PROMETHEUS_YML, scratch)["scrape_configs"]
    return next(job for job in jobs if job["job_name"] == "kimi-gateway")


def _headers(key: str) -> Sequence[tuple[bytes, bytes]]:
    return [(b"host", b"gateway:9000"), (b"authorization", f"Bearer {key}".encode())]


def test_prometheus_finds_the_engines_on_a_network_they_share(tmp_path: Path) -> None:
    jobs = {job["job_name"]: job for job in yaml_document(PROMETHEUS_YML, tmp_path)["scrape_configs"]}
    assert set(jobs) == {"kimi-gateway", "prometheus", *ENGINES}
    for engine in ENGINES:
        (found,) = jobs[engine]["dns_sd_configs"]
        assert (found["names"], found["type"]) == ([engine], "A")
        assert f"--port={found['port']}" in service(engine)["command"]
    for name in ("gateway", *ENGINES):
        assert set(service(name)["networks"]) & set(service("prometheus")["networks"]), name


def test_grafana_finds_its_source_and_its_dashboards(tmp_path: Path) -> None:
    provisioning = GRAFANA / "provisioning"
    (source,) = yaml_document(provisioning / "datasources" / "prometheus.yml", tmp_path)["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    assert set(service("grafana")["networks"]) & set(service("prometheus")["networks"])
    (provider,) = yaml_document(provisioning / "dashboards" / "kimi.yml", tmp_path)["providers"]
    mounts = {one["target"]: one["source"] for one in service("grafana")["volumes"] if one["type"] == "bind"}
    assert mounts[provider["options"]["path"]] == str(GRAFANA / "dashboards")
    assert mounts["/etc/grafana/provisioning"] == str(provisioning)
    home = Path(service("grafana")["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (Path(mounts[str(home.parent)]) / home.name).exists()
