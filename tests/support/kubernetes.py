"""The objects in deploy/kubernetes and what is wrong with them. Nothing is started and no cluster is asked.

Built-in kinds are checked against the strict schemas of the wheel kubernetes-validate (additional fields refused).
They name no values, so those that are words are checked here; and so are the custom kinds, whose pod templates are
checked as what they are.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import yaml

from support.compose import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
VERSION: Final = "1.37"
FOLDERS = ("gateway", "monitoring", "vllm")

Object = dict[str, Any]


def read(path: Path) -> list[Object]:
    """The documents of a YAML file."""
    return [found for found in yaml.safe_load_all(path.read_text()) if found is not None]


def kustomization(folder: str) -> Object:
    """The kustomization of a folder."""
    (found,) = read(KUBERNETES / folder / "kustomization.yaml")
    return found


@cache
def objects(folder: str) -> tuple[Object, ...]:
    """All objects that `kubectl apply -k` would send, with the secrets of the example. Not to be changed."""
    plan = kustomization(folder)
    found = [one for name in plan["resources"] for one in read(KUBERNETES / folder / name)]
    for entry in plan.get("configMapGenerator", ()):
        data = {name: (KUBERNETES / folder / name).read_text() for name in entry["files"]}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": entry["name"]}, "data": data})
    for entry in plan.get("secretGenerator", ()):
        (name,) = entry["envs"]
        values = {"stringData": variables(KUBERNETES / folder / f"{name}.example")}
        found.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": entry["name"]}, **values})
    return tuple(found)


def variables(path: Path) -> dict[str, str]:
    """The lines NAME=value of a file."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def one(folder: str, kind: str, name: str) -> Object:
    """One object."""
    (found,) = (it for it in objects(folder) if (it["kind"], it["metadata"]["name"]) == (kind, name))
    return found


def pod_templates(document: Object) -> dict[str, Object]:
    """The pod templates of an object by the name of their field."""
    spec = document.get("spec", {})
    places = {**spec, **spec.get("leaderWorkerTemplate", {})}
    return {name: places[name] for name in ("template", "leaderTemplate", "workerTemplate") if name in places}


