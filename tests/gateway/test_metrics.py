"""Metrics: what is counted, exact money, and labels that no client can multiply."""

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_gateway.metrics import Metrics, meters_of, sample_loop_lag
from pricing.ledger.row import LedgerRow


def made() -> Metrics:
    return Metrics(targets=["moonshot"], models=["kimi-k3.1-pro"], keys=["team-a"])


def row(**changes: object) -> LedgerRow:
    fields: dict[str, object] = {
        "request_id": "kr_1",
        "started_at": 0.0,
        "key": "team-a",
        "target": "moonshot",
        "model": "kimi-k3.1-pro",
        "status": "ok",
        "prompt_tokens": 100,
        "cached_tokens": 80,
        "write_5m_tokens": 15,
        "completion_tokens": 20,
        "cost_nano": 76_000,
    }
    return LedgerRow(**{**fields, **changes})  # type: ignore[arg-type]  # a test's shorthand


def samples(metrics: Metrics) -> dict[str, float]:
    """Sample name with labels to value."""
    lines = metrics.render().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


CALLER = 'key="team-a",{}model="kimi-k3.1-pro",target="moonshot",tier="standard"'


def test_a_settled_request_is_counted_by_meter_and_money() -> None:
    metrics = made()
    metrics.settled(row(), 1.5)
    found = samples(metrics)
    assert (
        found[
            'kimi_requests_total{key="team-a",kind="ok",model="kimi-k3.1-pro",target="moonshot",tier="standard"}'
        ]
        == 1
    )
    for meter, count in {"input": 5, "cache_read": 80, "write_5m": 15, "output": 20}.items():
        label = CALLER.format(f'meter="{meter}",')
        assert found[f"kimi_tokens_total{{{label}}}"] == count
    assert found[f"kimi_cost_usd_total{{{CALLER.format('')}}}"] == 0.000076
    assert found['kimi_request_seconds_sum{target="moonshot",tier="standard"}'] == 1.5


@given(st.lists(st.integers(0, 10**12), max_size=30))
@settings(max_examples=50)
def test_money_is_summed_exactly(costs: list[int]) -> None:
    metrics = made()
    for cost in costs:
        metrics.settled(row(cost_nano=cost), 0)
    shown = samples(metrics).get(f"kimi_cost_usd_total{{{CALLER.format('')}}}", 0.0)
    assert shown == sum(costs) / 10**9


def test_unknown_counts_are_not_counted_and_an_unpriced_row_costs_nothing() -> None:
    metrics = made()
    metrics.settled(row(cached_tokens=None, write_5m_tokens=None, cost_nano=None), 0)
    text = metrics.render().decode()
    assert 'meter="input"' in text
    assert "cache_read" not in text
    assert "kimi_cost_usd_total{" not in text


def test_meters_are_disjoint_and_never_negative() -> None:
    assert dict(meters_of(row()))["input"] == 5
    assert dict(meters_of(row(cached_tokens=500)))["input"] == 0
    assert sum(count for name, count in meters_of(row(search_calls=2)) if name == "search") == 2


def test_no_client_makes_a_label() -> None:
    metrics = made()
    for number in range(50):
        name = f"made-up-{number}"
        metrics.settled(row(key=name, target=name, model=name, tier=name), 0)
        metrics.first_token(name, 0.1)
        metrics.fault(name, name)
        metrics.refused(name)
    text = metrics.render().decode()
    assert "made-up" not in text
    assert 'kimi_upstream_faults_total{kind="other",target="other"} 50.0' in text
    assert 'kind="ok",model="other",target="other",tier="other"} 50.0' in text


def test_a_reload_makes_new_names_known() -> None:
    metrics = made()
    metrics.configure(targets=["b"], models=["m"], keys=["k"])
    metrics.settled(row(target="b", model="m", key="k"), 0)
    metrics.settled(row(), 0)
    text = metrics.render().decode()
    assert 'key="k",kind="ok",model="m",target="b"' in text
    assert 'key="other",kind="ok",model="other",target="other"' in text


def test_the_rest_of_what_is_measured() -> None:
    metrics = made()
    metrics.in_flight_changed(1)
    metrics.in_flight_changed(1)
    metrics.in_flight_changed(-1)
    metrics.first_token("moonshot", 0.3)
    metrics.chunk_gap(0.02)
    metrics.fault("moonshot", "timeout")
    metrics.refused("team-a")
    found = samples(metrics)
    assert found["kimi_in_flight"] == 1
    assert found['kimi_ttft_seconds_count{target="moonshot"}'] == 1
    assert found["kimi_chunk_gap_seconds_sum"] == pytest.approx(0.02)
    assert found['kimi_upstream_faults_total{kind="timeout",target="moonshot"}'] == 1
    assert found['kimi_requests_total{key="team-a",kind="refused",model="",target="",tier=""}'] == 1


def test_only_the_labels_of_the_design_are_used() -> None:
    metrics = made()
    metrics.settled(row(), 1)
    metrics.fault("moonshot", "timeout")
    metrics.first_token("moonshot", 1)
    names = {
        part.partition("=")[0]
        for sample in samples(metrics)
        if "{" in sample
        for part in sample[sample.index("{") + 1 : -1].split(",")
    }
    assert names == {"target", "model", "tier", "kind", "meter", "key", "le"}


def test_two_registries_do_not_meet() -> None:
    first, second = made(), made()
    first.in_flight_changed(1)
    assert samples(second)["kimi_in_flight"] == 0


def test_the_lag_of_a_blocked_loop_is_seen() -> None:
    metrics = made()

    async def main() -> None:
        sampler = asyncio.create_task(sample_loop_lag(metrics, time.monotonic, interval_s=0.01))
        await asyncio.sleep(0.02)
        time.sleep(0.12)  # noqa: ASYNC251  # the block that is to be seen
        await asyncio.sleep(0.02)
        sampler.cancel()

    asyncio.run(main())
    found = samples(metrics)
    assert found["kimi_event_loop_lag_seconds_count"] >= 2
    slow = (
        found['kimi_event_loop_lag_seconds_bucket{le="+Inf"}']
        - found['kimi_event_loop_lag_seconds_bucket{le="0.1"}']
    )
    assert slow >= 1
