"""`kimi-gateway` and `python -m kimi_gateway`."""

import sys
from importlib.util import find_spec

INSTALL = "pip install 'kimi-gateway[server]'"


def main() -> None:
    """Runs the command. Without the server's libraries it exits with 2 and says how to install them."""
    package = _missing()
    if package:
        sys.stderr.write(f"kimi-gateway needs the package {package}, which is not installed: {INSTALL}\n")
        sys.exit(2)
    from kimi_gateway.cli import app

    app()


def _missing() -> str:
    """A package that the command needs and that is not installed, "" where all are.

    Nothing of the server is imported above: the base install (the SDK) has the script but not its libraries.
    """
    if find_spec("alembic") is None:  # it is loaded late, and seldom
        return "alembic"
    try:
        import kimi_gateway.cli  # noqa: F401
    except ModuleNotFoundError as err:
        package = (err.name or "").partition(".")[0]
        if package in ("kimi_gateway", "backends", "pricing", ""):
            raise
        return package
    return ""


if __name__ == "__main__":
    main()
