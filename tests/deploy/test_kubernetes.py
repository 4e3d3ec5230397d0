"""deploy/kubernetes: what its objects say of each other, of the gateway's settings and of docker-compose.yml."""

import re
from pathlib import Path
from typing import Any

import pytest

from kimi_gateway import __version__
from kimi_gateway.metrics import Metrics
from kimi_gateway.settings import Settings, SettingsError, load
from support.compose import service
from support.kubernetes import (
    KUBERNETES,
    Object,
    containers,
    environment,
    kustomization,
    objects,
    one,
    pod_templates,
    read,
    variables,
)

GATEWAY = "gateway"
EXAMPLE = KUBERNETES / GATEWAY / "secrets.env.example"
SECRETS = {
    "KIMI_GATEWAY_KEY": "test-caller",
    "KIMI_ADMIN_KEY": "test-admin",
    "KIMI_THINKING_KEY": "test-thinking-0123456789",
    "VALKEY_PASSWORD": "testvalkey",
    "KIMI_LEDGER_URL": "postgresql+psycopg://kimi:test@database:5432/kimi",
    "MOONSHOT_API_KEY": "test-upstream",
}
_SETTLE_S = 15  # after drain_timeout_s: cut answers say goodbye (5 s), the books close (10 s)


def template(kind: str = "StatefulSet", name: str = "kimi-gateway") -> Object:
    """The pod template of an object of the gateway's folder."""
    found: Object = pod_templates(one(GATEWAY, kind, name))["template"]
    return found


def gateway_container() -> Object:
    """The gateway's container."""
    (found,) = containers(template())
    return found


def settings(secrets: dict[str, str] | None = None) -> Settings:
    """The gateway's settings in the pod with these secrets, read by the gateway's own loader."""
    values = {**dict.fromkeys(variables(EXAMPLE), ""), **(SECRETS if secrets is None else secrets)}
    return load(KUBERNETES / GATEWAY / "gateway.toml", environment(gateway_container(), values))


def gibibytes(quantity: str) -> float:
    """A quantity of bytes in GiB."""
    found = re.fullmatch(r"(\d+)(Mi|Gi|Ti)", quantity)
    assert found is not None, quantity
    return int(found[1]) * {"Mi": 1 / 1024, "Gi": 1, "Ti": 1024}[found[2]]


def labels_match(selector: dict[str, Any], found: Object) -> bool:
    """A selector by labels selects a pod template."""
    assert set(selector) == {"matchLabels"}
    labels = found["metadata"]["labels"]
    return bool(selector["matchLabels"]) and selector["matchLabels"].items() <= labels.items()


# The gateway


def test_the_gateway_takes_its_configuration_and_listens_where_the_pod_says() -> None:
    found = settings()
    ports = {port["name"]: port["containerPort"] for port in gateway_container()["ports"]}
    assert (found.server.host, found.server.port) == ("0.0.0.0", ports["http"])
    assert found.admin.listen == ("0.0.0.0", ports["metrics"])
    assert found.admin.key is not None
    assert not found.open_mode
    assert found.key_ring.find("test-caller") == found.keys[0]
    assert [target.name for target in found.targets] == ["moonshot"]


def test_ledger_and_state_come_from_the_secrets_with_the_password_in_its_place() -> None:
    found = settings()
    assert found.ledger.url == SECRETS["KIMI_LEDGER_URL"]
    assert found.state.url == "redis://:testvalkey@kimi-valkey:6379/0"
    valkey = one(GATEWAY, "Service", "kimi-valkey")
    assert [port["port"] for port in valkey["spec"]["ports"]] == [6379]


