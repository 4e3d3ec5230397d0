"""`import kimi_sdk` is quick and light: the server's libraries stay out, openai comes with the first call."""

import subprocess
import sys

import pytest

import kimi_sdk


def loaded(program: str) -> set[str]:
    """Top-level modules in memory after the program, in a process of its own."""
    code = f"import sys\n{program}\nprint(*sorted(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


SERVER = {
    "aiohttp",
    "alembic",
    "fastapi",
    "prometheus_client",
    "redis",
    "sqlalchemy",
    "starlette",
    "tiktoken",
    "typer",
    "uvicorn",
}


def test_importing_the_sdk_loads_no_server_library() -> None:
    modules = loaded("import kimi_sdk")

    assert not modules & SERVER
    assert not modules & {"openai", "httpx", "httpx2", "pydantic", "rich", "kimi_gateway"}


def test_the_first_call_loads_openai_and_still_no_server_library() -> None:
    program = (
        "from kimi_sdk import Chat, ConnectionFailed\n"
        "try:\n    Chat(base_url='http://127.0.0.1:1/v1').ask('hi')\n"
        "except ConnectionFailed:\n    pass"
    )

    modules = loaded(program)

    assert "openai" in modules
    assert not modules & (SERVER - {"aiohttp"})  # openai itself looks whether aiohttp is there
    assert "kimi_gateway" not in modules


def test_everything_public_is_listed_and_there() -> None:
    assert sorted(kimi_sdk.__all__) == kimi_sdk.__all__
    assert all(hasattr(kimi_sdk, name) for name in kimi_sdk.__all__)


@pytest.mark.parametrize(
    "name", [name for name in kimi_sdk.__all__ if name.endswith(("Failed", "Refused", "Input"))]
)
def test_errors_are_one_tree(name: str) -> None:
    assert issubclass(getattr(kimi_sdk, name), kimi_sdk.KimiError)
