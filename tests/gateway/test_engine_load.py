"""What is read of an engine's metrics and load: recorded bytes, both generations of names, hostile text."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from backends.dialect import LoadReport
from kimi_gateway.core.routing.engine_load import Reading, reading
from support.shared import shared_path
from support.transcripts import exchanges


def report(dialect: str) -> LoadReport:
    found = DIALECTS[dialect].load
    assert found is not None
    return found


VLLM, SGLANG, LLAMACPP = (report(name) for name in ("vllm", "sglang", "llamacpp"))


def lines_of_interest(engine: str) -> bytes:
    """The lines of an engine's metrics that were kept (recorded 2026-11-30)."""
    text = shared_path(f"transcripts/engine-{engine}-meta.txt").read_text(encoding="utf-8")
    _, _, kept = text.partition("##### metrics-after (lines of interest)\n")
    assert kept.startswith(f"{engine}:")
    return kept.encode()


def test_recorded_vllm_0_32_0() -> None:
    assert reading(lines_of_interest("vllm"), VLLM) == Reading(0, 0, 0.0)
    busy = lines_of_interest("vllm").replace(
        b'num_requests_running{engine="0",model_name="kimi-k3.1-pro"} 0.0', b""
    )
    assert reading(busy, VLLM) is None, "without the number of running requests nothing is said"
    recorded = exchanges("vllm-meta")["get-load"]
    assert recorded.path in VLLM.paths
    assert recorded.body == b'{"server_load":0}'
    assert reading(recorded.body, VLLM) is None, "0 is what it says where nobody counts"


def test_recorded_llamacpp_b11549() -> None:
    recorded = exchanges("llamacpp-meta")["get-metrics-head"]
    assert recorded.path in LLAMACPP.paths
    assert reading(b"\n".join(recorded.parts), LLAMACPP) == Reading(0, 0, None)


def test_recorded_sglang_0_5_23_has_its_labels() -> None:
    kept = lines_of_interest("sglang")
    assert reading(kept, SGLANG) is None
    labels = kept.split(b"sglang:token_usage")[1].split(b"}")[0] + b"}"
    more = b"sglang:num_running_reqs" + labels + b" 7.0\nsglang:num_queue_reqs" + labels + b" 2.0\n"
    assert reading(kept + more, SGLANG) == Reading(7, 2, 0.0)
    assert {"/metrics", "/v1/loads?include=core"} <= set(SGLANG.paths)
    assert exchanges("sglang-meta")["get-load"].status == 404


@pytest.mark.parametrize("usage", ["vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"])
def test_both_generations_of_vllms_names(usage: str) -> None:
    text = f"""# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m"}} 3.0
vllm:num_requests_waiting{{model_name="m"}} 4.0
vllm:num_requests_waiting_by_reason{{model_name="m",reason="capacity"}} 99.0
{usage}{{model_name="m"}} 0.25
"""
    assert reading(text.encode(), VLLM) == Reading(3, 4, 0.25)


def test_data_parallel_engines_add_up_and_the_fullest_cache_counts() -> None:
    text = """vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
"""
    assert reading(text.encode(), VLLM) == Reading(8, 1, 0.75)


@pytest.mark.parametrize("mark", [":", "_"])
def test_sglangs_ranks_of_one_model_are_copies_and_its_replicas_add_up(mark: str) -> None:
    lines = []
    for dp in range(2):
        for tp in range(4):
            labels = f'{{dp_rank="{dp}",moe_ep_rank="0",pp_rank="0",tp_rank="{tp}"}}'
            lines += [
                f"sglang{mark}num_running_reqs{labels} {10 + dp}",
                f"sglang{mark}num_queue_reqs{labels} {dp}",
            ]
            lines.append(f"sglang{mark}token_usage{labels} {0.1 * (tp + 1)}")
    assert reading("\n".join(lines).encode(), SGLANG) == Reading(21, 1, 0.4)


def test_sglangs_loads_by_source_and_the_older_form() -> None:
    ranks = [
        {"dp_rank": 0, "num_running_reqs": 2, "num_waiting_reqs": 1, "token_usage": 0.5, "gen_throughput": 3.5},
        {"dp_rank": 1, "num_running_reqs": 3, "num_waiting_reqs": 0, "token_usage": 0.25},
    ]
    assert reading(json.dumps({"version": "0.5.23", "loads": ranks}).encode(), SGLANG) == Reading(5, 1, 0.5)
    older = [{"dp_rank": 0, "num_reqs": 7, "num_waiting_reqs": 2, "num_tokens": 900}]
    assert reading(json.dumps(older).encode(), SGLANG) == Reading(5, 2, None)
    assert reading(b'{"loads": []}', SGLANG) is None


def test_vllms_load_counts_where_it_is_counted() -> None:
    assert reading(b'{"server_load": 12}', VLLM) == Reading(12, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><body>not found</body></html>",
        b"{",
        b"[]",
        b"[[]]",
        b"{}",
        b'{"loads": {}}',
        b'{"loads": [{"num_running_reqs": -1}]}',
        b'{"loads": [{"num_running_reqs": true}]}',
        b'{"server_load": "many"}',
        b"[" * 100_000,
        b"vllm:num_requests_running",
        b"vllm:num_requests_running NaN",
        b"vllm:num_requests_running +Inf",
        b"vllm:num_requests_running -1",
        b"vllm:num_requests_running{ 1",
        b"vllm:num_requests_running_more 1",
        b"vllm:num_requests_running{" + b'a="b",' * 10_000 + b"} 1",
    ],
)
def test_what_says_nothing_is_none(body: bytes) -> None:
    assert reading(body, VLLM) is None


def test_labels_may_hold_anything_and_a_sample_its_time() -> None:
    text = b'vllm:num_requests_running{model_name="a \\"b\\" } 9 {\\\\",engine="0"} 2 1796040000000\r\n'
    assert reading(text, VLLM) == Reading(2, 0)


@given(st.binary(max_size=200))
@settings(max_examples=60)
def test_no_bytes_raise(noise: bytes) -> None:
    for one in (VLLM, SGLANG, LLAMACPP):
        reading(noise, one)
        reading(b"vllm:num_requests_running" + noise, one)


def test_a_hundred_kilobytes_of_other_metrics_cost_little() -> None:
    body = lines_of_interest("vllm") * 10
    began_s = time.perf_counter()
    for _ in range(10):
        assert reading(body, VLLM) is not None
    assert (time.perf_counter() - began_s) / 10 < 0.02


def test_numbers_are_kept_within_reason() -> None:
    assert reading(b"vllm:num_requests_running 1e300\nvllm:kv_cache_usage_perc 7", VLLM) == Reading(10**9, 0, 1.0)
