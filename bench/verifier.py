"""Runs the vendor's verifier through the gateway and sorts what it found into three lists, by test name.

    python bench/verifier.py CHECKOUT [--python PYTHON] [--only NAME]... [--json FILE]

CHECKOUT is an unmodified checkout of MoonshotAI/Kimi-Vendor-Verifier, PYTHON an interpreter that has what it needs
(docs/verifier.md says what). Each run starts an emulator and a gateway of its own: a strict or a permissive
emulator of Moonshot, behind a gateway in strict or adjust mode, or without a gateway. The lists:

  contract  what Moonshot documents for K3.1: all of it has to pass behind a strict gateway
  differs   what the verifier expects of another model of the vendor's, and K3.1's documents rule out
  model     what needs a model's judgement or Moonshot's own counts, and what the verifier skips itself

Exit 0 where every strict run has all of the contract, 1 where one has not, 2 where nothing could be run.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SUITES: Final = ("tests/params", "tests/k3_features", "tests/tool_call_json_schema")
MODEL: Final = "kimi-k3.1-pro"
START_S: Final = 30.0
RUN_S: Final = 600.0
_URL: Final = re.compile(r"http://127\.0\.0\.1:\d+")

DIFFERS: Final[Mapping[str, str]] = {
    "test_params::test_default_param_accepted": (
        "calls temperature 0.6 and 0.0 defaults; K3.1 allows 1 alone and answers 400 to the others"
    ),
    "test_response_format::test_response_format_prompt_tokens_without": (
        "asks for thinking to be off; K3.1 always thinks, so a gateway that has no other target answers 400"
    ),
    "test_response_format::test_response_format_with": (
        "asks for thinking to be off, as above; besides it wants Moonshot's own count of a prompt with a schema"
    ),
    **{
        f"test_tool_call_json_schema::test_tool_call_schema_matches_case_schema[{case}:{kind}]": (
            "a property whose schema is {}: the hosted service refuses one that has no type"
        )
        for case in ("TestBasicTypes:1", "TestEnforcerCases:2")
        for kind in ("non-stream", "stream")
    },
}
"""By test, without its parameters or with them: how it differs from what is documented for K3.1."""

NEEDS_MODEL: Final[Mapping[str, str]] = {
    "test_thinking_effort::test_effort_omitted_returns_reasoning": "asks the model which effort it runs at",
    "test_thinking_effort::test_reasoning_effort_ignored_when_effort_present": "compares lengths of thoughts",
    "test_thinking_effort::test_reasoning_effort_effective_when_effort_absent": "compares lengths of thoughts",
    "test_thinking_effort::test_effort_reasoning_length_increases": "compares lengths of thoughts",
    "test_thinking_effort::test_effort_default_closest_to_max": "compares lengths of thoughts",
    "test_thinking_effort::test_keep_all_preserves_history_reasoning": "asks the model what it thought before",
    "test_thinking_effort::test_keep_all_prompt_tokens_include_reasoning": "compares the service's counts",
    "test_tokenization_groundtruth::test_prompt_tokens_match_groundtruth": "wants Moonshot's own count",
    "test_tool_choice::test_tool_choice_auto_may_call": "the model decides whether it calls",
    "test_tool_choice::test_tool_choice_auto_may_not_call": "the model decides whether it calls",
    "test_dynamic_tools::test_global_and_dynamic_tools_coexist": "the model chooses between two tools",
    "test_response_format::test_json_object": "the model reads from the prompt which keys are wanted",
}
"""By test, without its parameters: what it needs that no emulator and no gateway has."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One run: what stands in front of the emulator, and whether that enforces its contract."""

    gateway: str  # strict, adjust, or none
    emulator: str  # strict or permissive

    @property
    def name(self) -> str:
        """How a run is called on the command line."""
        return f"{self.gateway}-{self.emulator}"

    @property
    def must_hold(self) -> bool:
        """Whether all of the contract has to pass: somebody enforces it."""
        return self.gateway == "strict" or (self.gateway, self.emulator) == ("none", "strict")


SETTINGS: Final = tuple(
    Setting(gateway, emulator) for gateway in ("strict", "adjust", "none") for emulator in ("strict", "permissive")
)


@dataclass(slots=True)
class Lists:
    """Results by list: test name to passed, failed or skipped."""

    contract: dict[str, str] = field(default_factory=dict)
    differs: dict[str, str] = field(default_factory=dict)
    model: dict[str, str] = field(default_factory=dict)

    def failed(self) -> list[str]:
        """The tests of the contract that did not pass."""
        return sorted(name for name, result in self.contract.items() if result == "failed")


def sort(results: Mapping[str, str]) -> Lists:
    """The results in their lists. A test that is skipped by the verifier itself says nothing of a contract."""
    lists = Lists()
    for name, result in results.items():
        test = name.partition("[")[0]
        if test in DIFFERS or name in DIFFERS:
            lists.differs[name] = result
        elif test in NEEDS_MODEL or result == "skipped":
            lists.model[name] = result
        else:
            lists.contract[name] = result
    return lists


