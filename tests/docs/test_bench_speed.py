"""The benchmark of speed: its clients and its upstream understand each other, and its report judges rightly."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def process() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        yield importlib.import_module("speed_process")
    finally:
        sys.path.remove(str(ROOT / "bench"))


@pytest.fixture(scope="module")
def report(process: ModuleType) -> ModuleType:
    return importlib.import_module("speed_report")


def two_rounds(report: ModuleType, gateway: list[Any], peer: list[Any]) -> Any:
    results = report.Results()
    for subject, values in (("gateway", gateway), (report.FIRST_PEER, peer)):
        for value in values:
            results.add("rps", subject, {"rps_64": value})
    return results


def test_the_clients_measure_the_upstream_alone(process: ModuleType) -> None:
    with process.clients() as load, process.upstream() as (port, pid):
        asked = {"port": port, "pid": pid, "headers": {}}
        calls = load.do("rps", **asked, connections=4, seconds=0.2, warm_s=0.1, say="one")
        assert calls["rps"] > 0
        assert calls["p50_ms"] <= calls["p99_ms"]
        paced = load.do("paced", **asked, streams=10, seconds=0.4, warm_s=0.1, every_s=0.02)
        assert 0 < paced["events_per_s"] < 10 / 0.02 * 1.5
        assert load.do("bodies", **asked, talk=1_000_000, count=2, store=True)["p50_ms"] > 0
        assert load.do("hold", **asked, streams=5, every_s=1.0, for_s=10.0) == {"open": 5}
        load.do("release")
        with pytest.raises(process.StartError, match="404"):
            load.do("health", **asked, path="/nowhere", count=1)


def test_a_ratio_is_the_median_of_the_rounds_that_have_both(report: ModuleType) -> None:
    results = two_rounds(report, [10.0, 30.0, None], [10.0, 10.0, 10.0])
    assert results.ratio("rps_64", report.FIRST_PEER) == 2.0
    assert two_rounds(report, [10.0], [None]).ratio("rps_64", report.FIRST_PEER) is None


def test_what_the_upstream_takes_is_subtracted_round_by_round(report: ModuleType) -> None:
    results = report.Results()
    for subject, values in (("gateway", (5.0, 9.0)), (report.DIRECT, (1.0, 2.0))):
        for value in values:
            results.add("bodies", subject, {"body_4mb_ms": value})
    assert results.values("gateway", "body_4mb_ms") == [4.0, 7.0]
    assert results.values(report.DIRECT, "body_4mb_ms") == [1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "expected"), [(1.3, "goal"), (1.1, "must"), (0.9, "MISSED"), (None, "not measured")]
)
def test_a_promise_is_judged_in_its_own_direction(report: ModuleType, value: float | None, expected: str) -> None:
    (target,) = [one for one in report.TARGETS if one.figure == "rps_64"]
    assert report.verdict(value, target, report.FIGURES["rps_64"]) == expected


def test_a_ratio_that_is_worse_than_the_tolerance_is_named(report: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    report.write_baseline(two_rounds(report, [10.0], [10.0]), path, {"load": 0.1})
    assert json.loads(path.read_text("utf-8"))["ratios"] == {f"rps_64/{report.FIRST_PEER}": 1.0}
    assert report.worsened(two_rounds(report, [9.0], [10.0]), path) == []
    (named,) = report.worsened(two_rounds(report, [7.0], [10.0]), path)
    assert named.startswith(f"rps_64/{report.FIRST_PEER}: 0.70, was 1.00, at least 0.80")