@pytest.mark.parametrize("name", ["KIMI_GATEWAY_KEY", "KIMI_THINKING_KEY"])
def test_without_a_secret_that_it_needs_the_gateway_does_not_start(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        settings({**SECRETS, name: ""})


def test_each_variable_of_the_pod_is_asked_for_in_the_example_and_none_has_a_value_there() -> None:
    asked = variables(EXAMPLE)
    assert set(asked.values()) == {""}
    used = {
        entry["valueFrom"]["secretKeyRef"]["key"]
        for it in objects(GATEWAY)
        for found in pod_templates(it).values()
        for container in containers(found)
        for entry in container["env"]
        if "valueFrom" in entry
    }
    assert set(asked) == used
    git_ignores = (KUBERNETES / GATEWAY / ".gitignore").read_text().split()
    (generator,) = kustomization(GATEWAY)["secretGenerator"]
    assert generator["envs"] == git_ignores == ["secrets.env"]


def test_secrets_are_named_by_the_one_secret_that_is_generated() -> None:
    made = {it["metadata"]["name"] for it in objects(GATEWAY) if it["kind"] == "Secret"}
    text = "\n".join(path.read_text() for path in (KUBERNETES / GATEWAY).glob("*.yaml"))
    assert set(re.findall(r"secretKeyRef:\n +name: (\S+)", text)) == made == {"kimi-gateway"}
    (endpoint,) = one("monitoring", "PodMonitor", "kimi-gateway")["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "kimi-gateway", "key": "KIMI_ADMIN_KEY"}


def test_kubernetes_waits_longer_than_the_gateway_drains() -> None:
    server = settings().server
    drain_s = server.drain_grace_s + server.drain_timeout_s
    assert template()["spec"]["terminationGracePeriodSeconds"] >= drain_s + _SETTLE_S


def test_the_gateway_takes_requests_until_its_readiness_has_been_noticed() -> None:
    probe = gateway_container()["readinessProbe"]
    assert settings().server.drain_grace_s > probe["periodSeconds"] * probe["failureThreshold"]


def test_the_probes_ask_the_paths_that_there_are_on_the_port_of_the_gateway() -> None:
    container = gateway_container()
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: it["path"] for name, it in asked.items()} == {
        "startup": "/health",
        "liveness": "/health",
        "readiness": "/ready",
    }
    assert {it["port"] for it in asked.values()} == {"http"}
    for name in asked:
        probe = container[f"{name}Probe"]
        assert probe.get("timeoutSeconds", 1) <= probe["periodSeconds"]


def test_the_journal_is_a_volume_of_each_pod_that_is_kept_and_holds_a_full_journal() -> None:
    found, spec = settings(), one(GATEWAY, "StatefulSet", "kimi-gateway")["spec"]
    mounts = {mount["mountPath"]: mount for mount in gateway_container()["volumeMounts"]}
    (claim,) = spec["volumeClaimTemplates"]
    assert mounts[found.ledger.journal_dir]["name"] == claim["metadata"]["name"]
    assert not mounts[found.ledger.journal_dir].get("readOnly", False)
    assert gibibytes(claim["spec"]["resources"]["requests"]["storage"]) * 2**30 > found.ledger.max_journal_bytes
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    assert template()["spec"]["securityContext"]["fsGroup"] == 10001


def test_the_configuration_is_mounted_where_the_gateway_looks_for_it() -> None:
    container = gateway_container()
    path = Path(environment(container, SECRETS)["KIMI_GATEWAY_CONFIG"])
    (mount,) = (it for it in container["volumeMounts"] if it["mountPath"] == str(path.parent))
    (volume,) = (it for it in template()["spec"]["volumes"] if it["name"] == mount["name"])
    assert path.name in one(GATEWAY, "ConfigMap", volume["configMap"]["name"])["data"]
    assert "subPath" not in mount


def test_every_mount_has_its_volume_and_every_volume_its_mount() -> None:
    for folder in ("gateway", "vllm"):
        for it in objects(folder):
            claims = {claim["metadata"]["name"] for claim in it.get("spec", {}).get("volumeClaimTemplates", ())}
            for found in pod_templates(it).values():
                volumes = {volume["name"] for volume in found["spec"].get("volumes", ())} | claims
                mounted = {mount["name"] for part in containers(found) for mount in part["volumeMounts"]}
                assert mounted == volumes, it["metadata"]["name"]


def test_the_image_is_the_one_that_compose_builds_and_its_user_is_the_same() -> None:
    (image,) = kustomization(GATEWAY)["images"]
    assert gateway_container()["image"] == image["name"] == service("gateway")["image"].partition(":")[0]
    assert image["newTag"] == __version__
    security = template()["spec"]["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == service("gateway")["user"]
    limit = gibibytes(gateway_container()["resources"]["limits"]["memory"]) * 2**30
    assert limit == int(service("gateway")["deploy"]["resources"]["limits"]["memory"])


# What selects it


def test_services_budget_and_policies_select_the_pods_and_ports_that_there_are() -> None:
    pods = {it["metadata"]["name"]: found for it in objects(GATEWAY) for found in pod_templates(it).values()}
    for it in objects(GATEWAY):
        kind, name, spec = it["kind"], it["metadata"]["name"], it.get("spec", {})
        if kind == "Service":
            selector: dict[str, Any] = {"matchLabels": spec["selector"]}
        elif kind in ("PodDisruptionBudget", "NetworkPolicy", "StatefulSet"):
            selector = spec.get("selector") or spec["podSelector"]
        else:
            continue
        chosen = [pod for pod, found in pods.items() if labels_match(selector, found)]
        assert chosen == [name.removesuffix("-pods")], f"{kind} {name}"
        ports = {port["name"] for part in containers(pods[chosen[0]]) for port in part["ports"]}
        asked = [port.get("targetPort", port.get("port")) for port in _ports(it)]
        assert set(asked) <= ports, f"{kind} {name}"


def _ports(it: Object) -> list[Any]:
    spec = it["spec"]
    if it["kind"] == "Service":
        return list(spec["ports"])
    return [port for rule in spec.get("ingress", ()) for port in rule["ports"]]


def test_every_stateful_set_has_its_headless_service() -> None:
    for it in objects(GATEWAY):
        if it["kind"] == "StatefulSet":
            assert one(GATEWAY, "Service", it["spec"]["serviceName"])["spec"]["clusterIP"] == "None"


def test_only_the_gateway_reaches_valkey() -> None:
    (rule,) = one(GATEWAY, "NetworkPolicy", "kimi-valkey")["spec"]["ingress"]
    (source,) = rule["from"]
    assert set(source) == {"podSelector"}
    assert labels_match(source["podSelector"], template())


def test_the_disruption_budget_leaves_a_gateway_that_serves() -> None:
    scaler = one(GATEWAY, "HorizontalPodAutoscaler", "kimi-gateway")["spec"]
    assert one(GATEWAY, "PodDisruptionBudget", "kimi-gateway")["spec"]["maxUnavailable"] < scaler["minReplicas"]


def test_the_autoscaler_goes_by_a_metric_of_the_gateway_that_the_adapter_serves() -> None:
    scaler = one(GATEWAY, "HorizontalPodAutoscaler", "kimi-gateway")["spec"]
    target = scaler["scaleTargetRef"]
    owner = one(GATEWAY, target["kind"], target["name"])
    assert owner["apiVersion"] == target["apiVersion"]
    assert "replicas" not in owner["spec"], "an apply would undo what the autoscaler did"
    (metric,) = scaler["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert re.search(rf"^{name} ", Metrics(targets=[], models=[], keys=[]).render().decode(), re.MULTILINE)
    (values,) = read(KUBERNETES / "monitoring" / "adapter-values.yaml")
    (rule,) = values["rules"]["custom"]
    assert re.fullmatch(r"(\w+)\{.*\}", rule["seriesQuery"])[1] == name  # type: ignore[index]
    assert re.fullmatch(rule["name"]["matches"], name)
    assert rule["name"]["as"] == name
    assert set(rule["resources"]["overrides"]) == {"namespace", "pod"}


def test_each_gateway_gives_out_its_share_of_the_largest_number_of_gateways() -> None:
    scaler = one(GATEWAY, "HorizontalPodAutoscaler", "kimi-gateway")["spec"]
    assert settings().state.replicas == scaler["maxReplicas"] > scaler["minReplicas"] >= 2


def test_a_smaller_number_of_gateways_is_reached_slower_than_they_drain() -> None:
    (policy,) = one(GATEWAY, "HorizontalPodAutoscaler", "kimi-gateway")["spec"]["behavior"]["scaleDown"][
        "policies"
    ]
    assert (policy["type"], policy["value"]) == ("Pods", 1)
    assert policy["periodSeconds"] > template()["spec"]["terminationGracePeriodSeconds"]


def test_prometheus_scrapes_the_metrics_port_of_the_gateways() -> None:
    spec = one("monitoring", "PodMonitor", "kimi-gateway")["spec"]
    assert labels_match(spec["selector"], template())
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in gateway_container()["ports"]}
    assert (endpoint["path"], endpoint["authorization"]["type"]) == ("/metrics", "Bearer")


# Valkey


def test_valkey_is_the_one_of_compose() -> None:
    (container,) = containers(template("StatefulSet", "kimi-valkey"))
    compose = service("valkey")
    assert container["image"] == compose["image"]
    (script,) = container["args"]
    start = script.partition("exec ")[2]
    assert start.split() == compose["command"][0].replace("$$", "$").partition("exec ")[2].split()
    assert container["command"] == compose["entrypoint"]


def test_the_pods_run_without_root_capabilities_tokens_or_variables_of_services() -> None:
    for folder in ("gateway", "vllm"):
        for it in objects(folder):
            for found in pod_templates(it).values():
                spec = found["spec"]
                assert spec["automountServiceAccountToken"] is False
                assert spec["enableServiceLinks"] is False
                for container in containers(found):
                    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
                    assert container["securityContext"]["allowPrivilegeEscalation"] is False
                    if folder == GATEWAY:
                        assert spec["securityContext"]["runAsNonRoot"] is True
                        assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_no_secret_stands_in_a_file() -> None:
    for path in sorted(KUBERNETES.rglob("*")):
        if path.is_file() and path.name != "secrets.env":
            text = path.read_text()
            assert not re.search(r"\b(sk-|kg-)\w{8,}", text), path
            assert not re.search(r"^kind: Secret$|stringData", text, re.MULTILINE), path
