"""`kimi-gateway check` on this machine: settings, addresses, ledger, journal, rate cards, with real conditions."""

import sqlite3
from pathlib import Path

import pytest
from typing_extensions import override

from kimi_gateway.checks.local import look_at_books
from kimi_gateway.settings import load
from pricing.ledger.store import Store
from support.checked import KEY, PRICES, Deployment, Outcome, behind, check, listing, target
from support.exchange import Exchange
from support.processes import free_port
from support.scripted import Given, ScriptedUpstream, play


class Health(ScriptedUpstream):
    """A server with one answer to GET /health and to whatever else it is asked."""

    def __init__(self, answer: Given) -> None:
        super().__init__([])
        self._answer = answer

    @override
    async def _probe(self, exchange: Exchange) -> bool:
        await play(self._answer, exchange)
        return False


def check_beside_a_target(directory: Path, config: str, ledger: str) -> Outcome:
    """Checks with one target that is well, so that only what `config` and `ledger` say can be wrong."""
    with Deployment() as engine:
        return check(directory, config + target(engine.base_url, extra=PRICES), ledger=ledger)


# --- all well, and misuse -------------------------------------------------------------------------------------


def test_all_well_is_a_table_of_what_was_checked_and_0(tmp_path: Path) -> None:
    with Deployment() as engine:
        outcome = check(tmp_path, target(engine.base_url, extra=PRICES))
    assert outcome.code == 0, outcome.out
    assert outcome.lines[0].split() == ["checked", "where", "result"]
    for what in (
        "settings",
        "address",
        "ledger",
        "journal",
        "state",
        "rate cards",
        "target",
        "key",
        "model",
        "clock",
    ):
        assert outcome.result(what)
    assert "1 target, 1 route, 0 keys" in outcome.result("settings")
    assert "will be made at the start" in outcome.result("ledger")
    assert "memory://" in outcome.result("state")
    assert "window 262,144, priced by the target's own prices" in outcome.result("model")
    assert "not checked: they show in an answer; --probe asks for one" in outcome.result("engine flags")
    assert outcome.lines[-1] == "All that was checked is well."
    assert outcome.err == ""


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    with Deployment() as engine:
        check(tmp_path, target(engine.base_url))
        assert engine.requests == []
    assert [path.name for path in tmp_path.iterdir()] == ["check.toml"]


@pytest.mark.parametrize(
    "arguments", [["--config", "nothing.toml"], ["--format", "xml"], ["--nonsense"], ["--config"], ["extra"]]
)
def test_an_unusable_command_line_is_2(tmp_path: Path, arguments: list[str]) -> None:
    outcome = check(tmp_path, None, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err


# --- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("[server]\nprot = 1\n", 'server.prot: is not a setting; did you mean "port"?'),
        ("[serv]\n", 'serv: is not a section; did you mean "server"?'),
        (
            '[[targets]]\nname = "m"\ndialect = "moonshot"\napi_key_env = "UNSET_KEY"\n',
            'targets["m"].api_key_env: the variable UNSET_KEY is not set; set it to the key, or name another',
        ),
        (
            '[[targets]]\nname = "m"\ndialect = "vllm"\nbase_url = "http://h:8000/v1/chat/completions"\n',
            'targets["m"].base_url: must stop before /chat/completions; it ends in /v1 at most services',
        ),
        (
            '[state]\nurl = "valkey://127.0.0.1:1/0"\n',
            "state.url: write redis:// for valkey://: the protocol is the same",
        ),
        ('[pricing]\ncards_dir = "no-such-folder"\n', "pricing.cards_dir: "),
        ("", "targets: no target is configured; set one of MOONSHOT_API_KEY, "),
    ],
    ids=["setting", "section", "variable", "base_url", "state", "cards", "no target"],
)
def test_each_mistake_in_the_settings_is_one_line(tmp_path: Path, config: str, line: str) -> None:
    if config.startswith("[pricing]"):
        outcome = check_beside_a_target(tmp_path, config, "")
    else:
        outcome = check(tmp_path, config)
    assert outcome.line.startswith(line)


