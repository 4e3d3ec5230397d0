"""The cases: public faults as inputs with right answers, one JSON object a line in tests/cases.jsonl."""

import json
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).resolve().parents[1] / "cases.jsonl"


@cache
def all_cases() -> dict[str, dict[str, Any]]:
    """Every case by id."""
    rows = [json.loads(line) for line in _FILE.read_text().splitlines() if line.strip()]
    return {row["id"]: row for row in rows}


def case(case_id: str) -> dict[str, Any]:
    """One case. Raises `KeyError`."""
    return all_cases()[case_id]
