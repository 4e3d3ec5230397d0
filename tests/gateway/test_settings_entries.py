"""Targets, routes and keys: secrets by variable or file, dialects complete targets, routes tie names together."""

import hashlib
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from backends.catalog import DIALECTS
from kimi_gateway.core.secret import Secret
from kimi_gateway.settings import Settings, SettingsError, load

Write = Callable[[str], Path]
VLLM = '[[targets]]\nname = "a"\ndialect = "vllm"\nbase_url = "http://127.0.0.1:1/v1"\n'
MOONSHOT = '[[targets]]\nname = "m"\ndialect = "moonshot"\n'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(text: str) -> Path:
        path = tmp_path / "kimi-gateway.toml"
        path.write_text(text, "utf-8")
        return path

    return put


def mistakes(path: Path, **environ: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(path, environ)
    return list(caught.value.mistakes)


def settings(path: Path, **environ: str) -> Settings:
    return load(path, environ)


def test_a_target_takes_what_it_leaves_out_from_its_dialect(write: Write) -> None:
    target = settings(write(MOONSHOT), MOONSHOT_API_KEY="sk-upstream").targets[0]
    assert target.base_url == DIALECTS["moonshot"].base_url
    assert dict(target.models) == dict(DIALECTS["moonshot"].models)
    assert target.account == "m"
    assert target.host == "api.moonshot.ai"
    assert target.api_key is not None
    assert target.api_key.reveal() == "sk-upstream"
    assert target.window == 1_048_576


def test_an_unset_key_variable_stops_the_start(write: Write) -> None:
    line = 'targets["m"].api_key_env: the variable MOONSHOT_API_KEY is not set; set it to the key, or name another'
    assert mistakes(write(MOONSHOT)) == [line]
    assert mistakes(write(MOONSHOT), MOONSHOT_API_KEY="") == [line]
    assert "OTHER is not set" in mistakes(write(VLLM + 'api_key_env = "OTHER"\n'))[0]


def test_a_usual_key_never_travels_unasked_to_another_host(write: Write) -> None:
    path = write(MOONSHOT + 'base_url = "http://127.0.0.1:9/v1"\n')
    assert settings(path, MOONSHOT_API_KEY="sk-upstream").targets[0].api_key is None


def test_a_key_file_is_read_without_its_newline(write: Write, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sk-from-file\n")
    target = settings(write(VLLM + f'api_key_file = "{secret}"\n')).targets[0]
    assert target.api_key == Secret("sk-from-file")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"a b\n", "one printable word"),
        (b"one\ntwo\n", "one printable word"),
        (b"\xff", "not text"),
    ],
)
def test_a_key_file_that_holds_no_key_is_refused_without_showing_it(
    write: Write, tmp_path: Path, content: bytes, words: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(content)
    found = mistakes(write(VLLM + f'api_key_file = "{secret}"\n'))
    assert len(found) == 1
    assert words in found[0]
    assert "two" not in found[0]


def test_a_missing_key_file_is_named(write: Write) -> None:
    assert "cannot be read (No such file" in mistakes(write(VLLM + 'api_key_file = "/nowhere/key"\n'))[0]


def test_a_target_takes_one_source_of_its_key(write: Write) -> None:
    found = mistakes(write(VLLM + 'api_key_file = "f"\napi_key_env = "E"\n'))
    assert found == ['targets["a"]: has both api_key_env and api_key_file; keep one']


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://h/v1", "must be an http"),
        ("h:8000/v1", "must be an http"),
        ("http:///v1", "must be an http"),
        ("http://h:x/v1", "is not a URL"),
        ("http://user:pass-word@h/v1", "must not hold a user"),
        ("http://h/v1?key=1", "no ? or # part"),
        ("http://h/v1/chat/completions", "stop before /chat/completions"),
    ],
)
def test_a_base_url_that_cannot_work_is_refused_without_repeating_it(write: Write, url: str, words: str) -> None:
    found = mistakes(write(f'[[targets]]\nname = "a"\ndialect = "vllm"\nbase_url = "{url}"\n'))
    assert len(found) == 1
    assert words in found[0]
    assert "pass-word" not in found[0]


