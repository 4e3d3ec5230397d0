"""The flags that docker-compose.yml and deploy/kubernetes give vLLM, read by vLLM's own parser (0.32.0 here).

It knows their names, their types and the members of their JSON; whether a GPU can do it, it does not know.
"""

import json
import re
import subprocess
from typing import Any

import pytest

from support.compose import service
from support.kubernetes import containers, one, pod_templates
from support.vllm_engine import environment

PARSE = """
import json, sys
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
(serve,) = cmd_init()
serve.subparser_init(parser.add_subparsers(required=True, dest="subparser"))
def read(flags):
    try:
        return vars(parser.parse_args(["serve", *flags]))
    except SystemExit:
        return None
found = {name: read(flags) for name, flags in json.loads(sys.argv[1]).items()}
print("PARSED", json.dumps(found, default=str))
"""
LWS = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "leader"}
PLACES = ("compose", "leader", "worker")
WRONG = ("--no-such-flag", "--tensor-parallel-size=many", '--attention-config={"no_such_member":true}')


def launch(place: str) -> list[str]:
    """The arguments of one launch, as the engine gets them."""
    if place == "compose":
        command: list[str] = service("vllm")["command"]
        return command
    template: Any = pod_templates(one("vllm", "LeaderWorkerSet", "kimi-vllm"))[f"{place}Template"]
    (container,) = containers(template)
    return [re.sub(r"\$\((\w+)\)", lambda use: LWS[use[1]], flag) for flag in container["args"]]


@pytest.fixture(scope="module")
def parsed() -> Any:
    """What vLLM's parser makes of each launch, and of one with each wrong flag; None where it refuses it.

    One process for all, because vLLM takes long to load.
    """
    launches = {place: launch(place) for place in PLACES}
    launches |= {wrong: [*launch("compose"), wrong] for wrong in WRONG}
    command = [str(environment() / "bin" / "python"), "-c", PARSE, json.dumps(launches)]
    env = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.rpartition("PARSED ")[2])


@pytest.mark.parametrize("place", PLACES)
def test_vllm_reads_every_flag(parsed: Any, place: str) -> None:
    found = parsed[place]
    assert found is not None, "refused"
    assert found["model_tag"] == launch(place)[0]
    assert found["tensor_parallel_size"] == 8
    assert found["max_model_len"] == 1_048_576
    if place != "compose":
        assert (found["nnodes"], found["node_rank"], found["master_addr"]) == (2, 1, "leader")
        assert found["headless"] is (place == "worker")


@pytest.mark.parametrize("wrong", WRONG)
def test_it_refuses_a_wrong_one(parsed: Any, wrong: str) -> None:
    assert parsed[wrong] is None
