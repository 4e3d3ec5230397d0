"""What the product has, read from its code: commands, settings, variables, headers, error codes, metrics, layers.

The documentation is compared with these. Nothing here is a list kept by hand, so a new command or code that is not
documented is found by itself.
"""

import ast
import configparser
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import typer

from backends.catalog import DIALECTS
from kimi_gateway.cli import app as gateway_app
from kimi_gateway.metrics import Metrics
from kimi_gateway.settings.load import ENTRIES, SECTIONS
from pricing.cli import app as pricing_app
from support.pages import ROOT

PACKAGES = ("kimi_gateway", "kimi_sdk", "backends", "pricing")

_HELP = {"--help", "-h"}
_VARIABLE = re.compile(r"(?:KIMI|MOONSHOT|OPENROUTER|VLLM|SGLANG|XDG)_[A-Z0-9_]+")
_OUR_HEADER = re.compile(r"x-kimi-[a-z-]+")
_ANY_HEADER = re.compile(r"x-[a-z-]+|retry-after")


def commands() -> dict[str, set[str]]:
    """The options and arguments of every command by its full name, those of the two programs themselves among
    them; arguments are in capitals, help options are left out."""
    found: dict[str, set[str]] = {}
    for name, app in (("kimi-gateway", gateway_app), ("kimi-pricing", pricing_app)):
        _add_command(name, typer.main.get_command(app), found)
    return found


def _add_command(name: str, command: Any, found: dict[str, set[str]]) -> None:
    given: set[str] = set()
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            given.add(str(parameter.name).upper())
        else:
            given.update((*parameter.opts, *parameter.secondary_opts))
    found[name] = given - _HELP
    for part, inner in getattr(command, "commands", {}).items():
        _add_command(f"{name} {part}", inner, found)


def settings() -> set[str]:
    """Every setting of the configuration as `section.name`."""
    tables: dict[str, Any] = {**SECTIONS, **ENTRIES}
    return {f"{section}.{item.name}" for section, table in tables.items() for item in fields(table)}


@cache
def _trees() -> Mapping[Path, ast.Module]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT): ast.parse(path.read_text("utf-8")) for path in paths}


def _nodes(*packages: str) -> Iterator[ast.AST]:
    for path, tree in _trees().items():
        if not packages or str(path).startswith(packages):
            yield from ast.walk(tree)


def _texts(*packages: str) -> Iterator[str]:
    """Every string of the code, bytes among them."""
    for node in _nodes(*packages):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            yield node.value if isinstance(node.value, str) else node.value.decode("latin-1")


def variables() -> set[str]:
    """The environment variables whose names stand in the code."""
    return {text for text in _texts() if _VARIABLE.fullmatch(text)}


def our_headers() -> set[str]:
    """The x-kimi headers that the code reads or sends."""
    return {text for text in _texts() if _OUR_HEADER.fullmatch(text)}


def gateway_headers() -> set[str]:
    """All x- headers that the gateway itself reads or sends, to clients and upstreams."""
    return {text for text in _texts("kimi_gateway") if _ANY_HEADER.fullmatch(text) and not text.endswith("-")}


def error_codes() -> set[str]:
    """Every value that the gateway gives to a parameter called `code`, by name or by position."""
    return _values_of("code") - set(DIALECTS)


def error_types() -> set[str]:
    """Every value of an error's `type`: given by name, or the class's own."""
    own = {
        node.value.value
        for node in _nodes("kimi_gateway/errors.py")
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str) and node.targets[0].__class__ is ast.Name
    }
    return own | {text for text in _values_of("type") if "/" not in text and "." not in text}


def _values_of(parameter: str) -> set[str]:
    positions = {
        node.name: names.index(parameter) - ("self" in names)
        for node in _nodes("kimi_gateway")
        if isinstance(node, ast.FunctionDef)
        if parameter in (names := [argument.arg for argument in node.args.args])
    }
    found: set[str] = set()
    for node in _nodes("kimi_gateway"):
        if not isinstance(node, ast.Call):
            continue
        given = [keyword.value for keyword in node.keywords if keyword.arg == parameter]
        position = positions.get(_called(node))
        if position is not None and position < len(node.args):
            given.append(node.args[position])
        found.update(text for value in given for text in _constants(value))
    return found


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _constants(value: ast.expr) -> Iterator[str]:
    """The strings an argument can be: a constant, or the last resort of `given or "constant"`."""
    for node in [value, *(value.values if isinstance(value, ast.BoolOp) else [])]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def paths() -> set[str]:
    """The paths that the gateway serves."""
    found = {
        node.args[0].value
        for node in _nodes("kimi_gateway/routes")
        if isinstance(node, ast.Call) and _called(node) == "Path" and isinstance(node.args[0], ast.Constant)
    }
    chat = {text for text in _texts("kimi_gateway/app.py") if re.fullmatch(r"/v1/[a-z/-]+", text)}
    return {re.sub(r":\w+}", "}", str(path)) for path in found | chat}


def metric_names() -> set[str]:
    """The names of all metrics, as /metrics shows their types."""
    shown = Metrics().render().decode()
    return set(re.findall(r"^# TYPE (\w+) ", shown, re.MULTILINE))


def layers() -> dict[str, list[frozenset[str]]]:
    """The layers of every layers contract by what it holds, `packages` for the packages themselves; the highest
    layer first."""
    parser = configparser.ConfigParser()
    parser.read_string((ROOT / ".importlinter").read_text("utf-8"))
    found: dict[str, list[frozenset[str]]] = {}
    for name in parser.sections():
        contract = parser[name]
        if contract.get("type") == "layers":
            found[contract.get("containers", "packages").strip()] = split_layers(contract["layers"])
    return found


def split_layers(text: str) -> list[frozenset[str]]:
    """The layers of a text with one layer a line, bars between siblings, and remarks behind a #."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [frozenset(name.strip() for name in line.split("|")) for line in lines if line]
