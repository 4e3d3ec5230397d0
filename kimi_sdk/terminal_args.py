"""The arguments of `kimi-chat`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

_DESCRIPTION = """Talk with Kimi. Without a PROMPT on a terminal it is a conversation; with one,
or with text on standard input, it answers once and ends."""

_EPILOG = """environment:
  KIMI_BASE_URL   the gateway's address (default http://127.0.0.1:8000/v1)
  KIMI_API_KEY    the key that is sent; without one none is
  NO_COLOR        set: no colours

exit codes: 0 answered, 1 the call failed, 2 wrong usage or settings, 130 Ctrl-C

  kimi-chat "How far is the Moon?"
  git diff | kimi-chat "Review this." --effort high --max-cost 0.10
  kimi-chat "What is on @photo.png?"
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; None where it says nothing."""

    prompt: str
    system: str | None
    model: str | None
    effort: str | None
    tier: str | None
    max_cost: str | None
    max_completion_tokens: int | None
    base_url: str | None
    load: str | None
    shows_thinking: bool


def read_options(arguments: Sequence[str] | None = None) -> Options:
    """The options; wrong ones end the program with 2, `--help` and `--version` with 0."""
    held = _parser().parse_args(arguments)
    return Options(
        prompt=" ".join(held.prompt),
        system=held.system,
        model=held.model,
        effort=held.effort,
        tier=held.tier,
        max_cost=held.max_cost,
        max_completion_tokens=held.max_completion_tokens,
        base_url=held.base_url,
        load=held.load,
        shows_thinking=not held.no_thinking,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kimi-chat",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("prompt", nargs="*", metavar="PROMPT", help="asked once; text on standard input is put after it")
    add("--system", metavar="TEXT", help="the system message")
    add("--model", metavar="NAME", help="default kimi-k3.1-pro")
    add("--effort", choices=("low", "high", "max"), help="how much it thinks; default: its own")
    add("--tier", choices=("standard", "highspeed"), help="how fast it answers, and at what price")
    add("--max-cost", metavar="USD", help="refuse what could cost more, all together")
    add("--max-completion-tokens", metavar="N", type=int, help="for thinking and answer together")
    add("--base-url", metavar="URL", help="where to ask")
    add("--load", metavar="FILE", help="go on with a conversation that /save has written")
    add("--no-thinking", action="store_true", help="do not show the thinking")
    add("--version", action="version", version=f"kimi-chat {_version()}")
    return parser


def _version() -> str:
    try:
        return version("kimi-gateway")
    except PackageNotFoundError:
        return "unknown"
