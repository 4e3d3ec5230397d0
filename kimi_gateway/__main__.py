"""`kimi-gateway` and `python -m kimi_gateway`."""

import sys

INSTALL = "pip install 'kimi-gateway[server]'"


def main() -> None:
    """Runs the command. Without the server's libraries it exits with 2 and says how to install them."""
    try:
        # Inside the function, because the base install (the SDK) has the script but not its libraries.
        from kimi_gateway.cli import app
    except ModuleNotFoundError as err:
        package = (err.name or "").partition(".")[0]
        if package in ("kimi_gateway", "backends", "pricing", ""):
            raise
        sys.stderr.write(f"kimi-gateway needs the package {package}, which is not installed: {INSTALL}\n")
        sys.exit(2)
    app()


if __name__ == "__main__":
    main()