def read_results(report: Path) -> dict[str, str]:
    """Test name (module::test[parameters]) to its result, from a JUnit file. The last of several tries counts."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        module = (case.get("classname") or "").rpartition(".")[2]
        failed = case.find("failure") is not None or case.find("error") is not None
        result = "skipped" if case.find("skipped") is not None else "failed" if failed else "passed"
        found[f"{module}::{case.get('name')}"] = result
    return found


@contextmanager
def started(
    arguments: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None, other: str = ""
) -> Iterator[str]:
    """The address that a `kimi-gateway` command prints, other than `other`; the command ends with the context."""
    log = folder / f"{arguments[0]}.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "kimi_gateway", *arguments],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _address(process, log, other)
    finally:
        process.terminate()
        process.wait(START_S)


def _address(process: subprocess.Popen[bytes], log: Path, other: str) -> str:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        text = log.read_text("utf-8", "replace")
        found = [url for url in _URL.findall(text) if url != other]
        if found:
            return str(found[0])
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"{log.stem} did not start:\n{log.read_text('utf-8', 'replace')}")


@contextmanager
def staged(setting: Setting, folder: Path) -> Iterator[str]:
    """The base URL that the verifier talks to, with everything behind it running."""
    loose = ["--permissive"] if setting.emulator == "permissive" else []
    with started(["emulate", "--port", "0", "--pace", "0", *loose], folder) as emulator:
        if setting.gateway == "none":
            yield f"{emulator}/v1"
            return
        (folder / "kimi-gateway.toml").write_text(
            f'[server]\ndrain_grace_s = 0\n[contract]\nmode = "{setting.gateway}"\n'
            f'[[targets]]\nname = "moonshot"\ndialect = "moonshot"\nbase_url = "{emulator}/v1"\n'
            f'api_key_env = "VERIFIER_KEY"\nmodels = {{ "{MODEL}" = "{MODEL}" }}\n'
        )
        serve = ["serve", "--config", "kimi-gateway.toml", "--port", "0"]
        with started(serve, folder, environment={"VERIFIER_KEY": "sk-verifier"}, other=emulator) as gateway:
            yield f"{gateway}/v1"


def run(setting: Setting, checkout: Path, python: str) -> Lists:
    """What the verifier found. Raises `SystemExit` where it did not run to its end."""
    with tempfile.TemporaryDirectory(prefix="kimi-verifier-") as name:
        folder = Path(name)
        report = folder / "report.xml"
        with staged(setting, folder) as base_url:
            command = [python, "-m", "pytest", *SUITES, "--base-url", base_url, "--api-key", "sk-verifier"]
            command += ["--smoke-model", MODEL, "--think-mode", "none", "--thinking", "-p", "no:cacheprovider"]
            command += [f"--junitxml={report}", f"--tool-json-report={folder / 'schemas.json'}"]
            done = subprocess.run(
                command, cwd=checkout, capture_output=True, text=True, timeout=RUN_S, check=False
            )
        if not report.exists():
            raise SystemExit(f"the verifier did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return sort(read_results(report))


def shown(setting: Setting, lists: Lists) -> str:
    """The three lists as text: counts, and by name whatever did not pass."""
    lines = [f"== gateway {setting.gateway}, emulator {setting.emulator}"]
    for title, held in (("contract", lists.contract), ("differs", lists.differs), ("model", lists.model)):
        counts = {result: list(held.values()).count(result) for result in ("passed", "failed", "skipped")}
        lines.append(f"{title}: " + ", ".join(f"{count} {result}" for result, count in counts.items() if count))
        lines += [
            f"  {result} {name}{_why(name, result)}" for name, result in sorted(held.items()) if result != "passed"
        ]
    return "\n".join(lines)


def _why(name: str, result: str) -> str:
    test = name.partition("[")[0]
    reason = (
        DIFFERS.get(name)
        or DIFFERS.get(test)
        or NEEDS_MODEL.get(test)
        or ("the verifier's own skip" if result == "skipped" else "")
    )
    return f"  ({reason})" if reason else ""


def main() -> int:
    """Runs the settings that were asked for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="an unmodified checkout of the verifier")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to run it with")
    names = [setting.name for setting in SETTINGS]
    parser.add_argument("--only", action="append", choices=names, help="this run alone; may be repeated")
    parser.add_argument("--json", type=Path, help="a file for all results by name")
    options = parser.parse_args()
    if not (options.checkout / SUITES[0]).is_dir():
        print(f"{options.checkout} has no {SUITES[0]}: name a checkout of the verifier", file=sys.stderr)
        return 2
    # An interpreter's link is its virtual environment: made absolute, not resolved.
    python = str(Path(options.python).absolute()) if os.sep in options.python else options.python
    everything, broken = {}, 0
    for setting in SETTINGS:
        if options.only and setting.name not in options.only:
            continue
        lists = run(setting, options.checkout.absolute(), python)
        print(shown(setting, lists), flush=True)
        broken += bool(setting.must_hold and lists.failed())
        everything[setting.name] = {title: getattr(lists, title) for title in ("contract", "differs", "model")}
    if options.json:
        options.json.write_text(json.dumps(everything, indent=2) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
