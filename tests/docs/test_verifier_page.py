"""The page on the vendor's verifier names what its runner sorts out, and the runner sorts as the page says."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "verifier.md").read_text("utf-8")


@pytest.fixture(scope="module")
def verifier() -> ModuleType:
    """The runner, which is a program and in no package."""
    spec = importlib.util.spec_from_file_location("bench_verifier", ROOT / "bench" / "verifier.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_test_that_is_no_contract_is_on_the_page(verifier: ModuleType) -> None:
    for test in [*verifier.DIFFERS, *verifier.NEEDS_MODEL]:
        assert f"`{test.partition('[')[0]}" in PAGE


def test_results_are_sorted_by_the_name_of_the_test(verifier: ModuleType) -> None:
    lists = verifier.sort(
        {
            "test_params::test_default_param_accepted[thinking]": "passed",
            "test_params::test_wrong_param_rejected[thinking-n=2]": "failed",
            "test_tool_choice::test_tool_choice_auto_may_call[stream]": "failed",
            "test_tool_choice::test_tool_choice_named_function_rejected[stream]": "skipped",
        }
    )
    assert list(lists.differs) == ["test_params::test_default_param_accepted[thinking]"]
    assert lists.failed() == ["test_params::test_wrong_param_rejected[thinking-n=2]"]
    assert len(lists.model) == 2


def test_of_several_tries_the_last_counts(verifier: ModuleType, tmp_path: Path) -> None:
    case = '<testcase classname="tests.k3_features.test_tool_choice" name="a[stream]">'
    report = tmp_path / "report.xml"
    report.write_text(
        f'<testsuites><testsuite>{case}<failure message="no"/></testcase>{case}</testcase>'
        '<testcase classname="test_params" name="b"><skipped/></testcase></testsuite></testsuites>'
    )
    assert verifier.read_results(report) == {"test_tool_choice::a[stream]": "passed", "test_params::b": "skipped"}
