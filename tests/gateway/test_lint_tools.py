"""`kimi-gateway lint-tools`: what it finds in which files, how it says so, and its exit codes."""

import json
import os
import pty
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kimi_gateway.cli import app
from kimi_gateway.lint import LintError, lint
from support.processes import run_module
from support.shared import shared_path

SOUND = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOSE = {"type": "object", "properties": {"mode": {"enum": ["a"]}, "at": {"type": "string", "format": "date"}}}
LOOSE_PLACE = "function.parameters.properties.mode"


def tool(name: str, parameters: object = None) -> dict[str, Any]:
    function = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": function}


def run(value: object, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error for a file on standard input."""
    data = value if isinstance(value, str) else json.dumps(value)
    ended = CliRunner().invoke(app, ["lint-tools", *arguments, "-"], input=data)
    return ended.exit_code, ended.stdout, ended.stderr


def report(value: object) -> Any:
    """The JSON form."""
    code, out, _ = run(value, "--format", "json")
    made = json.loads(out)
    assert code == (0 if made["ok"] else 1)
    return made


def places(value: object) -> list[tuple[str, str, bool]]:
    return [(one["path"], one["rule"], one["repaired"]) for one in report(value)["findings"]]


# --- what a file may hold -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ([tool("get", LOOSE)], f"tools[0].{LOOSE_PLACE}"),
        ({"tools": [tool("get"), tool("put", LOOSE)]}, f"tools[1].{LOOSE_PLACE}"),
        (tool("get", LOOSE), f"tool.{LOOSE_PLACE}"),
        (
            {"model": "m", "messages": [{"role": "system", "tools": [tool("get", LOOSE)]}]},
            f"messages[0].tools[0].{LOOSE_PLACE}",
        ),
        (
            {
                "messages": [],
                "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": LOOSE}},
            },
            "response_format.json_schema.schema.properties.mode",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": LOOSE}},
            "json_schema.schema.properties.mode",
        ),
        ({"tools": [{"name": "get", "inputSchema": LOOSE}]}, "tools[0].inputSchema.properties.mode"),
        (
            {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "get", "inputSchema": LOOSE}]}},
            "result.tools[0].inputSchema.properties.mode",
        ),
        ([{"name": "get", "input_schema": LOOSE}], "tools[0].input_schema.properties.mode"),
        ([{"type": "function", "name": "get", "parameters": LOOSE}], "tools[0].parameters.properties.mode"),
        (LOOSE, "properties.mode"),
        ([SOUND, LOOSE], "[1].properties.mode"),
        (f"{json.dumps(SOUND)}\n\n{json.dumps(LOOSE)}\n", "[1].properties.mode"),
        (f"\ufeff{json.dumps(LOOSE)}", "properties.mode"),
    ],
)
def test_tools_and_schemas_are_found_in_every_form(value: object, place: str) -> None:
    assert places(value) == [(place, "no_type", True)]


@pytest.mark.parametrize("value", [[], {"tools": []}, [tool("get", SOUND)], SOUND, {"messages": []}])
def test_what_is_sound_exits_with_0(value: object) -> None:
    code, out, _ = run(value)
    assert code == 0
    assert out.endswith("nothing that Moonshot would refuse.\n")
    assert report(value)["ok"] is True


@pytest.mark.parametrize("suite", ["TestReferences", "TestEnforcerCases", "TestAnyOf", "TestBasicTypes"])
def test_nothing_is_found_in_schemas_that_moonshot_accepts(suite: str) -> None:
    path = shared_path(f"cases/mfjs/{suite}.jsonl")
    assert CliRunner().invoke(app, ["lint-tools", str(path)]).exit_code == 0


def test_nothing_is_found_in_any_suite() -> None:
    for path in shared_path("cases/mfjs").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        assert lint([json.loads(line) if isinstance(line, str) else line for line in lines]).findings == []


# --- findings -------------------------------------------------------------------------------------------------


def test_names_schemas_and_sizes_are_listed_tool_by_tool() -> None:
    tools = [
        tool("f", LOOSE),
        tool("get", {"type": "object", "description": "d" * 15_000}),
        tool("get", {"type": "object", "properties": {"x": {"$ref": "https://example.com/x.json"}}}),
        tool("$mine"),
        {"type": "function"},
    ]
    assert places(tools) == [
        ("tools[4]", "tool", False),
        ("tools[0].function.name", "name", False),
        (f"tools[0].{LOOSE_PLACE}", "no_type", True),
        ("tools[1].function.parameters", "size", False),
        ("tools[2].function.name", "duplicate", False),
        ("tools[2].function.parameters.properties.x", "ref", False),
        ("tools[3].function.name", "reserved", False),
    ]


def test_what_moves_with_a_repair_and_stays_wrong_is_not_called_repaired() -> None:
    stays = {"properties": {"x": {"$ref": "#/$defs/none"}}}
    assert places([tool("get", {"type": "object", "anyOf": [stays]})]) == [
        ("tools[0].function.parameters", "type_beside_union", True),
        ("tools[0].function.parameters.anyOf[0]", "no_type", True),
        ("tools[0].function.parameters.anyOf[0].properties.x", "ref", False),
    ]


def test_the_table_says_where_what_and_who_repairs_it() -> None:
    code, out, err = run([tool("f", LOOSE)])
    assert code == 1
    assert err == ""
    head, name, mode, note, summary = out.splitlines()
    assert head.split() == ["where", "what", "remedy", "the", "gateway"]
    assert name.startswith("tools[0].function.name  ")
    assert name.endswith("does not repair it")
    assert mode.startswith(f"tools[0].{LOOSE_PLACE}  values without a type")
    assert mode.endswith("repairs it")
    assert note == (
        "note: tools[0].function.parameters.properties.at.format: the model reads it, Moonshot does not enforce it"
    )
    assert summary == "1 tool: 2 findings, of which the gateway repairs 1."


def test_the_json_form_has_every_field() -> None:
    assert report([tool("get", LOOSE)]) == {
        "ok": False,
        "source": "-",
        "tools": 1,
        "schemas": 0,
        "findings": [
            {
                "path": f"tools[0].{LOOSE_PLACE}",
                "rule": "no_type",
                "what": "values without a type",
                "remedy": "add the type of the values",
                "repaired": True,
            }
        ],
        "notes": [
            {
                "path": "tools[0].function.parameters.properties.at.format",
                "what": "the model reads it, Moonshot does not enforce it",
            }
        ],
    }


def test_a_lone_schema_without_an_object_as_its_root_is_only_noted() -> None:
    made = report({"type": "string"})
    assert made["ok"]
    assert made["notes"] == [{"path": "(root)", "what": "the parameters of a tool need an object as their root"}]


def test_control_characters_of_a_file_do_not_reach_the_terminal() -> None:
    _, out, _ = run([tool("get\x1b[31m", {"type": "object", "properties": {"\x1b[2J": {}}})])
    assert "\x1b" not in out


# --- what cannot be read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "{", "tools", "[1,", '{"a":1}\n{"b"'])
def test_what_is_not_json_exits_with_2(value: str) -> None:
    code, out, err = run(value)
    assert (code, out) == (2, "")
    assert err.startswith("kimi-gateway: standard input is not JSON: ")


@pytest.mark.parametrize("value", [7, "null", [1, 2], '"text"'])
def test_json_without_tools_or_schemas_exits_with_2(value: object) -> None:
    code, _, err = run(value)
    assert code == 2
    assert "expected a list of tools, an object with tools, or a JSON Schema" in err
    with pytest.raises(LintError):
        lint(7)


def test_a_file_that_is_not_there_exits_with_2(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        ended = CliRunner().invoke(app, ["lint-tools", str(path)])
        assert ended.exit_code == 2
        assert f"kimi-gateway: {path}: " in ended.stderr


def test_a_file_is_read_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([tool("get", LOOSE)]))
    ended = CliRunner().invoke(app, ["lint-tools", "--format", "json", str(path)])
    assert ended.exit_code == 1
    assert json.loads(ended.stdout)["source"] == str(path)


# --- terminals ------------------------------------------------------------------------------------------------


def on_a_terminal(file: Path, **environ: str) -> str:
    """What the command writes to a terminal."""
    ours, theirs = pty.openpty()
    env = {"TERM": "xterm-256color", "COLUMNS": "120", **environ}
    words = ["lint-tools", str(file)]
    ended = run_module("kimi_gateway", *words, directory=file.parent, env=env, stdout=os.ttyname(theirs))
    os.close(theirs)
    assert ended.returncode == 1
    with open(ours, "rb", buffering=0) as terminal:
        return terminal.read(65_536).decode()


def test_colours_appear_on_terminals_only_and_not_where_they_are_unwanted(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([tool("get", LOOSE)]))
    assert "\x1b[32mrepairs it" in on_a_terminal(path)
    assert "\x1b[32m" not in on_a_terminal(path, NO_COLOR="1")
    assert "\x1b" not in CliRunner().invoke(app, ["lint-tools", str(path)]).stdout


def test_help_shows_examples_and_exit_codes() -> None:
    shown = CliRunner().invoke(app, ["lint-tools", "--help"]).output
    assert "Examples:" in shown
    assert "kimi-gateway lint-tools --format json request.json" in shown
    assert "Exit code 0" in shown
    assert "lint-tools" in CliRunner().invoke(app, ["--help"]).output
