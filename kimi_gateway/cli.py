"""The command `kimi-gateway`: `serve`, `emulate`, `check` and `lint-tools`.

Exit codes: 0 well, 1 `check` or `lint-tools` found something, 2 something to set right first.
"""

import asyncio
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
import uvloop

from backends.emulator.app import Emulator, EmulatorConfig
from backends.emulator.fault_file import FaultFileError, read_fault_file
from backends.emulator.profiles import PROFILES
from kimi_gateway import __version__
from kimi_gateway.banner import url_of
from kimi_gateway.checks.findings import Output
from kimi_gateway.checks.targets import unpriced_notes
from kimi_gateway.keys_cli import keys_app
from kimi_gateway.launch import NO_TARGET, Launch
from kimi_gateway.opening import StartError
from kimi_gateway.process import run
from kimi_gateway.server import Listener, ListenError, bind
from kimi_gateway.settings import Flags, Settings, SettingsError, load, process_environment
from kimi_gateway.shutdown import Signals
from kimi_gateway.supervisor import supervise
from kimi_gateway.worker import ShareError, read_share
from pricing.cards import CardError, load_cards

USAGE_ERROR: Final = 2


app = typer.Typer(
    name="kimi-gateway",
    help="One OpenAI-compatible base_url in front of every way to run Kimi K3.1 Pro, with every token booked.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(keys_app)


class LogFormat(StrEnum):
    """How log lines look: text on a terminal and JSON elsewhere, unless one is chosen."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


class Switch(StrEnum):
    """A flag with a value, so that both sides can be written out."""

    ON = "on"
    OFF = "off"


_SERVE_HELP = """Serve the gateway.

Settings come from flags, then environment variables, then the file, then defaults. The file is --config, else the
variable KIMI_GATEWAY_CONFIG, else ./kimi-gateway.toml where it is there. Without [[targets]] in it, the variables
MOONSHOT_API_KEY, OPENROUTER_API_KEY, VLLM_BASE_URL and SGLANG_BASE_URL each add a target.

SIGTERM drains: /ready answers 503 at once, open answers may end, then exit 0. SIGHUP reads the settings again.

Examples:

\b
  MOONSHOT_API_KEY=sk-... kimi-gateway serve
  VLLM_BASE_URL=http://10.0.0.5:8000/v1 kimi-gateway serve --port 9000
  kimi-gateway serve --config /etc/kimi-gateway.toml --log-format json
  kimi-gateway serve --emulator-if-empty

\b
A smallest kimi-gateway.toml:
  [[targets]]
  name = "moonshot"
  dialect = "moonshot"
  api_key_env = "MOONSHOT_API_KEY"
"""

_EMULATE_HELP = """Serve the Kimi emulator alone: it behaves like the service and writes synthetic text.

GET /emulator/invoice shows what it would charge, GET /emulator/requests what it received.

--faults FILE makes it misbehave: a TOML file with rules that say which requests suffer what.

Examples:

\b
  kimi-gateway emulate --port 9100
  kimi-gateway emulate --dialect vllm --port 9101 --faults faults.toml
  kimi-gateway emulate --pace 0 --seed 7 --stream-ttl-headers on

\b
A smallest faults.toml: every fifth answer breaks off.
  [[faults]]
  kind = "cut"
  every = 5
"""


_CHECK_HELP = """Check the configuration, this machine and every target, and change nothing.

A line for each mistake (where, what, how to set it right) and exit code 1; without any, a table of what was
checked and exit code 0. Targets are asked for their model lists. Whether an engine was started with every flag
shows only in an answer: --probe sends one tiny request to each model of each target, which costs a few tokens, and
shows what came back.

Examples:

\b
  kimi-gateway check
  kimi-gateway check --config /etc/kimi-gateway.toml --probe
  kimi-gateway check --format json
"""


_LINT_HELP = """Show what Moonshot would refuse in tools and JSON Schemas, and what the gateway repairs by itself.

FILE is JSON: a list of tools, a request or another object with tools, the answer of an MCP server to tools/list,
or one schema; JSON Lines are read as a list, and - is standard input. Looked at are names, repeated names, sizes
and schemas.

Exit code 0: nothing found; 1: something found, even if the gateway repairs it; 2: FILE cannot be read.

Examples:

\b
  kimi-gateway lint-tools tools.json
  kimi-gateway lint-tools --format json request.json
  python -c "import app, json; print(json.dumps(app.Order.model_json_schema()))" | kimi-gateway lint-tools -
"""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kimi-gateway {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Options before the command."""


@app.command(help=_SERVE_HELP)
def serve(
    config: Annotated[Path | None, typer.Option("--config", help="The TOML file.", metavar="FILE")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 picks a free one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes on one socket.")] = None,
    emulator_if_empty: Annotated[
        bool,
        typer.Option("--emulator-if-empty", help="Without any target, answer from the built-in emulator."),
    ] = False,
    log_format: Annotated[LogFormat, typer.Option(help="How log lines look.")] = LogFormat.AUTO,
    as_worker: Annotated[str, typer.Option("--as-worker", hidden=True)] = "",
) -> None:
    environ = process_environment()
    flags = Flags(host=host, port=port, workers=workers)

    def read() -> Settings:
        return load(config, environ, flags)

    try:
        settings = read()
        if not settings.targets and not emulator_if_empty:
            _stop(NO_TARGET)
        launch = Launch(
            settings=settings,
            reload=read,
            say=partial(_say_with, _unpriced(settings)),
            emulator_if_empty=emulator_if_empty,
            log_format=log_format.value,
            share=read_share(as_worker) if as_worker else None,
        )
        several = settings.server.workers > 1 and launch.share is None
        code = supervise(launch, _worker_command(sys.argv[1:])) if several else run(launch)
    except (SettingsError, StartError, ListenError, ShareError) as err:
        _stop(str(err))
    raise typer.Exit(code)


def _worker_command(arguments: Sequence[str]) -> list[str]:
    """What starts one worker with the same options."""
    return [sys.executable, "-m", "kimi_gateway", *arguments]


@app.command(help=_EMULATE_HELP)
def emulate(
    dialect: Annotated[str, typer.Option(help=f"The dialect it speaks: {', '.join(PROFILES)}.")] = "moonshot",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.", min=0, max=65535)] = 9100,
    faults: Annotated[Path | None, typer.Option("--faults", help="The faults' TOML file.", metavar="FILE")] = None,
    permissive: Annotated[bool, typer.Option("--permissive", help="Enforce nothing, like a bare engine.")] = False,
    stream_ttl_headers: Annotated[
        Switch, typer.Option(help="Whether streams carry the headers with cache writes per TTL.")
    ] = Switch.OFF,
    pace: Annotated[float, typer.Option(help="Factor on every pause; 0 = none.", min=0)] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answers.")] = 0,
) -> None:
    if dialect not in PROFILES:
        _stop(f"the emulator does not speak {dialect}; it speaks {', '.join(PROFILES)}")
    config = EmulatorConfig(
        dialect=dialect,
        permissive=permissive,
        stream_ttl_headers=stream_ttl_headers is Switch.ON,
        pace=pace,
        seed=seed,
    )
    try:
        if faults is not None:
            config = read_fault_file(faults.read_text(encoding="utf-8")).applied_to(config)
        sock = bind(host, port)
    except (OSError, UnicodeDecodeError, FaultFileError) as err:
        _stop(f"--faults {faults}: " + str(err).replace("\n", "\n  "))
    except ListenError as err:
        _stop(str(err))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_emulate(config, sock))


@app.command(help=_CHECK_HELP)
def check(
    config: Annotated[Path | None, typer.Option("--config", help="The TOML file.", metavar="FILE")] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Ask each model for a few tokens as well.")] = False,
    explain: Annotated[
        Path | None,
        typer.Option(
            "--explain", help="Only show where the request in this file would go.", metavar="REQUEST.json"
        ),
    ] = None,
    output: Annotated[Output, typer.Option("--format", help="How to print.")] = Output.TABLE,
) -> None:
    # Inside the function: it brings what draws tables, which `serve` does without.
    from kimi_gateway.checks.command import run_check
    from kimi_gateway.checks.explain import run_explain

    if config is not None and not config.is_file():
        _stop(f"--config: there is no file {config}")
    if explain is not None:
        if probe:
            _stop("--explain sends nothing, so --probe has no meaning beside it; leave one out")
        raise typer.Exit(run_explain(config, explain, process_environment(), output=output))
    raise typer.Exit(run_check(config, process_environment(), probe=probe, output=output))


@app.command("lint-tools", help=_LINT_HELP)
def lint_tools(
    file: Annotated[str, typer.Argument(help="The JSON file, or - for standard input.", metavar="FILE")],
    output: Annotated[Output, typer.Option("--format", help="How to print.")] = Output.TABLE,
) -> None:
    from kimi_gateway.lint import LintError, run_lint  # as above: tables

    try:
        code = run_lint(file, output)
    except LintError as err:
        _stop(str(err))
    raise typer.Exit(code)


async def _emulate(config: EmulatorConfig, sock: socket.socket) -> None:
    """Serves the emulator until a signal ends it."""
    signals = Signals()
    signals.install(asyncio.get_running_loop())
    listener = Listener(Emulator(config), sock, gives_holds=True)
    await listener.start()
    host, port = listener.address
    url = url_of(host, port)
    _say(
        f"Kimi emulator ({config.dialect}): synthetic text, no model\n  base URL  {url}/v1\n"
        f"  invoice   {url}/emulator/invoice\n  requests  {url}/emulator/requests"
    )
    await signals.stop.wait()
    await listener.close()


def _unpriced(settings: Settings) -> list[str]:
    """Which targets' requests will have no cost, said before anybody misses it in a report."""
    folder = settings.pricing.cards_dir
    try:
        cards = load_cards(Path(folder) if folder else None)
    except CardError:  # the start itself says what is wrong with the folder
        return []
    return unpriced_notes(settings.targets, cards, at_s=time.time())  # noqa: TID251  # the shell reads the clock


def _say_with(notes: Sequence[str], text: str) -> None:
    """Prints what a gateway says when it starts, with notes at its end."""
    _say("\n".join([text, *(f"  note      {note}" for note in notes)]))


def _say(text: str) -> None:
    """Prints on standard output; that nobody reads it is no reason to stop."""
    with suppress(OSError):
        typer.echo(text)


def _stop(reason: str) -> NoReturn:
    """Ends with 2 and the reason on standard error."""
    typer.echo(f"kimi-gateway: {reason}", err=True)
    raise typer.Exit(USAGE_ERROR)
