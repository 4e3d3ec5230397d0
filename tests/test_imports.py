"""What layers cannot say in one line: exactly which modules of a lower package a higher one takes."""

import grimp
import pytest

PURE_HALF = (
    "json", "sse", "reasoning", "usage", "faults", "dialect", "dialects", "fold", "reader", "retry_after",
    "catalog", "messages", "schema", "schema_rules", "tool_rules",
)  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("pricing", "backends", "kimi_sdk", "kimi_gateway")


def taken(graph: grimp.ImportGraph, importer: str, imported: str) -> set[str]:
    """The modules of one package that another imports directly."""
    return {
        found
        for module in graph.modules
        if module == importer or module.startswith(importer + ".")
        for found in graph.find_modules_directly_imported_by(module)
        if found == imported or found.startswith(imported + ".")
    }


def test_backends_take_only_the_usage_type_of_pricing(graph: grimp.ImportGraph) -> None:
    assert taken(graph, "backends", "pricing") == {"pricing.usage"}


def test_the_sdk_takes_only_the_pure_half_of_backends(graph: grimp.ImportGraph) -> None:
    roots = {name.split(".")[1] for name in taken(graph, "kimi_sdk", "backends")}
    assert roots
    assert roots <= set(PURE_HALF)


def test_the_sdk_does_not_open_the_ledger(graph: grimp.ImportGraph) -> None:
    assert not {name for name in taken(graph, "kimi_sdk", "pricing") if name.startswith("pricing.ledger")}
