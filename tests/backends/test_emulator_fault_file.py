"""The fault file: which requests a rule hits, what chance comes to, and that nothing unknown is accepted."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.emulator.app import EmulatorConfig
from backends.emulator.exchange import Exchange
from backends.emulator.fault_file import SERVICE_KEYS, FaultFileError, read_fault_file
from backends.emulator.faults import CONDITIONS, KINDS, FaultPlan, Rule
from backends.emulator.limits import TIERS, Limits
from backends.emulator.moonshot import MOONSHOT
from backends.emulator.player import Script, Step
from backends.json import JsonObject, as_list
from support.misbehaving import Upstream, misbehaving

ANSWER = Script(status=200, headers=(), steps=(Step(b"{}", tokens=1),), billed=True)


def exchange(number: int = 1, text: str = "hi", **fields: Any) -> Exchange:
    body: JsonObject = {"messages": [{"role": "user", "content": text}]}
    return Exchange(
        **{"number": number, "path": "/v1/chat/completions", "body": body, "profile": MOONSHOT, **fields}
    )


def hit(plan: FaultPlan, numbers: int = 12, **fields: Any) -> list[int]:
    """The numbers of the requests that suffer something."""
    return [n for n in range(1, numbers + 1) if plan(exchange(n, **fields), ANSWER).fault]


def plan(text: str, seed: int = 0) -> FaultPlan:
    return read_fault_file(text).plan(seed)


# --- which requests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        ("", list(range(1, 13))),
        ("requests = [3, 7]", [3, 7]),
        ("every = 4", [4, 8, 12]),
        ("every = 4\ntimes = 2", [4, 8]),
        ("times = 2", [1, 2]),
        ("probability = 0", []),
        ("probability = 1", list(range(1, 13))),
        ("stream = true", []),
        ("stream = false", list(range(1, 13))),
        ('contains = "hi"', list(range(1, 13))),
        ('contains = "ho"', []),
        ('path = "/v1/models"', []),
    ],
)
def test_a_rule_hits_the_requests_that_it_names(condition: str, numbers: list[int]) -> None:
    assert hit(plan(f'[[faults]]\nkind = "html"\n{condition}')) == numbers


def test_the_first_rule_that_hits_and_fits_is_applied() -> None:
    held = plan(
        '[[faults]]\nkind = "no_done"\n'  # of streams only: passes this answer by
        '[[faults]]\nkind = "html"\nrequests = [2]\n'
        '[[faults]]\nkind = "quota"\n'
    )
    assert [held(exchange(n), ANSWER).fault for n in (1, 2, 3)] == ["quota", "html", "quota"]
    assert held.shown() == [
        {"kind": "no_done", "fired": 0},
        {"kind": "html", "fired": 1},
        {"kind": "quota", "fired": 2},
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "cut me"}]}]},
        {"messages": [{"role": "user", "content": "cut me"}, {"role": "assistant", "content": "no"}]},
    ],
)
def test_the_text_looked_for_is_that_of_the_last_user_message(body: JsonObject) -> None:
    held = plan('[[faults]]\nkind = "html"\ncontains = "cut me"')
    assert held(exchange(body=body), ANSWER).fault == "html"
    later: JsonObject = {"messages": [*as_list(body["messages"]), {"role": "user", "content": "on"}]}
    assert held(exchange(body=later), ANSWER).fault == ""
    assert held(exchange(body={"messages": "cut me"}), ANSWER).fault == ""


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**62 - 1), share=st.floats(0.05, 0.95))
def test_chances_come_out_alike_for_a_seed_and_near_their_share(seed: int, share: float) -> None:
    text = f'[[faults]]\nkind = "html"\nprobability = {share!r}'
    first, again = (hit(plan(text, seed), 300) for _ in range(2))
    assert first == again
    assert abs(len(first) / 300 - share) < 0.15


def test_the_files_seed_goes_before_the_emulators_and_seeds_differ() -> None:
    text = '[[faults]]\nkind = "html"\nprobability = 0.5'
    assert hit(plan(text, 1), 64) != hit(plan(text, 2), 64)
    assert hit(plan(f"seed = 1\n{text}", 2), 64) == hit(plan(text, 1), 64)


def test_two_rules_of_one_chance_roll_apart() -> None:
    chance, never = Rule("html", probability=0.5), Rule("html", requests=frozenset({99}))
    assert hit(FaultPlan([chance]), 64) != hit(FaultPlan([never, chance]), 64)


# --- what is accepted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[[faults]]\nkind = 'cutt'", "faults[0].kind: there is no kind 'cutt'; did you mean cut?"),
        (
            "[[faults]]\nkind = 'xyzzy'",
            "faults[0].kind: there is no kind 'xyzzy'; known are content_filter, context",
        ),
        ("[[faults]]\nphase = 'text'", "faults[0].kind: missing"),
        ("[[faults]]\nkind = 'cut'\nfase = 'text'", "faults[0].fase: there is no such key; did you mean phase?"),
        ("[[faults]]\nkind = 'html'\nphase = 'text'", "faults[0].phase: there is no such key"),
        ("[[faults]]\nkind = 'cut'\nphase = 'tex'", "faults[0].phase: must be one of start, head, role, thought"),
        ("[[faults]]\nkind = 'cut'\nphase = 3", "faults[0].phase: must be a string"),
        ("[[faults]]\nkind = 'cut'\nrequests = [0]", "faults[0].requests: must be a list of request numbers"),
        ("[[faults]]\nkind = 'cut'\nrequests = []", "faults[0].requests: must be a list of request numbers"),
        ("[[faults]]\nkind = 'cut'\nrequests = 3", "faults[0].requests: must be a list of request numbers"),
        ("[[faults]]\nkind = 'cut'\nrequests = [true]", "faults[0].requests: must be a list of request numbers"),
        ("[[faults]]\nkind = 'cut'\nevery = 0", "faults[0].every: must be a whole number from 1 to"),
        ("[[faults]]\nkind = 'cut'\nevery = 2\nprobability = 0.5", "faults[0].probability: every and probability"),
        ("[[faults]]\nkind = 'cut'\nprobability = 1.5", "faults[0].probability: must be a number from 0 to 1"),
        ("[[faults]]\nkind = 'cut'\nprobability = nan", "faults[0].probability: must be a number from 0 to 1"),
        ("[[faults]]\nkind = 'cut'\nstream = 'yes'", "faults[0].stream: must be true or false"),
        ("[[faults]]\nkind = 'html'\nstatus = 502.0", "faults[0].status: must be a whole number from 200 to 599"),
        ("[[faults]]\nkind = 'html'\nstatus = true", "faults[0].status: must be a whole number"),
        ("[[faults]]\nkind = 'no_finish'\ndone = 1", "faults[0].done: must be true or false"),
        ("[faults]\nkind = 'cut'", "faults: must be tables, each begun with [[faults]]"),
        ("[limit]\nrpm = 3", "limit: there is no such key; did you mean limits?"),
        ("limits = 3", "limits: must be a table"),
        ("[limits]\ntier = 9", "limits.tier: must be one of 0, 1, 2, 3, 4, 5"),
        ("[limits]\nrpm = -1", "limits.rpm: must be a whole number from 0"),
        ("[limits]\ntmp = 1", "limits.tmp: there is no such key; did you mean tpm?"),
        ("[service]\ntext_olny = true", "service.text_olny: there is no such key; did you mean text_only?"),
        ("[service]\nbyok_share = 2", "service.byok_share: must be a number from 0 to 1"),
        ("service = 1", "service: must be a table"),
        ("seed = -1", "seed: must be a whole number, zero or more"),
        ("seed = true", "seed: must be a whole number, zero or more"),
        ("kind = ", "not TOML: "),
    ],
)
def test_a_mistake_is_a_line_with_its_place_and_its_remedy(text: str, line: str) -> None:
    with pytest.raises(FaultFileError, match=re.escape(line)):
        read_fault_file(text)


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(FaultFileError) as caught:
        read_fault_file("sede = 1\n[limits]\nrmp = 1\n[[faults]]\nkind = 'cut'\nfase = 'x'\nevery = 0\n")
    assert len(str(caught.value).splitlines()) == 4


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "[limits]\ntier = 9\nrpm = -1\ntpm = true",
            ["limits.tier: must be one of", "limits.rpm: must be", "limits.tpm: must be"],
        ),
        (
            "[[faults]]\nkind = 'cutt'\nevery = 0\nrequests = 3\nstream = 1",
            [
                "faults[0].kind: there is no kind 'cutt'",
                "faults[0].every: must be",
                "faults[0].stream: must be",
                "faults[0].requests: must be",
                "faults[0].every: requests and every exclude one another",
            ],
        ),
        ("[limits]\nrpm =\n[[faults]]\nkind = cut\n", ["not TOML: Invalid value (at line 2", "not TOML: "]),
    ],
)
def test_one_mistake_hides_no_other(text: str, lines: list[str]) -> None:
    with pytest.raises(FaultFileError) as caught:
        read_fault_file(text)
    told = str(caught.value).splitlines()
    assert [line[: len(start)] for line, start in zip(told, lines, strict=True)] == lines


def test_a_tier_gives_limits_that_can_be_overridden() -> None:
    assert read_fault_file("[limits]\ntier = 0").limits == TIERS[0]
    assert read_fault_file("[limits]\ntier = 1\nrpm = 7").limits == Limits(50, 7, 2_000_000, 0)
    assert read_fault_file("").limits is None


def test_a_file_changes_the_configuration_and_what_it_does_not_name_stays() -> None:
    config = EmulatorConfig(dialect="vllm", seed=3, block_tokens=99)
    changed = read_fault_file("[service]\ncached_counts = false\ncontext_tokens = 8192").applied_to(config)
    assert (changed.cached_counts, changed.context_tokens) == (False, 8192)
    assert (changed.dialect, changed.seed, changed.block_tokens, changed.faults) == ("vllm", 3, 99, None)
    with pytest.raises(FaultFileError, match="service: balance_usd must be a decimal number"):
        read_fault_file("[service]\nbalance_usd = 'much'").applied_to(config)


def test_every_service_key_is_a_setting_with_that_default() -> None:
    config = EmulatorConfig()
    for key, option in SERVICE_KEYS.items():
        assert hasattr(config, key)
        assert option.default in (getattr(config, key), "", 0.0, None)


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_option_has_a_default_that_it_accepts_and_says_what_it_is(kind: str) -> None:
    assert KINDS[kind].about
    for name, option in KINDS[kind].options.items():
        assert name not in CONDITIONS
        assert option.about
        assert option.default is None or option.mistake(option.default) == ""


# --- while it runs --------------------------------------------------------------------------------------------


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with misbehaving('[[faults]]\nkind = "quota"\nrequests = [2]') as held:
        yield held


def test_rules_can_be_shown_and_changed_while_it_runs(upstream: Upstream) -> None:
    assert [upstream.ask().status for _ in range(3)] == [200, 429, 200]
    assert upstream.control("/emulator/faults") == {"rules": [{"kind": "quota", "fired": 1}]}
    assert upstream.fault_names() == ["", "quota", ""]
    shown = upstream.control("/emulator/faults", '[[faults]]\nkind = "html"\nrequests = [5]')
    assert shown == {"rules": [{"kind": "html", "fired": 0}]}
    assert [upstream.ask().status for _ in range(2)] == [200, 502]  # numbers go on
    upstream.control("/emulator/faults", "")
    assert upstream.ask().status == 200


@pytest.mark.parametrize("body", ["[[faults]]\nkind = 'cutt'", "[limits]\nrpm = 1", "[service]\ntext_only = true"])
def test_what_cannot_be_changed_while_it_runs_is_refused(upstream: Upstream, body: str) -> None:
    heard = upstream.send(body.encode(), path="/emulator/faults")
    assert heard.status == 400
    assert upstream.control("/emulator/faults") == {"rules": [{"kind": "quota", "fired": 0}]}


def test_the_same_seed_gives_the_same_faults_over_a_socket() -> None:
    rules = "".join(f'[[faults]]\nkind = "{kind}"\nprobability = 0.3\n' for kind in ("html", "quota", "no_done"))

    def run() -> list[str]:
        with misbehaving(f"seed = 11\n{rules}") as held:
            for number in range(30):
                held.ask(stream=number % 2 == 0)
            return held.fault_names()

    first = run()
    assert first == run()
    assert {"", "html", "quota", "no_done"} == set(first)
