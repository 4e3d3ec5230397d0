"""`kimi-pricing tokenizer`: fetches Kimi's vocabulary and says whether counts are exact.

Exit codes: 0 well, 1 the download failed, 2 wrong use, or a vocabulary that is not the right one.
"""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from pricing.render import complain, console, print_json, table, text
from pricing.tokens import KIMI_K3
from pricing.vocabulary import VARIABLE, VocabularyStatus, cache_file, find_place, vocabulary_status

_FAILED: Final = 1
_UNBROKEN: Final = 10_000
_USAGE: Final = 2
_COUNTING: Final = {"ready": "exact", "missing": "estimate", "wrong": "refused"}

tokenizer_app = typer.Typer(
    name="tokenizer",
    help="Kimi's vocabulary, for exact token counts. Without it counts are estimates, and say so.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Form(StrEnum):
    """How to print."""

    table = "table"
    json = "json"


Output = Annotated[Form, typer.Option("--format", help="How to print.")]


@tokenizer_app.command(
    epilog="""Examples:

\b
  kimi-pricing tokenizer fetch
  kimi-pricing tokenizer fetch --to /srv/kimi/tiktoken.model
  HTTPS_PROXY=http://proxy:3128 kimi-pricing tokenizer fetch""",
)
def fetch(
    to: Annotated[
        Path | None, typer.Option(help=f"File to write instead of the cache's; {VARIABLE} must then name it.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Another place to get it from; what comes must be the same file.")
    ] = None,
    output: Output = Form.table,
) -> None:
    """Download the vocabulary (2.8 MB) from Moonshot's public model repository, at a pinned revision.

    The file must have the pinned sha256. One that is there already is kept. Proxies are those of HTTPS_PROXY,
    ALL_PROXY and NO_PROXY.
    """
    # Inside the function: the HTTP client takes longer to import than most commands take to run.
    from pricing.fetch import URL, FetchError, fetch_vocabulary

    path = to or cache_file(os.environ)  # noqa: TID251  # a command's own reading of it
    if path is None:
        _refuse("neither XDG_CACHE_HOME nor HOME is set, so there is no cache; name a file with --to")
    try:
        with _progress() as progress:
            task = progress.add_task(KIMI_K3.name, total=KIMI_K3.size_bytes)
            fetched = fetch_vocabulary(
                path,
                url=url or URL,
                on_progress=lambda received, expected: progress.update(task, completed=received, total=expected),
            )
    except FetchError as err:
        complain(str(err))
        raise typer.Exit(_FAILED) from err
    found = {"path": str(fetched.path), "downloaded": fetched.downloaded, "sha256": KIMI_K3.sha256}
    if output is Form.json:
        print_json(found)
        return
    done = "downloaded" if fetched.downloaded else "already there"
    console().print(text(f"{done}: {fetched.path} ({KIMI_K3.size_bytes:,} bytes, sha256 {KIMI_K3.sha256})"))
    place = find_place(os.environ)  # noqa: TID251
    if place is None or place.path.absolute() != fetched.path.absolute():
        console().print(text(f"set {VARIABLE}={fetched.path} to use it"))


@tokenizer_app.command(
    epilog="""Examples:

\b
  kimi-pricing tokenizer status
  kimi-pricing tokenizer status --format json""",
)
def status(output: Output = Form.table) -> None:
    """Whether there is a vocabulary, where it is looked for, and how tokens are therefore counted.

    Exit 2 where there is a file but not the right one; having none is no mistake.
    """
    found = vocabulary_status(os.environ)  # noqa: TID251  # a command's own reading of it
    values = _status_object(found)
    if output is Form.json:
        print_json(values)
    else:
        grid = table(
            [("", False), ("", False)], width=_UNBROKEN
        )  # a path or a digest in two lines cannot be copied
        grid.show_header = False
        for name, value in values.items():
            grid.add_row(text(name.replace("_", " "), "dim"), text(value))
        console().print(grid)
    if found.state == "wrong":
        raise typer.Exit(_USAGE)


def _status_object(found: VocabularyStatus) -> dict[str, object]:
    return {
        "state": found.state,
        "counting": _COUNTING[found.state],
        "path": None if found.place is None else str(found.place.path),
        "source": None if found.place is None else found.place.source,
        "expected_size_bytes": KIMI_K3.size_bytes,
        "expected_sha256": KIMI_K3.sha256,
        "problem": found.problem or None,
    }


def _progress() -> Progress:
    """A bar on a terminal's standard error, nothing elsewhere."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        console=Console(file=sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _refuse(message: str) -> NoReturn:
    complain(message)
    raise typer.Exit(_USAGE)