def test_a_file_that_is_not_toml_is_one_line_with_its_name(tmp_path: Path) -> None:
    assert check(tmp_path, "port = = 1\n").line.startswith("check.toml: the file is not TOML: ")


def test_several_mistakes_are_a_line_each_in_json_too(tmp_path: Path) -> None:
    config = "[server]\nprot = 1\nhost = 3\n"
    outcome = check(tmp_path, config)
    assert len(outcome.mistakes) == 2
    as_json = check(tmp_path, config, "--format", "json")
    assert as_json.code == 1
    assert as_json.json["ok"] is False
    unknown = {"where": "server.prot", "what": "is not a setting", "remedy": 'did you mean "port"?'}
    assert unknown in as_json.json["mistakes"]


# --- addresses ------------------------------------------------------------------------------------------------


def test_a_taken_port_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    with Deployment() as other:
        outcome = check_beside_a_target(tmp_path, f"[server]\nport = {other.port}\n", "")
    assert outcome.line.startswith(f"server.port: port {other.port} on 127.0.0.1 is taken by another process; ")
    assert "another port" in outcome.line


def test_beside_a_running_gateway_the_taken_port_is_a_note_and_the_table_is_whole(tmp_path: Path) -> None:
    health = {"status": 200, "json": {"status": "ok", "service": "kimi-gateway", "version": "9.8.7"}}
    with Health(health) as running:
        outcome = check_beside_a_target(tmp_path, f"[server]\nport = {running.port}\n", "")
    assert outcome.code == 0, outcome.out
    assert outcome.result("address").endswith("a gateway runs there already (version 9.8.7)")
    assert "note: server.port: a second gateway beside the one that runs needs another port" in outcome.lines
    assert outcome.result("ledger")
    assert outcome.result("target")


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 200, "json": {"status": "ok", "service": "kimi-emulator"}},
        {"status": 200, "json": ["kimi-gateway"]},
        {"status": 200, "text": "kimi-gateway"},
        {"then": "reset"},
    ],
)
def test_another_program_on_the_port_is_a_mistake_and_the_table_is_whole(tmp_path: Path, answer: Given) -> None:
    with Health(answer) as other:
        outcome = check_beside_a_target(tmp_path, f"[server]\nport = {other.port}\n", "")
    assert outcome.line.startswith("server.port: ")
    assert outcome.result("address").endswith("wrong, see below")
    assert outcome.result("ledger")
    assert outcome.result("target")


def test_the_table_fits_a_page_of_80_columns(tmp_path: Path) -> None:
    with Deployment(models=behind(KEY, listing("/data/weights/of/a/model/with-a-rather-long-name"))) as engine:
        outcome = check(tmp_path, target(engine.base_url), env={"COLUMNS": "80"})
    rows = outcome.lines[: outcome.lines.index("")]
    assert len(rows) > 12  # some are in two lines
    assert max(map(len, rows)) <= 80
    assert rows == [row.rstrip() for row in rows]


def test_a_taken_port_for_metrics_is_one_line_with_its_own_remedy(tmp_path: Path) -> None:
    with Deployment() as other:
        config = f'[server]\nport = 0\n[admin]\nlisten = "127.0.0.1:{other.port}"\n'
        outcome = check_beside_a_target(tmp_path, config, "")
    assert outcome.line == (
        f"admin.listen: port {other.port} on 127.0.0.1 is taken by another process; "
        "set admin.listen to another address"
    )


def test_metrics_on_the_gateways_own_port_are_one_line(tmp_path: Path) -> None:
    port = free_port()
    config = f'[server]\nport = {port}\n[admin]\nlisten = "127.0.0.1:{port}"\n'
    outcome = check_beside_a_target(tmp_path, config, "")
    assert outcome.line.startswith(f"admin.listen: 127.0.0.1:{port} is the gateway's own address; ")


