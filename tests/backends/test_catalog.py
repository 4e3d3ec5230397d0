"""A dialect is registered by being a file."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import backends.dialects
from backends.catalog import DIALECTS, CatalogError, foreign_fields, load_dialects

FOLDER = Path(backends.dialects.__path__[0])


@pytest.fixture
def package(tmp_path: Path) -> Iterator[tuple[Path, ModuleType]]:
    """An empty package of dialects and its folder."""
    folder = tmp_path / "some_dialects"
    folder.mkdir()
    (folder / "__init__.py").touch()
    sys.path.insert(0, str(tmp_path))
    yield folder, import_module("some_dialects")
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "some_dialects"]:
        del sys.modules[name]


def test_every_file_of_the_folder_is_a_dialect_of_its_name() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert set(DIALECTS) == files
    assert all(dialect.name == name for name, dialect in DIALECTS.items())
    assert {"moonshot", "openrouter", "vllm", "sglang"} <= files


def test_a_new_file_is_found(package: tuple[Path, ModuleType]) -> None:
    folder, module = package
    (folder / "acme.py").write_text("from backends.dialect import Dialect\nDIALECT = Dialect(name='acme')\n")
    assert list(load_dialects(module)) == ["acme"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "acme must define DIALECT"),
        ("DIALECT = 'acme'", "acme must define DIALECT"),
        ("from backends.dialect import Dialect\nDIALECT = Dialect(name='akme')", "'akme'; it must be 'acme'"),
    ],
)
def test_a_file_that_is_no_dialect_of_its_name_is_refused(
    package: tuple[Path, ModuleType], text: str, complaint: str
) -> None:
    folder, module = package
    (folder / "acme.py").write_text(text)
    with pytest.raises(CatalogError, match=complaint):
        load_dialects(module)


def test_the_catalog_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        DIALECTS["acme"] = DIALECTS["vllm"]  # type: ignore[index]


def test_foreign_fields_are_those_that_only_others_own() -> None:
    assert {"provider", "session_id", "top_k", "chat_template_kwargs", "rid"} <= foreign_fields(
        DIALECTS["moonshot"]
    )
    assert "prompt_cache_options" not in foreign_fields(DIALECTS["moonshot"])
    for dialect in DIALECTS.values():
        assert not foreign_fields(dialect) & dialect.own_fields


@pytest.mark.parametrize("name", ["vllm", "sglang", "openrouter"])
def test_a_field_that_several_own_is_foreign_to_none_of_them(name: str) -> None:
    assert not foreign_fields(DIALECTS[name]) & {"top_k", "min_p", "repetition_penalty", "session_id"}


def test_no_dialect_owns_what_every_openai_server_knows() -> None:
    known = {
        "model",
        "messages",
        "stream",
        "tools",
        "tool_choice",
        "temperature",
        "top_p",
        "stop",
        "seed",
        "n",
        "user",
    }
    assert not any(known & dialect.own_fields for dialect in DIALECTS.values())


def test_hosted_dialects_name_their_service_and_key_and_engines_need_neither() -> None:
    for dialect in DIALECTS.values():
        assert bool(dialect.base_url) == bool(dialect.key_variable) == dialect.key_required == bool(dialect.seller)