def containers(template: Object) -> list[Object]:
    """The containers of a pod template, initial ones first."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def environment(container: Object, secrets: Mapping[str, str]) -> dict[str, str]:
    """The variables of a container, as Kubernetes fills them in from secrets with these values."""
    found: dict[str, str] = {}
    for entry in container.get("env", ()):
        if "value" in entry:
            value = re.sub(r"\$\((\w+)\)", lambda use: found.get(use[1], use[0]), entry["value"])
        else:
            reference = entry["valueFrom"]["secretKeyRef"]
            if reference["key"] not in secrets and reference.get("optional"):
                continue
            value = secrets[reference["key"]]
        found[entry["name"]] = value
    return found


def problems(document: Object) -> list[str]:
    """What the schemas say against an object, each with its path."""
    custom = _CUSTOM.get((document["apiVersion"], document["kind"]))
    found = list(_built_in(document) if custom is None else _by(custom, document))
    if custom is not None:
        for name, template in pod_templates(document).items():
            wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
            found += [f"{name}: {problem}" for problem in _built_in(wrapped)]
    return found + list(_words("", document))


def _built_in(document: Object) -> Iterator[str]:
    try:
        kubernetes_validate.validate(document, VERSION, strict=True)
    except kubernetes_validate.SchemaNotFoundError as err:
        yield err.message
    except kubernetes_validate.ValidationError as err:
        yield f"{'.'.join(map(str, err.absolute_path))}: {err.message}"


def _by(schema: Object, document: Object) -> Iterator[str]:
    for err in jsonschema.Draft202012Validator(schema).iter_errors(document):
        yield f"{'.'.join(map(str, err.absolute_path))}: {err.message}"


# Values that the schemas leave open, by field; read in the API reference of Kubernetes 1.37.
_VALUES: Final[Mapping[str, frozenset[str]]] = {
    "accessModes": frozenset({"ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"}),
    "fsGroupChangePolicy": frozenset({"OnRootMismatch", "Always"}),
    "imagePullPolicy": frozenset({"IfNotPresent", "Always", "Never"}),
    "medium": frozenset({"", "Memory"}),
    "podManagementPolicy": frozenset({"OrderedReady", "Parallel"}),
    "policyTypes": frozenset({"Ingress", "Egress"}),
    "protocol": frozenset({"TCP", "UDP", "SCTP"}),
    "unhealthyPodEvictionPolicy": frozenset({"IfHealthyBudget", "AlwaysAllow"}),
    "whenDeleted": frozenset({"Retain", "Delete"}),
    "whenScaled": frozenset({"Retain", "Delete"}),
    "whenUnsatisfiable": frozenset({"DoNotSchedule", "ScheduleAnyway"}),
}
_TYPES: Final[Mapping[str, frozenset[str]]] = {
    "metrics": frozenset({"Resource", "Pods", "Object", "External", "ContainerResource"}),
    "target": frozenset({"Utilization", "Value", "AverageValue"}),
    "policies": frozenset({"Pods", "Percent"}),
    "seccompProfile": frozenset({"RuntimeDefault", "Localhost", "Unconfined"}),
}
"""Values of the field `type` by the field it stands in."""
_QUANTITY_FIELDS: Final = frozenset({"cpu", "memory", "storage", "sizeLimit", "averageValue", "nvidia.com/gpu"})
_QUANTITY: Final = re.compile(r"\d+(\.\d+)?(m|k|[KMGTPE]i?)?")


def _words(path: str, value: Any, field: str = "") -> Iterator[str]:
    """A complaint for each word that is none of its field's, and for each quantity that is none."""
    if isinstance(value, dict):
        for name, inner in value.items():
            allowed = _TYPES.get(field) if name == "type" else _VALUES.get(name)
            for word in inner if isinstance(inner, list) else [inner]:
                if allowed is not None and isinstance(word, str) and word not in allowed:
                    yield f"{path}.{name}: {word!r} is none of {sorted(allowed)}"
            if name in _QUANTITY_FIELDS and not isinstance(inner, dict) and not _QUANTITY.fullmatch(str(inner)):
                yield f"{path}.{name}: {inner!r} is no quantity"
            yield from _words(f"{path}.{name}", inner, name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _words(f"{path}[{index}]", inner, field)


def _table(required: str, **fields: Any) -> Object:
    """The schema of an object with these fields and no others; those in `required` must be there."""
    return {
        "type": "object",
        "properties": fields,
        "required": required.split(),
        "additionalProperties": False,
    }


def _words_of(*allowed: str) -> Object:
    return {"type": "string", "enum": list(allowed)}


_TEXT: Final = {"type": "string", "minLength": 1}
_TEXTS: Final = {"type": "array", "items": _TEXT, "minItems": 1}
_COUNT: Final = {"type": "integer", "minimum": 0}
_NAMED: Final = _table("name", name=_TEXT, labels={"type": "object", "additionalProperties": {"type": "string"}})
_POD_TEMPLATE: Final = {"type": "object", "required": ["spec"]}  # checked as a built-in kind

# As in the types of kubernetes-sigs/lws at 060ab4d, without what is not used here.
_LEADER_WORKER_SET: Final = _table(
    "apiVersion kind metadata spec",
    apiVersion=_TEXT,
    kind=_TEXT,
    metadata=_NAMED,
    spec=_table(
        "leaderWorkerTemplate",
        replicas=_COUNT,
        startupPolicy=_words_of("LeaderCreated", "LeaderReady"),
        networkConfig=_table("subdomainPolicy", subdomainPolicy=_words_of("Shared", "UniquePerReplica")),
        rolloutStrategy=_table(
            "type",
            type=_words_of("RollingUpdate"),
            rollingUpdateConfiguration=_table("", partition=_COUNT, maxUnavailable=_COUNT, maxSurge=_COUNT),
        ),
        leaderWorkerTemplate=_table(
            "workerTemplate",
            size={"type": "integer", "minimum": 1},
            restartPolicy=_words_of("RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"),
            leaderTemplate=_POD_TEMPLATE,
            workerTemplate=_POD_TEMPLATE,
        ),
    ),
)

# As in the API reference of the Prometheus operator, without what is not used here.
_DURATION: Final = {"type": "string", "pattern": r"^\d+(ms|s|m)$"}
_POD_MONITOR: Final = _table(
    "apiVersion kind metadata spec",
    apiVersion=_TEXT,
    kind=_TEXT,
    metadata=_NAMED,
    spec=_table(
        "selector podMetricsEndpoints",
        selector=_table("matchLabels", matchLabels={"type": "object", "additionalProperties": {"type": "string"}}),
        podMetricsEndpoints={
            "type": "array",
            "items": _table(
                "port",
                port=_TEXT,
                path=_TEXT,
                interval=_DURATION,
                scrapeTimeout=_DURATION,
                authorization=_table("", type=_TEXT, credentials=_table("name key", name=_TEXT, key=_TEXT)),
            ),
        },
    ),
)

_GENERATED: Final = {"options": _table("", disableNameSuffixHash={"type": "boolean"})}
_KUSTOMIZATION: Final = _table(
    "apiVersion kind resources",
    apiVersion=_words_of("kustomize.config.k8s.io/v1beta1"),
    kind=_words_of("Kustomization"),
    namespace=_TEXT,
    resources=_TEXTS,
    images={"type": "array", "items": _table("name", name=_TEXT, newName=_TEXT, newTag=_TEXT)},
    configMapGenerator={"type": "array", "items": _table("name files", name=_TEXT, files=_TEXTS, **_GENERATED)},
    secretGenerator={"type": "array", "items": _table("name envs", name=_TEXT, envs=_TEXTS, **_GENERATED)},
)

_CUSTOM: Final[Mapping[tuple[str, str], Object]] = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): _LEADER_WORKER_SET,
    ("monitoring.coreos.com/v1", "PodMonitor"): _POD_MONITOR,
    ("kustomize.config.k8s.io/v1beta1", "Kustomization"): _KUSTOMIZATION,
}
