"""deploy/kubernetes: every object is one that Kubernetes takes, and the check of that sees what it should."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from support.kubernetes import FOLDERS, KUBERNETES, Object, kustomization, objects, one, problems

LABELS = {"app.kubernetes.io/name", "app.kubernetes.io/part-of"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_object_and_the_kustomization_pass_the_strict_schemas(folder: str) -> None:
    found = [kustomization(folder), *objects(folder)]
    named = {f"{it['kind']} {it.get('metadata', {}).get('name')}": problems(it) for it in found}
    assert {name: wrong for name, wrong in named.items() if wrong} == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_is_used_and_every_object_is_there_once(folder: str) -> None:
    here = {path.name for path in (KUBERNETES / folder).glob("*.yaml")}
    assert here - {"kustomization.yaml", "adapter-values.yaml"} == set(kustomization(folder)["resources"])
    names = [(it["kind"], it["metadata"]["name"]) for it in objects(folder)]
    assert len(names) == len(set(names))
    assert kustomization(folder)["namespace"] == "kimi"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_written_object_is_labelled(folder: str) -> None:
    generated = {entry["name"] for entry in kustomization(folder).get("configMapGenerator", ())}
    for it in objects(folder):
        if it["metadata"]["name"] not in generated or it["kind"] not in ("ConfigMap", "Secret"):
            assert set(it["metadata"]["labels"]) == LABELS, it["kind"]


def container(it: Object) -> Any:
    """The first container of the first pod template."""
    return it["spec"]["template"]["spec"]["containers"][0]


Spoil = Callable[[Object], None]
_STATEFUL: list[tuple[Spoil, str]] = [
    (lambda it: it["spec"].update(serviceNam="x"), "serviceNam"),
    (lambda it: it["spec"].update(minReadySeconds="10"), "minReadySeconds"),
    (lambda it: it["spec"].pop("selector"), "'selector' is a required property"),
    (lambda it: it["spec"].update(podManagementPolicy="parallel"), "podManagementPolicy"),
    (lambda it: it["spec"]["template"]["spec"].update(terminationGracePeriod=345), "terminationGracePeriod"),
    (lambda it: it["spec"]["template"]["spec"].update(terminationGracePeriodSeconds=34.5), "34.5"),
    (lambda it: it["spec"]["template"]["spec"].update(enableServiceLinks="false"), "enableServiceLinks"),
    (lambda it: container(it)["ports"][0].update(containerPort="8000"), "containerPort"),
    (lambda it: container(it)["readinessProbe"].update(httpget={}), "httpget"),
    (lambda it: container(it)["env"][0].update(value=1), "env.0.value"),
    (lambda it: container(it)["resources"]["limits"].update(memory="2GB"), "'2GB' is no quantity"),
    (lambda it: container(it)["volumeMounts"][0].pop("mountPath"), "mountPath"),
    (lambda it: container(it)["securityContext"].update(readOnlyRootFileSystem=True), "readOnlyRootFileSystem"),
    (lambda it: it["spec"]["volumeClaimTemplates"][0]["spec"].update(accessModes=["RWO"]), "'RWO'"),
    (lambda it: it.update(apiVersion="apps/v1beta1"), "Couldn't find schema"),
]


@pytest.mark.parametrize(("spoil", "seen"), _STATEFUL, ids=[seen for _, seen in _STATEFUL])
def test_the_check_sees_a_wrong_name_type_or_word(spoil: Spoil, seen: str) -> None:
    it = copy.deepcopy(one("gateway", "StatefulSet", "kimi-gateway"))
    assert problems(it) == []
    spoil(it)
    (found,) = problems(it)
    assert seen in found


_OTHERS: list[tuple[str, str, str, Spoil, str]] = [
    (
        "gateway",
        "HorizontalPodAutoscaler",
        "kimi-gateway",
        lambda it: it["spec"]["metrics"][0].update(type="pods"),
        "'pods'",
    ),
    (
        "gateway",
        "HorizontalPodAutoscaler",
        "kimi-gateway",
        lambda it: it["spec"]["metrics"][0]["pods"]["target"].update(averagevalue=1),
        "averagevalue",
    ),
    ("gateway", "PodDisruptionBudget", "kimi-gateway", lambda it: it["spec"].update(minUnavailable=1), "minUnav"),
    ("gateway", "NetworkPolicy", "kimi-valkey", lambda it: it["spec"]["policyTypes"].append("ingress"), "ingress"),
    ("vllm", "LeaderWorkerSet", "kimi-vllm", lambda it: it["spec"].update(startupPolicy="Leader"), "Leader"),
    (
        "vllm",
        "LeaderWorkerSet",
        "kimi-vllm",
        lambda it: it["spec"]["leaderWorkerTemplate"].update(size="2"),
        "size",
    ),
    (
        "vllm",
        "LeaderWorkerSet",
        "kimi-vllm",
        lambda it: it["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"].update(container=[]),
        "workerTemplate: template.spec",
    ),
    (
        "monitoring",
        "PodMonitor",
        "kimi-gateway",
        lambda it: it["spec"]["podMetricsEndpoints"][0].update(bearer="x"),
        "bearer",
    ),
]


@pytest.mark.parametrize(("folder", "kind", "name", "spoil", "seen"), _OTHERS, ids=[it[4] for it in _OTHERS])
def test_the_check_sees_it_in_other_kinds_too(folder: str, kind: str, name: str, spoil: Spoil, seen: str) -> None:
    it = copy.deepcopy(one(folder, kind, name))
    assert problems(it) == []
    spoil(it)
    (found,) = problems(it)
    assert seen in found
