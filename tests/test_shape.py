"""Files and functions stay short enough to be read: at most 400 lines and 50 lines."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50
SOURCES = sorted(
    path
    for folder in ("kimi_gateway", "kimi_sdk", "backends", "pricing", "tests", "bench")
    for path in (ROOT / folder).rglob("*.py")
)


def too_long(path: Path) -> list[str]:
    """The complaints about one file."""
    text = path.read_text()
    found = []
    if (lines := text.count("\n")) > FILE_LINES_MAX:
        found.append(f"{path.relative_to(ROOT)}: {lines} lines, at most {FILE_LINES_MAX}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines")
    return found


def test_files_and_functions_are_short() -> None:
    assert [line for path in SOURCES for line in too_long(path)] == []


def test_the_measure_sees_a_long_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_shape.ROOT", tmp_path)
    long = tmp_path / "long.py"
    long.write_text("def f() -> None:\n" + "    pass\n" * 60)
    assert too_long(long) == ["long.py:1 f: 61 lines"]
