"""deploy/kubernetes/vllm: one engine over two nodes, launched like the one of docker-compose.yml."""

import re
import socket
import subprocess
import sys
import threading
from typing import Any

from support.compose import service
from support.kubernetes import KUBERNETES, Object, containers, one, pod_templates
from support.processes import free_port

FILE = KUBERNETES / "vllm" / "leaderworkerset.yaml"
ACROSS_NODES = {"pipeline-parallel-size", "nnodes", "node-rank", "master-addr"}
TUNED = {"gpu-memory-utilization", "max-num-batched-tokens"}  # otherwise than on one node, by the recipe
OWN = {"headless", "tensor-parallel-size", *ACROSS_NODES, *TUNED}  # explained here, not in docker-compose.yml
OF_THE_SERVER = {  # of a rank that answers requests
    "host",
    "port",
    "reasoning-parser",
    "tool-call-parser",
    "enable-auto-tool-choice",
    "enable-prompt-tokens-details",
    "enable-request-id-headers",
    "enable-force-include-usage",
    "sse-keep-alive-interval",
    "max-num-queued-reqs",
    "shutdown-timeout",
}
COMPOSE: Any = service("vllm")


def group() -> Object:
    """The template of a group of pods."""
    found: Object = one("vllm", "LeaderWorkerSet", "kimi-vllm")["spec"]["leaderWorkerTemplate"]
    return found


def pod(role: str) -> Object:
    """The pod of the leader or of a worker."""
    spec: Object = pod_templates(one("vllm", "LeaderWorkerSet", "kimi-vllm"))[f"{role}Template"]["spec"]
    return spec


def engine(role: str) -> Object:
    """The engine's container in it."""
    (found,) = containers({"spec": pod(role)})
    return found


def flags(command: list[str]) -> dict[str, str]:
    """The flags of a command with their values."""
    pairs = [one.removeprefix("--").partition("=") for one in command if one.startswith("--")]
    return {name: value for name, _, value in pairs}


def test_the_leader_is_launched_as_in_compose_but_for_what_two_nodes_need() -> None:
    leader, compose = flags(engine("leader")["args"]), flags(COMPOSE["command"])
    different = {name for name in leader | compose if leader.get(name) != compose.get(name)}
    assert different == (ACROSS_NODES | TUNED)
    assert engine("leader")["command"] == COMPOSE["entrypoint"]
    assert engine("leader")["args"][0] == COMPOSE["command"][0]
    assert {engine(role)["image"] for role in ("leader", "worker")} == {COMPOSE["image"]}


def test_a_worker_runs_the_same_model_without_a_server() -> None:
    leader, worker = flags(engine("leader")["args"]), flags(engine("worker")["args"])
    assert {name for name in leader | worker if leader.get(name) != worker.get(name)} == {
        "headless"
    } | OF_THE_SERVER
    assert "headless" not in leader
    assert not OF_THE_SERVER & worker.keys()
    assert engine("worker")["args"][0] == engine("leader")["args"][0]
    assert engine("worker")["env"] == engine("leader")["env"]
    for name in ("volumes", "terminationGracePeriodSeconds", "enableServiceLinks"):
        assert pod("worker")[name] == pod("leader")[name]


def test_every_flag_that_compose_does_not_explain_says_where_it_comes_from() -> None:
    text = FILE.read_text()
    legend = text.partition("# Sources of the flags")[2].partition("apiVersion:")[0]
    sources = set(re.findall(r"^#   (\w+) {2,}", legend, re.MULTILINE))
    assert sources == {"recipe", "lws"}
    found = re.findall(r"^ +- ['\"]?--([a-z0-9-]+)\S*(?: +# (\w+))?", text, re.MULTILINE)
    named = {name for name, _ in found}
    assert named == flags(engine("leader")["args"]).keys() | {"headless"}
    for name, source in found:
        assert source in sources if name in OWN else source == "", name


