"""Usage that is missing, repeated, cumulative, zero or absurd: measured where it can be, else an estimate."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from backends.emulator.faults import KINDS
from pricing.ledger.row import LedgerRow
from support.lab import ledger_url, post, wait_for_row
from support.processes import BASE_URL, Gateway, gateway_process, program

FORMS = KINDS["usage"].options["form"].choices
EXACT = {"repeated", "cumulative", "null", "absurd"}
"""Forms from which the counts that cost money can still be read."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kimi-test-")))
        rules = [f'[[faults]]\nkind = "usage"\nform = "{form}"\ncontains = "form {form} now"\n' for form in FORMS]
        (folder / "faults.toml").write_text("".join(rules), "utf-8")
        command = [sys.executable, "-m", "kimi_gateway", "emulate", "--port", "0", "--pace", "0"]
        emulator = stack.enter_context(
            program([*command, "--faults", str(folder / "faults.toml")], ready=BASE_URL)
        )
        config = (
            '[server]\ndrain_grace_s = 0\n[timing]\nusage_grace_s = 0.3\n[[targets]]\nname = "moonshot"\n'
            f'dialect = "moonshot"\nbase_url = "{emulator.wait_for_line(BASE_URL).group()}"\n'
            'api_key_env = "KEY"\nmodels = { "kimi-k3.1-pro" = "kimi-k3.1-pro" }\n'
        )
        yield stack.enter_context(gateway_process(config, {"KEY": "sk-usage"}))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_usage_report_is_believed_only_where_it_can_be_true(gateway: Gateway, form: str, stream: bool) -> None:
    def ask(text: str) -> LedgerRow:
        request = {"model": "kimi-k3.1-pro", "reasoning_effort": "low", "stream": stream}
        heard = post(gateway.base_url, {**request, "messages": [{"role": "user", "content": text}]}, {})
        assert heard.status == 200
        return wait_for_row(ledger_url(gateway), heard.headers["x-kimi-request-id"])

    row = ask(f"form {form} now")
    assert row.status == "ok"
    assert row.cost_nano
    assert row.estimated is (form not in EXACT)
    assert bool(row.anomaly) is (form not in {"repeated", "cumulative", "null", "missing", "empty"})
    if row.estimated:
        assert row.estimate_bound_nano
        assert row.prompt_tokens
        assert row.completion_tokens
