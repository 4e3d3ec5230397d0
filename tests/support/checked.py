"""`kimi-gateway check` run in this process, targets whose model list a test decides, and answers to probes."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner
from typing_extensions import override

from kimi_gateway.cli import app
from support.exchange import Exchange
from support.processes import clean_environment
from support.scripted import Answer, Given, Script, ScriptedUpstream, play

KEY = "sk-check-4f9a8e7d6c5b4a39"
SMALL_JOURNAL = "[ledger]\nmax_journal_bytes = 1048576\n"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a check ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def mistakes(self) -> list[str]:
        """The lines about mistakes, which stand at the end."""
        assert self.code == 1, self.out + self.err
        (heading,) = [at for at, line in enumerate(self.lines) if line.endswith(" to set right:")]
        found = self.lines[heading + 1 :]
        assert self.lines[heading].startswith(f"{len(found)} mistake")
        return found

    @property
    def line(self) -> str:
        """The line of the one mistake."""
        (only,) = self.mistakes
        return only

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def result(self, what: str, where: str = "") -> str:
        """The result in the table's row about that; fails where there is none."""
        (row,) = [line for line in self.lines if line.startswith(f"{what} ") and where in line]
        return row


def check(
    directory: Path,
    config: str | None,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    ledger: str = SMALL_JOURNAL,
) -> Outcome:
    """Runs the command in `directory` on the configuration (None: without a file), port 0 unless it says one.

    The key is in the variable CHECK_KEY. What the product would read from the developer's environment is unset.
    """
    given = [*arguments]
    if config is not None:
        server = "" if "[server]" in config else "[server]\nport = 0\n"
        (directory / "check.toml").write_text(f"{server}{ledger}{config}", "utf-8")
        given += ["--config", "check.toml"]
    kept = clean_environment({"CHECK_KEY": KEY, **(env or {})})
    environ: dict[str, str | None] = {name: None for name in os.environ if name not in kept}
    wide = {"COLUMNS": "400"}  # so that no row of a table is broken
    with chdir(directory):
        ended = CliRunner().invoke(app, ["check", *given], env={**environ, **kept, **wide, **(env or {})})
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert KEY not in ended.output
    return Outcome(ended.exit_code, ended.stdout, ended.stderr)


def target(base_url: str, *, name: str = "t", dialect: str = "vllm", model: str = "kimi", extra: str = "") -> str:
    """A target with the key, as TOML."""
    return (
        f'[[targets]]\nname = "{name}"\ndialect = "{dialect}"\nbase_url = "{base_url}"\n'
        f'api_key_env = "CHECK_KEY"\nmodels = {{ "kimi" = "{model}" }}\n{extra}\n'
    )


PRICES = 'prices = { input = "2.00", cache_read = "0.20", output = "10.00" }'


def listing(*names: str, headers: Mapping[str, str] | None = None) -> Given:
    """The answer to GET /models that lists these."""
    rows = [{"id": name, "object": "model", "max_model_len": 262144} for name in names]
    return {"status": 200, "json": {"object": "list", "data": rows}, "headers": headers or {}}


def behind(key: str, answer: Given) -> Script:
    """The answer, for those who have the key; others get 401 as engines say it."""

    async def script(exchange: Exchange) -> None:
        has_key = exchange.received.headers.get("authorization") == f"Bearer {key}"
        refusal: Given = {"status": 401, "json": {"error": "Unauthorized"}}
        await play(answer if has_key else refusal, exchange)

    return script


class Deployment(ScriptedUpstream):
    """A scripted upstream whose GET requests are answered by `models` as well; without it, it lists `kimi`.

    `paths` are further GET requests that it answers, by path.
    """

    def __init__(
        self,
        answers: Sequence[Answer] = (),
        *,
        models: Answer | None = None,
        paths: Mapping[str, Answer] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(answers, **options)
        listed: Answer = behind(KEY, listing("kimi")) if models is None else models
        self._by_path: Mapping[str, Answer] = {"/v1/models": listed, **(paths or {})}

    @override
    async def _probe(self, exchange: Exchange) -> bool:
        self.probes.append(exchange.received)
        answer = self._by_path.get(exchange.received.path, {"status": 404, "text": "no such path"})
        if callable(answer):
            await answer(exchange)
        else:
            await play(answer, exchange)
        return exchange.keep


ENGINE_ID = {"X-Request-Id": "9f2c"}
COUNTED = {"prompt_tokens": 98, "completion_tokens": 21, "prompt_tokens_details": {"cached_tokens": 0}}
UNCOUNTED = {"prompt_tokens": 98, "completion_tokens": 21, "prompt_tokens_details": None}


def chunk(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of a stream; `usage_in_choice` puts a usage where Moonshot has it."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    if "usage_in_choice" in more:
        choice["usage"] = more.pop("usage_in_choice")
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "kimi",
        "choices": [choice],
        **more,
    }


def extra(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The chunk without choices that carries usage."""
    return {**chunk({}), "choices": [], "usage": usage}


def stream(*events: Mapping[str, Any], before: str = "", headers: Mapping[str, str] | None = None) -> Given:
    """An answer with these events and the end mark; `before` are bytes ahead of them."""
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return {"status": 200, "headers": headers or {}, "sse_text": f"{before}{text}data: [DONE]\n\n"}


def engine_answer(
    *,
    thought: str | None = "reasoning",
    text: str = "pong",
    usage: Mapping[str, Any] | None = COUNTED,
    headers: Mapping[str, str] = ENGINE_ID,
) -> Given:
    """What an engine with every flag answers, but for what is said otherwise."""
    thoughts = [chunk({thought: "The user pings."})] if thought else []
    ends = [extra(usage)] if usage is not None else []
    return stream(
        chunk({"role": "assistant", "content": ""}),
        *thoughts,
        chunk({"content": text}),
        chunk({}, "stop"),
        *ends,
        headers=headers,
    )


def probe(directory: Path, *answers: Given, dialect: str = "vllm", output: str = "table") -> Outcome:
    """Checks with a probe a target of that kind, which is well otherwise."""
    with Deployment(answers) as up:
        outcome = check(
            directory, target(up.base_url, dialect=dialect, extra=PRICES), "--probe", "--format", output
        )
        assert len(up.requests) == len(answers)
    return outcome


def mistakes(outcome: Outcome) -> list[str]:
    """The lines about mistakes of targets."""
    return [line for line in outcome.mistakes if line.startswith("targets[")]
