"""Entry of `kimi-pricing` and `python -m pricing`: says what to install where the server's parts are missing."""

import sys
from importlib.util import find_spec
from typing import Final

_INSTALL: Final = "kimi-pricing needs the server's parts; install them with: pip install 'kimi-gateway[server]'\n"
_EXTRA: Final = ("alembic", "sqlalchemy", "tiktoken", "typer")

if not all(map(find_spec, _EXTRA)):  # not all of them are loaded at every start
    sys.stderr.write(_INSTALL)
    raise SystemExit(2)

from pricing.cli import app  # noqa: E402  # not before its libraries are known to be there


def main() -> None:
    """Runs the command; exits with its code."""
    app(prog_name="kimi-pricing")


if __name__ == "__main__":
    main()