def test_an_engine_needs_a_base_url(write: Write) -> None:
    assert "is missing" in mistakes(write('[[targets]]\nname = "a"\ndialect = "vllm"\n'))[0]


def test_an_unknown_dialect_is_refused_with_a_suggestion(write: Write) -> None:
    found = mistakes(write('[[targets]]\nname = "a"\ndialect = "vlm"\n'))
    assert found == ['targets["a"].dialect: "vlm" is not a dialect; did you mean "vllm"?']


def test_extra_body_may_not_replace_what_the_gateway_sets(write: Write) -> None:
    found = mistakes(write(VLLM + "extra_body = { model = 'x', top_k = 3 }\n"))
    assert found == ['targets["a"].extra_body.model: is set by the gateway for each request; take it out']
    assert settings(write(VLLM + "extra_body = { top_k = 3 }\n")).targets[0].extra_body == {"top_k": 3}


VARIABLES = {
    "MOONSHOT_API_KEY": "sk-upstream",
    "OPENROUTER_API_KEY": "sk-or-upstream",
    "VLLM_BASE_URL": "http://h1:8000/v1/",
    "SGLANG_BASE_URL": "http://h2:30000/v1",
}


def test_variables_each_add_a_target_named_like_its_dialect(write: Write) -> None:
    found = {target.name: target for target in load(write(""), VARIABLES).targets}
    assert set(found) == {"moonshot", "openrouter", "vllm", "sglang"}
    assert found["vllm"].base_url == "http://h1:8000/v1"
    assert found["vllm"].models_assumed
    assert not found["moonshot"].models_assumed
    assert all(dict(target.models) == dict(DIALECTS[name].models) for name, target in found.items())
    assert [name for name, target in found.items() if target.api_key is not None] == ["moonshot", "openrouter"]


def test_variables_add_nothing_where_the_file_has_targets(write: Write) -> None:
    assert [target.name for target in load(write(VLLM), VARIABLES).targets] == ["a"]


def test_a_bad_url_in_a_variable_is_named_by_it(write: Write) -> None:
    assert mistakes(write(""), VLLM_BASE_URL="h:1")[0].startswith("VLLM_BASE_URL: must be an http")


def test_a_model_without_a_route_goes_to_every_target_that_maps_it(write: Write) -> None:
    found = {route.model: route for route in load(write(""), VARIABLES).routes}
    assert set(found["kimi-k3.1-pro"].targets) == {"moonshot", "openrouter", "sglang", "vllm"}
    assert found["kimi-k3.1-pro"].aliases == ("moonshotai/kimi-k3.1-pro", "moonshotai/Kimi-K3.1-Pro")
    assert found["kimi-k3.1-pro-highspeed"].targets == ("moonshot",)


def test_a_route_keeps_the_order_written_and_ships_the_aliases(write: Write) -> None:
    b = VLLM.replace('"a"', '"b"')
    route = settings(write(f'{VLLM}{b}[[routes]]\nmodel = "kimi-k3.1-pro"\ntargets = ["b", "a", "b"]\n')).routes[0]
    assert route.targets == ("b", "a")
    assert route.aliases == ("moonshotai/kimi-k3.1-pro", "moonshotai/Kimi-K3.1-Pro")
    assert route.stated


def test_shipped_aliases_give_way_to_written_routes(write: Write) -> None:
    models = 'models = { "kimi-k3.1-pro" = "x", "moonshotai/kimi-k3.1-pro" = "y" }\n'
    text = f'{VLLM}{models}[[routes]]\nmodel = "kimi-k3.1-pro"\n[[routes]]\nmodel = "moonshotai/kimi-k3.1-pro"\n'
    routes = settings(write(text)).routes
    assert [route.aliases for route in routes] == [("moonshotai/Kimi-K3.1-Pro",), ()]


def test_routes_name_only_targets_that_exist_and_map_the_model(write: Write) -> None:
    route = '[[routes]]\nmodel = "kimi-k3.1-pro"\n'
    assert mistakes(write(f'{VLLM}{route}targets = ["aa"]\n')) == [
        'routes["kimi-k3.1-pro"].targets: "aa" is not a target; did you mean "a"?'
    ]
    assert mistakes(write(f'{VLLM}[[routes]]\nmodel = "other"\n')) == [
        'routes["other"]: no target of the route maps "other"; add it to the models of one'
    ]