def test_a_free_port_is_let_go_again(tmp_path: Path) -> None:
    port = free_port()
    config = f'[server]\nport = {port}\n[admin]\nlisten = "127.0.0.1:0"\n'
    for _ in range(2):
        outcome = check_beside_a_target(tmp_path, config, "")
        assert outcome.code == 0
        assert f"127.0.0.1:{port}" in outcome.result("address")
        assert "a free port is picked" in outcome.result("metrics")


# --- the books ------------------------------------------------------------------------------------------------


def ledger(url: str = "sqlite:///kimi-ledger.db", journal: str = ".kimi-journal", max_bytes: int = 1 << 20) -> str:
    return f'[ledger]\nurl = "{url}"\njournal_dir = "{journal}"\nmax_journal_bytes = {max_bytes}\n'


def test_a_ledger_whose_directory_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = check_beside_a_target(tmp_path, "", ledger(url="sqlite:///file/below/ledger.db"))
    assert outcome.line.startswith(f"ledger.url: {tmp_path}/file is a file, so ")


def test_a_ledger_that_is_a_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    outcome = check_beside_a_target(tmp_path, "", ledger(url="sqlite:///ledger"))
    assert outcome.line.startswith(f"ledger.url: {tmp_path}/ledger is a directory; ")


def test_a_ledger_that_is_no_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("these are my notes, not a database, and they shall stay\n" * 40)
    outcome = check_beside_a_target(tmp_path, "", ledger(url="sqlite:///ledger.db"))
    assert outcome.line.startswith(f"ledger.url: the ledger sqlite:///{tmp_path}/ledger.db refused: ")
    assert (tmp_path / "ledger.db").read_text().startswith("these are my notes")


def test_a_ledger_of_a_newer_version_is_one_line(tmp_path: Path) -> None:
    Store(f"sqlite:///{tmp_path}/ledger.db", create=True).close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        (name,) = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE '%version%'").fetchone()
        connection.execute(f"UPDATE {name} SET version_num = '9999'")
    connection.close()
    outcome = check_beside_a_target(tmp_path, "", ledger(url="sqlite:///ledger.db"))
    assert "has schema 9999, this version knows up to" in outcome.line


def test_a_ledger_that_is_there_is_written_to_and_not_changed(tmp_path: Path) -> None:
    Store(f"sqlite:///{tmp_path}/ledger.db", create=True).close()
    outcome = check_beside_a_target(tmp_path, "", ledger(url="sqlite:///ledger.db"))
    assert outcome.code == 0
    assert outcome.result("ledger").endswith("writable")


def test_an_empty_file_becomes_a_ledger_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    outcome = check_beside_a_target(tmp_path, "", ledger(url="sqlite:///ledger.db"))
    assert outcome.code == 0
    assert outcome.result("ledger").endswith("will be made at the start")


def test_a_journal_whose_place_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = check_beside_a_target(tmp_path, "", ledger(journal="file"))
    assert outcome.line.startswith(
        f"ledger.journal_dir: {tmp_path}/file is a file, so file cannot be a directory; "
    )


def test_a_place_where_nobody_may_write_is_one_line(tmp_path: Path) -> None:
    # /proc takes no files from anybody, root included.
    outcome = check_beside_a_target(tmp_path, "", ledger(journal="/proc/kimi-journal"))
    assert outcome.line.startswith("ledger.journal_dir: /proc cannot be written (")


def test_a_disk_that_cannot_hold_the_journal_is_one_line(tmp_path: Path) -> None:
    outcome = check_beside_a_target(tmp_path, "", ledger(max_bytes=1 << 52))
    assert outcome.line.startswith("ledger.journal_dir: the disk of .kimi-journal has ")
    assert "make room on it, or lower ledger.max_journal_bytes" in outcome.line


def test_a_ledger_that_another_writer_holds_is_a_mistake_after_bounded_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    Store(url, create=True).close()
    holder = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    environ = {"KIMI_LEDGER_URL": url}
    (found,) = [
        mistake
        for mistake in look_at_books(load(None, environ), busy_timeout_ms=50).mistakes
        if mistake.where == "ledger.url"
    ]
    holder.close()
    assert "does not answer: database is locked" in found.what
