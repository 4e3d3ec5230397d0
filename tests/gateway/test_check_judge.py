"""What a check makes of what it saw: pure judgements, one by one."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from backends.dialect import Dialect, Launch
from backends.faults import Fault, FaultKind
from backends.json import JsonObject
from backends.usage import read_usage
from kimi_gateway.checks.findings import Findings, Mistake, Sight, settings_mistakes
from kimi_gateway.checks.judge import (
    MAX_SKEW_S,
    clock_mistake,
    fault_mistake,
    is_listed,
    key_in_clear,
    key_mistake,
    list_mistake,
    model_mistakes,
    sister_host,
    unpriced_note,
)
from kimi_gateway.checks.launch import is_self_hosted, launch_mistakes, unseen_flags
from kimi_gateway.checks.local import room_problem, size_text
from kimi_gateway.core.secret import Secret
from kimi_gateway.settings import Target

MOONSHOT, VLLM, SGLANG = DIALECTS["moonshot"], DIALECTS["vllm"], DIALECTS["sglang"]
REFUSED = Fault(FaultKind.AUTH, "Invalid Authentication", 401)


def target(base_url: str = "https://api.moonshot.ai/v1", dialect: str = "moonshot", own: str = "k") -> Target:
    return Target("t", dialect, base_url, api_key=Secret("sk-x"), models={"kimi": own})


# --- keys and addresses ---------------------------------------------------------------------------------------


def test_the_two_hosts_of_one_service_name_each_other() -> None:
    assert sister_host("api.moonshot.ai", MOONSHOT) == "api.moonshot.cn"
    assert sister_host("api.moonshot.cn", MOONSHOT) == "api.moonshot.ai"
    assert sister_host("relay.example.cn", MOONSHOT) == ""
    assert sister_host("api.moonshot.ai", VLLM) == ""


@pytest.mark.parametrize(("here", "there"), [("ai", "cn"), ("cn", "ai")])
def test_a_key_refused_at_one_host_is_said_to_be_of_the_other(here: str, there: str) -> None:
    line = key_mistake(target(f"https://api.moonshot.{here}/v1"), MOONSHOT, REFUSED).line
    assert line.startswith(f'targets["t"].api_key_env: the key was refused by api.moonshot.{here} (401: ')
    assert f"most likely it is a key of api.moonshot.{there}" in line
    assert f'base_url = "https://api.moonshot.{there}/v1"' in line
    assert "MOONSHOT_API_KEY by default" in line


def test_a_key_refused_elsewhere_is_only_wrong() -> None:
    line = key_mistake(target("http://engine:8000/v1", "vllm"), VLLM, REFUSED).line
    assert "put the right key into the variable or file that the target names" in line
    assert "moonshot" not in line


def test_a_missing_key_is_told_from_a_wrong_one_and_from_a_forbidden_one() -> None:
    bare = Target("t", "vllm", "http://engine:8000/v1")
    assert "none is configured (401: Invalid" in key_mistake(bare, VLLM, REFUSED).line
    forbidden = Fault(FaultKind.AUTH, "ip not allowed", 403)
    assert "rights and the account's list of allowed addresses" in key_mistake(target(), MOONSHOT, forbidden).line


@pytest.mark.parametrize(
    ("url", "addresses", "wrong"),
    [
        ("http://8.8.8.8/v1", ["8.8.8.8"], True),
        ("http://api.example/v1", ["10.0.0.1", "2600::1"], True),
        ("https://8.8.8.8/v1", ["8.8.8.8"], False),
        ("http://engine/v1", ["10.1.2.3", "192.168.0.9", "172.16.0.1"], False),
        ("http://engine/v1", ["127.0.0.1", "::1", "fe80::1%eth0", "fd00::9", "100.64.0.1"], False),
        ("http://engine/v1", [], False),
        ("http://engine/v1", ["not an address"], False),
    ],
)
def test_a_key_in_clear_over_public_networks_is_a_mistake(url: str, addresses: list[str], wrong: bool) -> None:
    assert (key_in_clear(target(url, "vllm"), addresses) is not None) is wrong
    assert key_in_clear(Target("t", "vllm", url), addresses) is None  # no key, nothing to lose


@pytest.mark.parametrize(
    ("base_url", "said"),
    [
        ("http://engine:8000", 'write base_url = "http://engine:8000/v1"'),
        ("https://relay.example/openai", 'write base_url = "https://relay.example/openai/v1"'),
        ("https://relay.example/v2", "so this is not the address of the API"),
        ("https://openrouter.ai/api/v1", "so this is not the address of the API"),
        ("https://relay.example/v1beta", "so this is not the address of the API"),
    ],
)
def test_a_base_url_without_its_version_is_completed(base_url: str, said: str) -> None:
    assert said in list_mistake(target(base_url), "404").line


def test_the_remedy_of_a_name_mismatch_is_the_name() -> None:
    fault = Fault(FaultKind.TLS, "the certificate was not accepted: Hostname mismatch; name your issuer")
    found = fault_mistake(target(), MOONSHOT, fault, asked="its list")
    assert found.remedy == "write into base_url the host name that the certificate is for"


def test_every_kind_of_fault_has_a_remedy_of_its_own_or_its_message_has_one() -> None:
    for kind in FaultKind:
        found = fault_mistake(target(), MOONSHOT, Fault(kind, "it said no", 0), asked="its list")
        assert found.remedy
        assert "it said no" in found.line
        own = fault_mistake(target(), MOONSHOT, Fault(kind, "it said no; do this", 0), asked="its list")
        assert kind is FaultKind.AUTH or own.remedy == "do this"


# --- models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "listed", "remedy"),
    [
        ("kimi-k3.1", ["kimi-k3.1-pro", "other"], 'did you mean "kimi-k3.1-pro"?'),
        (
            "MOONSHOTAI/kimi-k3.1-pro",
            ["moonshotai/Kimi-K3.1-Pro", "z"],
            'did you mean "moonshotai/Kimi-K3.1-Pro"?',
        ),
        ("x", ["served"], 'its only model is "served": write { "kimi" = "served" }'),
        ("x", ["aaaa", "bbbb"], "write one of these: aaaa, bbbb"),
        ("x", [f"model-{n}" for n in range(400)], "and 394 more"),
        ("x", [], "it lists none at all"),
    ],
)
def test_an_unknown_model_gets_what_may_have_been_meant(own: str, listed: list[str], remedy: str) -> None:
    (found,) = model_mistakes(target(own=own), listed)
    assert found.where == 'targets["t"].models'
    assert f'"{own}"' in found.what
    assert remedy in found.remedy
    assert len(found.line) < 200


def test_variants_and_moving_aliases_of_openrouter_are_not_unknown() -> None:
    assert is_listed("moonshotai/kimi-k3.1-pro:nitro", ["moonshotai/kimi-k3.1-pro"])
    assert is_listed("~moonshotai/kimi-latest", [])
    assert not is_listed("moonshotai/kimi-k3:nitro", ["moonshotai/kimi-k3.1-pro"])


def test_what_is_unpriced_says_why_and_how_to_price_it() -> None:
    chinese = unpriced_note(target("https://api.moonshot.cn/v1"), MOONSHOT, "kimi-k3.1-pro", is_priced=False)
    assert "api.moonshot.cn does not bill in USD" in chinese
    engine = unpriced_note(target("http://engine/v1", "vllm"), VLLM, "kimi", is_priced=False)
    assert "no rate card prices kimi" in engine
    assert 'set prices = { input = …, output = … } in targets["t"]' in engine
    assert unpriced_note(target(), MOONSHOT, "kimi-k3.1-pro", is_priced=True) == ""


# --- clocks ---------------------------------------------------------------------------------------------------


def test_one_clock_that_differs_from_one_other_may_be_either() -> None:
    found = clock_mistake({"a": 95.0})
    assert found is not None
    assert found.what == "the clocks differ: a's is 95 s ahead of ours"


def test_where_all_others_agree_ours_is_wrong() -> None:
    found = clock_mistake({"a": 3600.0, "b": 3601.0, "c": 3599.0})
    assert found is not None
    assert found.what == "this machine's clock is 3,600 s behind that of a, b, c"


def test_where_one_of_several_differs_it_alone_is_named() -> None:
    found = clock_mistake({"a": 0.4, "b": -31.0, "c": 1.0})
    assert found is not None
    assert found.what == "the clocks differ: b's is 31 s behind ours"


@given(st.dictionaries(st.text("abc", min_size=1), st.floats(-1e6, 1e6), max_size=5))
@settings(max_examples=100)
def test_clocks_are_wrong_exactly_beyond_the_limit(offsets: dict[str, float]) -> None:
    assert (clock_mistake(offsets) is not None) == any(abs(offset) > MAX_SKEW_S for offset in offsets.values())


# --- what an engine was started without -----------------------------------------------------------------------


def sight(dialect: Dialect, *, cached: bool = True, **changed: Any) -> Sight:
    """A whole answer of an engine with everything."""
    usage: JsonObject = {"prompt_tokens": 9, "completion_tokens": 5}
    usage["prompt_tokens_details"] = {"cached_tokens": 0} if cached else None
    measured = read_usage(usage, dialect=dialect, headers={}, ttl="")
    whole: dict[str, Any] = {
        "status": 200,
        "thought_names": ("reasoning",),
        "text": "pong",
        "measured": measured,
        "has_cached_count": cached,
        "has_request_id": True,
    }
    return Sight(**{**whole, **changed})


def lines(dialect: Dialect, seen: Sight, refused: Fault | None = None) -> list[str]:
    return [mistake.line for mistake in launch_mistakes("here", dialect, seen, refused)]


@pytest.mark.parametrize("dialect", [VLLM, SGLANG, DIALECTS["llamacpp"]])
def test_an_engine_with_everything_has_no_mistake(dialect: Dialect) -> None:
    assert lines(dialect, sight(dialect)) == []


@pytest.mark.parametrize(
    ("dialect", "flag"), [(VLLM, "--enable-prompt-tokens-details"), (SGLANG, "--enable-cache-report")]
)
def test_no_cached_count_names_the_engines_own_flag(dialect: Dialect, flag: str) -> None:
    (line,) = lines(dialect, sight(dialect, cached=False))
    assert line.endswith(f"start it with {flag}")


@pytest.mark.parametrize(
    "changed",
    [
        {"thought_names": ()},
        {"thought_names": (), "text": "", "calls": ("get_time",)},
        {"thought_names": (), "text": "<|open|>think<|sep|>Hm.<|close|>think<|sep|>pong"},
        {"text": "Hm.</think>pong"},
    ],
)
def test_a_lost_thought_names_the_reasoning_parser(changed: dict[str, Any]) -> None:
    (line,) = lines(VLLM, sight(VLLM, **changed))
    assert "--reasoning-parser kimi_k3" in line


def test_an_answer_that_was_cut_before_it_said_anything_shows_no_lost_thought() -> None:
    assert lines(VLLM, sight(VLLM, thought_names=(), text="", finish_reason="length")) == []


def test_a_missing_tool_parser_is_seen_by_marks_and_by_refusal() -> None:
    (by_mark,) = lines(SGLANG, sight(SGLANG, text="<|open|>tools<|sep|>get_time"))
    assert by_mark.endswith("start it with --tool-call-parser kimi_k3")
    refused = Fault(FaultKind.REQUEST, '"auto" tool choice requires a parser', 400)
    (by_refusal,) = lines(VLLM, sight(VLLM), refused)
    assert '(400: "auto" tool choice requires a parser)' in by_refusal
    assert by_refusal.endswith("start it with --enable-auto-tool-choice --tool-call-parser kimi_k3")


def test_a_tool_parser_that_no_call_has_shown_is_said_to_be_unseen() -> None:
    assert unseen_flags(VLLM, sight(VLLM, tools=True, calls=("get_time",))) == ""
    silent = unseen_flags(VLLM, sight(VLLM, tools=True))
    assert silent.startswith("its tool-call parser (the tool was not called); ")
    assert silent.endswith("if it was started with --enable-auto-tool-choice --tool-call-parser kimi_k3")
    assert "was cut" in unseen_flags(SGLANG, sight(SGLANG, tools=True, finish_reason="length"))
    named = sight(SGLANG, tools=True, text='call tool="get_time" zone UTC')
    assert "its name stands in the text" in unseen_flags(SGLANG, named)
    assert "no tool could be offered" in unseen_flags(VLLM, sight(VLLM))
    assert unseen_flags(MOONSHOT, sight(MOONSHOT)) == ""


def test_a_missing_request_id_is_a_mistake_only_where_a_flag_brings_it() -> None:
    assert "--enable-request-id-headers" in lines(VLLM, sight(VLLM, has_request_id=False))[0]
    assert lines(SGLANG, sight(SGLANG, has_request_id=False)) == []


def test_services_are_not_told_how_to_start() -> None:
    empty = sight(MOONSHOT, cached=False, thought_names=(), has_request_id=False)
    assert lines(MOONSHOT, empty) == []
    assert lines(DIALECTS["openrouter"], empty) == []


def test_flags_are_known_only_for_what_can_be_started() -> None:
    assert all(is_self_hosted(dialect) for dialect in DIALECTS.values() if dialect.launch != Launch())


# --- the machine, and the lines themselves --------------------------------------------------------------------


def test_a_disk_with_too_little_room_says_how_much() -> None:
    found = room_problem("ledger.url", Path("/data"), 10 << 20, 64 << 20, "make room on it")
    assert found is not None
    assert found.line == "ledger.url: the disk of /data has 10.0 MiB left, 64.0 MiB may be needed; make room on it"
    assert room_problem("ledger.url", Path("/data"), 64 << 20, 64 << 20, "") is None


@pytest.mark.parametrize(
    ("size_bytes", "said"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")]
)
def test_sizes_are_said_in_the_unit_that_fits(size_bytes: int, said: str) -> None:
    assert size_text(size_bytes) == said


@pytest.mark.parametrize(
    "line",
    [
        'targets["a b"].base_url: is missing',
        'server.prot: is not a setting; did you mean "port"?',
        "server.port (from --port): must be at most 65535, not 70000",
        "the file x cannot be read (No such file); name another with --config",
        "the file is not TOML: Expected '=' after a key: line 3",
        "MOONSHOT_API_KEY: the variable holds spaces",
    ],
)
def test_a_line_about_the_settings_survives_being_taken_apart(line: str) -> None:
    (found,) = settings_mistakes([line], "f.toml")
    assert found.line in (line, f"f.toml: {line}")
    assert " " not in found.where.partition(" (from ")[0].replace('["a b"]', "")


def test_what_is_found_twice_is_said_once() -> None:
    found = Findings()
    for _ in range(2):
        found.wrong(Mistake("a", "b"), None)
        found.note("n", "")
    assert (found.mistakes, found.notes) == ([Mistake("a", "b")], ["n"])
