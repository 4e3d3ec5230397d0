"""`show` tells what a lost cache cost."""

import pytest

from pricing.show_view import print_row_table
from support.ledger_rows import settled_row


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"cache_loss": "effort", "cache_lost_tokens": 5_760, "cache_lost_nano": 10_368_000},
            "effort: 5,760 tokens that would have been read, 0.010368 USD more",
        ),
        (
            {"cache_loss": "target", "cache_lost_tokens": 512},
            "target: 512 tokens that would have been read, – USD",
        ),
        ({"cache_loss": "expired"}, "expired"),
    ],
)
def test_a_lost_cache_is_told_with_its_cost(
    fields: dict[str, object], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_row_table(settled_row("a", prefix="00ff00ff00ff00ff", **fields), [])
    printed = capsys.readouterr().out
    assert told in printed
    assert "00ff00ff00ff00ff" in printed


def test_where_nothing_was_lost_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    print_row_table(settled_row("a"), [])
    printed = capsys.readouterr().out
    assert "cache lost" not in printed
    assert "conversation" not in printed