def test_a_name_belongs_to_one_route(write: Write) -> None:
    models = 'models = { "m1" = "x", "m2" = "y" }\n'
    text = f'{VLLM}{models}[[routes]]\nmodel = "m1"\naliases = ["z"]\n[[routes]]\nmodel = "m2"\naliases = ["z"]\n'
    assert mistakes(write(text)) == [
        'routes["m2"].aliases: "z" belongs to the route "m1" already; take it out of one'
    ]


def key(**lines: str) -> str:
    return '[[keys]]\nname = "team"\n' + "".join(f"{name} = {value}\n" for name, value in lines.items())


def test_keys_come_by_variable_file_or_digest(write: Write, tmp_path: Path) -> None:
    (tmp_path / "k").write_text("kg-from-file\n")
    digest = hashlib.sha256(b"kg-digested").hexdigest()
    sources: Mapping[str, str] = {
        "kg-from-env": key(key_env='"TEAM"'),
        "kg-from-file": key(key_file=f'"{tmp_path / "k"}"'),
        "kg-digested": key(key_sha256=f'"{digest.upper()}"'),
    }
    for secret, text in sources.items():
        found = settings(write(text), TEAM="kg-from-env").key_ring.find(secret)
        assert found is not None, secret
        assert found.name == "team"


def test_a_key_has_exactly_one_source(write: Write) -> None:
    assert mistakes(write(key()))[0].startswith('keys["team"]: has no secret; give exactly one')
    both = mistakes(write(key(key_env='"A"', key_file='"B"')))
    assert both == ['keys["team"]: has key_env and key_file; give exactly one of key_env, key_file and key_sha256']
    assert "64 hexadecimal digits" in mistakes(write(key(key_sha256='"abc"')))[0]
    assert "TEAM is not set" in mistakes(write(key(key_env='"TEAM"')))[0]


def test_one_secret_cannot_be_two_callers(write: Write) -> None:
    text = key(key_env='"A"') + key(key_env='"B"').replace("team", "other-team")
    assert "have the same secret" in mistakes(write(text), A="kg-same-one", B="kg-same-one")[0]


@pytest.mark.parametrize("name", ["open", "other"])
def test_reserved_names_are_refused(write: Write, name: str) -> None:
    assert (
        "is taken by the gateway" in mistakes(write(key(key_env='"A"').replace("team", name)), A="kg-aaaaaaa")[0]
    )


def test_a_default_effort_above_the_ceiling_is_refused(write: Write) -> None:
    text = key(key_env='"A"', max_effort='"low"', default_effort='"max"')
    assert mistakes(write(text), A="kg-aaaaaaa")[0].startswith('keys["team"].default_effort: "max" is above')


def test_a_policy_holds_what_the_entry_says(write: Write) -> None:
    text = key(
        key_env='"A"',
        max_effort='"high"',
        default_effort='"low"',
        default_ttl='"1h"',
        max_completion_tokens="9",
        tiers='["standard"]',
        pin="true",
    )
    policy = settings(write(text), A="kg-aaaaaaa").keys[0]
    assert (policy.max_effort, policy.default_effort, policy.default_ttl) == ("high", "low", "1h")
    assert (policy.max_completion_tokens, policy.tiers, policy.pin) == (9, ("standard",), True)


def test_no_secret_shows_in_settings(write: Write) -> None:
    text = MOONSHOT + key(key_env='"A"') + '[admin]\nkey_env = "ADMIN"\n'
    planted = {"MOONSHOT_API_KEY": "sk-planted-one", "A": "kg-planted-two", "ADMIN": "adm-planted-three"}
    found = load(write(text), planted)
    assert sorted(found.secrets()) == sorted(planted.values())
    shown = f"{found!r} {found} {found.targets[0]!r} {found.admin!r}"
    assert not [secret for secret in planted.values() if secret in shown]
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(found.targets[0].api_key)