def test_ranks_gpus_and_nodes_agree() -> None:
    leader = flags(engine("leader")["args"])
    for role in ("leader", "worker"):
        resources = engine(role)["resources"]
        assert (
            resources["limits"]["nvidia.com/gpu"]
            == resources["requests"]["nvidia.com/gpu"]
            == leader["tensor-parallel-size"]
        )
    assert int(leader["pipeline-parallel-size"]) == group()["size"] == 2
    assert leader["nnodes"] == "$(LWS_GROUP_SIZE)"
    assert leader["node-rank"] == "$(LWS_WORKER_INDEX)"
    assert leader["master-addr"] == "$(LWS_LEADER_ADDRESS)"
    assert group()["restartPolicy"] == "RecreateGroupOnPodRestart"


def test_the_environment_is_that_of_compose_with_the_fabric() -> None:
    found = {entry["name"]: entry.get("value") for entry in engine("leader")["env"]}
    assert {name for name in COMPOSE["environment"] if name not in found} == set()
    same = [name for name in COMPOSE["environment"] if name != "HF_TOKEN"]
    assert {name: found[name] for name in same} == {name: COMPOSE["environment"][name] for name in same}
    assert found["NCCL_SOCKET_IFNAME"] == found["GLOO_SOCKET_IFNAME"] == "eth0"
    mounts = {mount["mountPath"]: mount["name"] for mount in engine("leader")["volumeMounts"]}
    assert mounts[found["HF_HOME"] or ""] == "weights"
    (claim,) = (it["persistentVolumeClaim"] for it in pod("leader")["volumes"] if it["name"] == "weights")
    assert one("vllm", "PersistentVolumeClaim", claim["claimName"])["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_leader_is_asked_where_it_listens_and_gets_more_time_than_it_takes() -> None:
    leader = flags(engine("leader")["args"])
    ports = {port["name"]: port["containerPort"] for port in engine("leader")["ports"]}
    assert ports == {"http": int(leader["port"])}
    for name in ("startup", "liveness", "readiness"):
        assert engine("leader")[f"{name}Probe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert pod("leader")["terminationGracePeriodSeconds"] > int(leader["shutdown-timeout"])
    startup = engine("leader")["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 7200
    policy = one("vllm", "NetworkPolicy", "kimi-vllm")["spec"]["ingress"][0]
    assert policy["ports"] == [{"port": int(leader["port"])}]


def test_the_address_that_the_gateway_is_told_is_the_leaders() -> None:
    name, port = (
        one("vllm", "LeaderWorkerSet", "kimi-vllm")["metadata"]["name"],
        flags(engine("leader")["args"])["port"],
    )
    address = f"http://{name}-0.{name}:{port}/v1"
    for path in ("vllm/kustomization.yaml", "gateway/secrets.env.example", "gateway/gateway.toml"):
        assert address in (KUBERNETES / path).read_text(), path


def waiting_code(port: int) -> str:
    """What a worker runs before it stops, with another port for the leader's and shorter pauses."""
    command = engine("worker")["lifecycle"]["preStop"]["exec"]["command"]
    own = f" {flags(engine('leader')['args'])['port']})"
    assert command[:2] == ["python3", "-c"]
    assert (command[2].count(own), command[2].count("sleep(2)")) == (1, 1)
    code: str = command[2].replace(own, f" {port})").replace("sleep(2)", "sleep(0.05)")
    return code


def test_a_worker_waits_with_its_end_until_the_leader_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as leader:
        heard = threading.Event()

        def answer() -> None:
            for _ in range(3):
                leader.accept()[0].close()
            heard.set()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        command = [sys.executable, "-c", waiting_code(leader.getsockname()[1])]
        with subprocess.Popen(command, env={"LWS_LEADER_ADDRESS": "127.0.0.1"}) as waiting:
            assert heard.wait(10)
            assert waiting.poll() is None, "it did not wait"
            leader.close()
            assert waiting.wait(10) == 0
        thread.join()


def test_it_does_not_wait_for_a_leader_that_is_gone() -> None:
    command = [sys.executable, "-c", waiting_code(free_port())]
    done = subprocess.run(command, env={"LWS_LEADER_ADDRESS": "127.0.0.1"}, timeout=10, check=False)
    assert done.returncode == 0
