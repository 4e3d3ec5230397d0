"""Entry of `kimi-pricing` and `python -m pricing`: says what to install where the server's parts are missing."""

import sys
from typing import Final

_INSTALL: Final = "kimi-pricing needs the server's parts; install them with: pip install 'kimi-gateway[server]'\n"
_EXTRA: Final = ("alembic", "sqlalchemy", "tiktoken", "typer")

try:
    from pricing.cli import app
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in _EXTRA:
        raise
    sys.stderr.write(_INSTALL)
    raise SystemExit(2) from None


def main() -> None:
    """Runs the command; exits with its code."""
    app(prog_name="kimi-pricing")


if __name__ == "__main__":
    main()
