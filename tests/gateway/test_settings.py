"""Settings: precedence, defaults, and mistakes that are all named at once with their remedy."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_gateway.settings import Flags, Settings, SettingsError, load, open_mode_problem
from kimi_gateway.settings.load import ENTRIES, SECTIONS, settings_of
from kimi_gateway.settings.mistakes import suggestion
from pricing.rates import Rates

VLLM = '[[targets]]\nname = "a"\ndialect = "vllm"\nbase_url = "http://127.0.0.1:1/v1"\n'
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(text: str) -> Path:
        path = tmp_path / "kimi-gateway.toml"
        path.write_text(text, "utf-8")
        return path

    return put


def mistakes(path: Path, environ: Mapping[str, str] | None = None, flags: Flags | None = None) -> list[str]:
    """The lines of what is wrong."""
    with pytest.raises(SettingsError) as caught:
        load(path, environ or {}, flags)
    return list(caught.value.mistakes)


def settings(path: Path, **environ: str) -> Settings:
    return load(path, environ)


def test_defaults_are_those_of_the_reference(write: Write) -> None:
    found = settings(write(""))
    assert (found.server.host, found.server.port, found.server.max_connections) == ("127.0.0.1", 8000, 10000)
    assert (found.server.drain_grace_s, found.server.drain_timeout_s) == (5.0, 300.0)
    assert (found.ledger.url, found.ledger.on_full) == ("sqlite:///kimi-ledger.db", "refuse")
    assert (found.timing.usage_grace_s, found.timing.progress_s) == (2.0, 5.0)
    assert found.targets == ()
    assert found.open_mode


def test_a_flag_wins_over_a_variable_and_that_over_the_file(write: Write) -> None:
    path = write('[server]\nport = 1000\nhost = "localhost"\n[ledger]\nurl = "sqlite:///file.db"\n')
    found = load(path, {"KIMI_LEDGER_URL": "sqlite:///variable.db"}, Flags(port=2000))
    assert (found.server.port, found.server.host) == (2000, "localhost")
    assert found.ledger.url == "sqlite:///variable.db"


def test_the_file_is_named_by_flag_then_variable_then_found_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, port in (("kimi-gateway.toml", 1), ("variable.toml", 2), ("flag.toml", 3)):
        Path(name).write_text(f"[server]\nport = {port}\n")
    variable = {"KIMI_GATEWAY_CONFIG": "variable.toml"}
    assert load(None, {}).server.port == 1
    assert load(None, variable).server.port == 2
    assert load(Path("flag.toml"), variable).server.port == 3


def test_a_named_file_that_is_absent_is_a_mistake_and_the_default_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(None, {}).source == ""
    assert "No such file" in mistakes(tmp_path / "absent.toml")[0]


def test_text_that_is_no_toml_is_said_with_its_place(write: Write) -> None:
    assert "not TOML" in mistakes(write("[server\n"))[0]
    assert "line 1" in mistakes(write("[server\n"))[0]


def test_a_slip_in_one_table_hides_no_mistake_of_another(write: Write) -> None:
    text = (
        "[server\nport = 1\n[ledger]\nurl = sqlite\n[retry]\nmax_retrys = 1\n"
        '[[targets]]\nname = "a"\ndialect = "vlm"\n[targets.models]\n"x" = "y"\n[[routes]]\nmodel = "x"\n'
        'targets = ["b"]\n'
    )
    assert mistakes(write(text)) == [
        "the file is not TOML: Expected ']' at the end of a table declaration (at line 1, column 8)",
        "the file is not TOML: Invalid value (at line 4, column 7); write text in quotes",
        'retry.max_retrys: is not a setting; did you mean "max_retries"?',
        'targets["a"].dialect: "vlm" is not a dialect; did you mean "vllm"?',
    ]  # that "b" is no target is not said: it may stand in a table that could not be read


def test_what_only_the_whole_shows_to_be_wrong_is_said_too(write: Write) -> None:
    (line,) = mistakes(write("[server]\nport = 1\n[server]\nport = 2\n"))
    assert line.startswith("the file is not TOML: Cannot declare ('server',) twice (at line 3")


def test_a_wrong_setting_hides_no_other_of_its_entry(write: Write) -> None:
    text = (
        '[pricing]\ncards_dir = "/nowhere"\n[[targets]]\nname = "a b"\ndialect = "vlm"\nbase_url = "htp://x"\n'
        'api_key_env = "UNSET"\nprices = { inptu = "1" }\nextra_body = { model = "m" }\n'
        '[[keys]]\nname = "k"\nmax_effort = "hihg"\nkey_env = "UNSET_TOO"\n'
    )
    assert [line.partition(": ")[0] for line in mistakes(write(text))] == [
        'targets["a b"].name',
        'targets["a b"].dialect',
        'targets["a b"].base_url',
        'targets["a b"].api_key_env',
        'targets["a b"].prices',
        'targets["a b"].extra_body.model',
        'keys["k"].max_effort',
        'keys["k"].key_env',
        "pricing.cards_dir",
    ]


def test_a_wrong_setting_is_not_blamed_for_what_hangs_on_it(write: Write) -> None:
    assert mistakes(write('[[targets]]\nname = "m"\ndialect = "moonshot"\napi_key_env = 3\n')) == [
        'targets["m"].api_key_env: must be text in quotes, not 3'
    ]
    assert mistakes(write('[[targets]]\nname = "m"\ndialect = "vllm"\nbase_url = 3\n')) == [
        'targets["m"].base_url: must be text in quotes, not 3'
    ]


def test_quotes_are_blamed_only_where_they_are_the_mistake(write: Write) -> None:
    assert mistakes(write('[server]\nport = "two"\n')) == ['server.port: must be a whole number, not "two"']


def test_all_mistakes_are_named_at_once(write: Write) -> None:
    path = write(
        "[servr]\n[server]\nprot = 1\nworkers = 0\n[ledger]\non_full = 'drop'\n"
        '[[targets]]\nname = "a"\ndialect = "vlm"\n[[keys]]\nname = "k"\n'
    )
    found = mistakes(path)
    assert len(found) == 6
    text = "\n".join(found)
    for part in ("servr", "server.prot", "server.workers", "ledger.on_full", 'targets["a"].dialect', 'keys["k"]'):
        assert part in text


def test_an_unknown_setting_is_refused_with_a_suggestion(write: Write) -> None:
    assert mistakes(write("[server]\nprot = 1\n")) == ['server.prot: is not a setting; did you mean "port"?']
    assert mistakes(write(VLLM + "idel_timeout_s = 1\n")) == [
        'targets["a"].idel_timeout_s: is not a setting; did you mean "idle_timeout_s"?'
    ]
    assert mistakes(write("[servers]\n")) == ['servers: is not a section; did you mean "server"?']


def test_without_a_near_name_the_known_ones_are_listed() -> None:
    assert suggestion("zzz", ["port", "host"]) == "; known here: host, port"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[server]\nport = "80"', 'server.port: must be a whole number, not "80"; write it without quotes'),
        ("[server]\nport = true", "server.port: must be a whole number, not true"),
        ("[server]\nport = 70000", "server.port: must be at most 65535, not 70000"),
        ("[server]\ndrain_grace_s = -1", "server.drain_grace_s: must be at least 0, not -1"),
        ("[ledger]\nmax_journal_bytes = 65536", "ledger.max_journal_bytes: must be at least 1048576, not 65536"),
        ("[server]\ndrain_grace_s = nan", "server.drain_grace_s: must be a number, not NaN"),
        ('[server]\nkeepalive = "ping"', 'server.keepalive: must be "comment", "chunk" or "off", not "ping"'),
        ("[ledger]\nfsync = 1", "ledger.fsync: must be true or false, not 1"),
        ("server = 3", "server: must be a table, not 3"),
        ("[[server]]\nport = 1", "server: is one table; write [server] with single brackets"),
        ("[targets]\nname = 'a'", "targets: is a list of tables; write [[targets]] with double brackets"),
        (VLLM + VLLM, 'targets["a"]: stands there twice; give each of [[targets]] its own name'),
        (f"[[keys]]\nkey_sha256 = '{'0' * 64}'", "keys[0].name: is missing; every entry needs it"),
    ],
)
def test_wrong_types_and_ranges_are_named_with_the_remedy(write: Write, text: str, line: str) -> None:
    assert mistakes(write(text)) == [line]


def test_a_mistake_in_a_flag_or_variable_names_it(write: Write) -> None:
    assert mistakes(write(""), flags=Flags(port=70000))[0].startswith("server.port (from --port): ")
    found = mistakes(write(""), {"KIMI_LEDGER_URL": "mysql://x/y"})
    assert found[0].startswith("ledger.url (from KIMI_LEDGER_URL): ")


def test_fractions_are_read_exactly(write: Write) -> None:
    prices = 'prices = { input = "0.001", output = 0.3, cache_read = 1 }\n'
    target = settings(write(VLLM + prices)).targets[0]
    assert target.prices == Rates(input=1, output=300, cache_read=1000)
    assert target.prices is not None
    assert target.prices.in_usd()["output"] == Decimal("0.3")


def test_a_price_that_is_no_whole_nano_dollar_is_refused(write: Write) -> None:
    found = mistakes(write(VLLM + 'prices = { input = "0.0001", output = "x", inptu = "1" }\n'))
    assert [line.partition(": ")[0] for line in found] == ['targets["a"].prices'] * 3
    assert "not a whole number of nano-dollars" in found[0]
    assert "'x' is not a price" in found[1]
    assert "did you mean 'input'" in found[2]


def test_open_mode_is_for_loopback_only(write: Write) -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        assert open_mode_problem(load(write(""), {}, Flags(host=host))) == ""
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        assert "add [[keys]]" in open_mode_problem(load(write(""), {}, Flags(host=host)))
    keyed = '[server]\nhost = "0.0.0.0"\n[[keys]]\nname = "k"\nkey_env = "K"\n'
    assert not settings(write(keyed), K="kg-secret-one").open_mode


@pytest.mark.parametrize("listen", ["9000", "127.0.0.1", "127.0.0.1:99999", "a b:1"])
def test_an_admin_address_needs_a_host_and_a_port(write: Write, listen: str) -> None:
    assert mistakes(write(f'[admin]\nlisten = "{listen}"\n'))[0].startswith("admin.listen: must be")


def test_an_unset_admin_variable_means_no_admin_access_and_stops_nothing(write: Write) -> None:
    path = write('[admin]\nlisten = "[::1]:9000"\nkey_env = "ADMIN"\n')
    assert settings(path).admin.key is None
    admin = settings(path, ADMIN="admin-secret").admin
    assert admin.listen == ("::1", 9000)
    assert admin.key is not None
    assert admin.key.reveal() == "admin-secret"


def test_the_example_ships_loads_and_has_the_defaults(tmp_path: Path) -> None:
    text = resources.files("kimi_gateway").joinpath("example.toml").read_text("utf-8")
    path = tmp_path / "example.toml"
    path.write_text(text)
    found = load(path, {"MOONSHOT_API_KEY": "sk-example"})
    bare = tmp_path / "bare.toml"
    bare.write_text("")
    for section in SECTIONS:
        if section != "admin":
            assert getattr(found, section) == getattr(load(bare, {}), section), section
    assert [target.name for target in found.targets] == ["moonshot", "vllm-a"]


def test_the_example_names_every_setting() -> None:
    text = resources.files("kimi_gateway").joinpath("example.toml").read_text("utf-8")
    for section, kind in [*SECTIONS.items(), *ENTRIES.items()]:
        for item in fields(kind):
            assert f"{item.name} = " in text, f"{section}.{item.name}"


def test_the_commented_part_of_the_example_loads_too(tmp_path: Path) -> None:
    text = resources.files("kimi_gateway").joinpath("example.toml").read_text("utf-8")
    head, _, keys = text.partition("# [[keys]]")
    uncommented = "\n".join(line.removeprefix("# ") for line in keys.splitlines())
    path = tmp_path / "example.toml"
    path.write_text(f"{head}[[keys]]\n{uncommented}")
    found = load(path, {"MOONSHOT_API_KEY": "sk-example", "TEAM_A_KEY": "kg-team-a"})
    assert [key.name for key in found.keys] == ["team-a"]


def test_every_setting_has_a_default_but_the_names() -> None:
    required = {
        f"{section}.{item.name}"
        for section, kind in [*SECTIONS.items(), *ENTRIES.items()]
        for item in fields(kind)
        if item.default is MISSING and item.default_factory is MISSING
    }
    assert required == {"targets.name", "targets.dialect", "routes.model", "keys.name"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.decimals(allow_nan=True),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from([*SECTIONS, *ENTRIES, "other"]),
        st.dictionaries(st.sampled_from(["host", "url", "name", "model", "x", "prices", "extra_body"]), JSON)
        | JSON,
        max_size=4,
    )
)
def test_no_document_ends_in_anything_but_settings_or_mistakes(document: dict[str, Any]) -> None:
    assert all(line and "\n" not in line for line in complaints(document))


def complaints(document: dict[str, Any]) -> tuple[str, ...]:
    try:
        settings_of(document, {}, Flags(), source="")
    except SettingsError as err:
        return err.mistakes
    return ()
