"""`kimi-gateway keys`: a secret is shown once, limits are kept, and every refusal says how to set it right."""

import json
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from kimi_gateway.cli import app
from kimi_gateway.core.key_record import budget_nano, decode_policy, encode_policy
from kimi_gateway.core.keys import BOTH_TIERS, KeyFormatError, KeyPolicy
from kimi_gateway.core.limits import BUDGET_MAX_NANO, PERIODS, Limits
from pricing.ledger.store import Store
from pricing.ledger.store.keys import KeyTable
from support.ledger_rows import ledger_url, settled_row


class Place:
    """A directory with a ledger, and the command in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ledger_url(directory)

    def run(self, *args: str, code: int = 0, where: str = "variable") -> Result:
        environ = {"KIMI_LEDGER_URL": self.url if where == "variable" else "", "KIMI_GATEWAY_CONFIG": ""}
        found = CliRunner().invoke(app, ["keys", *args], env=environ)
        assert found.exit_code == code, found.output + found.stderr
        return found

    def listed(self) -> dict[str, Any]:
        return {key["name"]: key for key in json.loads(self.run("list", "--format", "json").stdout)["keys"]}

    def digests(self, name: str) -> list[str]:
        table = KeyTable(self.url)
        (key,) = [key for key in table.all() if key.name == name]
        table.close()
        return [one.sha256 for one in key.secrets]

    def policy(self, name: str) -> KeyPolicy:
        table = KeyTable(self.url)
        (key,) = [key for key in table.all() if key.name == name]
        table.close()
        return decode_policy(name, key.policy)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_new_key_is_shown_once_and_only_its_digest_is_kept(place: Place) -> None:
    found = place.run("create", "team-a")
    secret = found.stdout.strip()
    assert secret.startswith("kg-")
    assert len(secret) == 3 + 43
    assert place.digests("team-a") == [sha256(secret.encode()).hexdigest()]
    assert "it is shown this once" in found.stderr
    assert secret.encode() not in (place.directory / "ledger.db").read_bytes()
    assert secret not in place.run("list", "--format", "json").output


def test_limits_and_rights_are_kept_and_outlive_a_rotation(place: Place) -> None:
    options = (
        "--budget-usd 25.50 --highspeed-budget-usd 5 --period day --rpm 60 --tpm 2000000 --concurrency 4 "
        "--max-effort high --default-effort low --default-ttl 1h --max-completion-tokens 32000 --tier standard "
        "--pin --no-thinking-repair"
    )
    place.run("create", "team-a", *options.split())
    made = KeyPolicy(
        name="team-a",
        max_effort="high",
        default_effort="low",
        default_ttl="1h",
        max_completion_tokens=32000,
        tiers=("standard",),
        pin=True,
        thinking_repair=False,
        limits=Limits(25_500_000_000, 5_000_000_000, "day", 60, 2_000_000, 4),
    )
    assert place.policy("team-a") == made
    place.run("rotate", "team-a")
    assert place.policy("team-a") == made


def test_without_options_there_are_no_limits(place: Place) -> None:
    place.run("create", "team-a")
    assert place.policy("team-a") == KeyPolicy("team-a")


def test_a_rotation_shows_a_new_secret_and_until_when_the_old_one_works(place: Place) -> None:
    old = place.run("create", "team-a").stdout.strip()
    found = json.loads(place.run("rotate", "team-a", "--overlap", "2h", "--format", "json").stdout)
    assert set(found) == {"name", "key", "ledger", "older_secrets", "older_work_until"}
    assert place.digests("team-a") == [sha256(one.encode()).hexdigest() for one in (found["key"], old)]
    assert place.listed()["team-a"]["state"] == "works, 2 secrets"
    ended = place.run("rotate", "team-a", "--overlap", "0s")
    assert "older" not in ended.stderr
    assert place.listed()["team-a"]["state"] == "works"


def test_the_list_says_what_is_spent_and_left_in_the_period(place: Place) -> None:
    place.run("create", "team-a", "--budget-usd", "1", "--period", "total", "--highspeed-budget-usd", "0.5")
    place.run("create", "team-b")
    store = Store(place.url)
    store.upsert(
        [
            settled_row("r1", cost_nano=250_000_000),
            settled_row("r2", cost_nano=1, tier="highspeed"),
            settled_row("r3", key="team-b", cost_nano=5),
        ]
    )
    store.close()
    found = place.listed()
    key = found["team-a"]
    assert (key["spent_usd"], key["left_usd"]) == ("0.250000001", "0.749999999")
    assert (key["highspeed_spent_usd"], key["highspeed_left_usd"]) == ("0.000000001", "0.499999999")
    assert (found["team-b"]["budget_usd"], found["team-b"]["left_usd"]) == (None, None)
    shown = place.run("list").stdout
    assert "0.749999999" in shown
    assert "ledger sqlite:///" in shown


def test_a_revoked_key_is_listed_as_such_and_its_name_stays_taken(place: Place) -> None:
    place.run("create", "team-a")
    assert "revoked team-a" in place.run("revoke", "team-a").stdout
    assert place.listed()["team-a"]["state"] == "revoked"
    assert "choose another name" in place.run("create", "team-a", code=2).stderr
    assert "was revoked" in place.run("rotate", "team-a", code=2).stderr


def test_a_key_of_the_file_is_left_to_the_file(place: Place) -> None:
    config = place.directory / "g.toml"
    config.write_text(f'[ledger]\nurl = "{place.url}"\n[[keys]]\nname = "team-a"\nkey_env = "UNSET"\n')
    named = ("--config", str(config))
    refused = place.run("create", "team-a", *named, code=2, where="file").stderr
    assert f"{config} has a key team-a already" in refused
    for command in ("revoke", "rotate"):
        assert "change it there" in place.run(command, "team-a", *named, code=2, where="file").stderr
    place.run("create", "team-b", *named, where="file")
    assert list(place.listed()) == ["team-b"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("create", "open"), "the name open is taken by the gateway itself"),
        (("create", "-x"), "No such option"),
        (("create", "a b"), "cannot be a key's name"),
        (("create", "k", "--budget-usd", "ten"), "--budget-usd: 'ten' must be an amount of dollars"),
        (("create", "k", "--budget-usd", "-1"), "zero or more"),
        (("create", "k", "--budget-usd", "nan"), "zero or more"),
        (("create", "k", "--highspeed-budget-usd", "9007200"), "at most 9,007,199 dollars"),
        (("create", "k", "--budget-usd", "0.0000000001"), "at most nine decimal places"),
        (("create", "k", "--period", "week"), "--period: 'week' is none of day, month, total"),
        (("create", "k", "--tier", "gold"), "--tier: 'gold' is none of standard, highspeed"),
        (("create", "k", "--max-effort", "low", "--default-effort", "max"), "is above --max-effort low"),
        (("rotate", "k", "--overlap", "soon"), "write 30m, 24h or 7d"),
        (("rotate", "k"), "there is no ledger at"),
        (("list",), "there is no ledger at"),
        (("list", "--config", "/nowhere.toml"), "the file /nowhere.toml cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_with_what_would_do(place: Place, args: tuple[str, ...], words: str) -> None:
    assert words in place.run(*args, code=2).stderr
    assert not (place.directory / "ledger.db").exists()


# --- the record -----------------------------------------------------------------------------------------------

_NANO = st.none() | st.integers(0, BUDGET_MAX_NANO)
_POLICIES = st.builds(
    KeyPolicy,
    name=st.just("k"),
    max_effort=st.sampled_from(["low", "high", "max"]),
    default_effort=st.sampled_from(["", "low"]),
    default_ttl=st.sampled_from(["", "5m", "1h"]),
    max_completion_tokens=st.integers(0, 2**53),
    tiers=st.sampled_from([("standard",), ("highspeed",), BOTH_TIERS]),
    pin=st.booleans(),
    explain=st.booleans(),
    thinking_repair=st.booleans(),
    limits=st.builds(Limits, _NANO, _NANO, st.sampled_from(PERIODS), *[st.integers(0, 2**53)] * 3),
)


@settings(max_examples=100)
@given(policy=_POLICIES)
def test_every_policy_comes_back_as_it_was(policy: KeyPolicy) -> None:
    assert decode_policy("k", encode_policy(policy)) == policy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"version":2}', "has version 2, this one knows 1; use a newer kimi-gateway"),
        ('{"version":1,"rps":5}', "not one that this version knows"),
        ('{"version":1,"budget_period":"week"}', "not one that this version knows"),
        ("{}", "not one that this version knows"),
        ("", "not one that this version knows"),
    ],
)
def test_a_record_that_is_not_understood_is_refused_whole(text: str, words: str) -> None:
    with pytest.raises(KeyFormatError, match=words):
        decode_policy("k", text)


def test_the_largest_budget_is_the_last_that_doubles_hold_exactly() -> None:
    most = Decimal(BUDGET_MAX_NANO).scaleb(-9)
    assert budget_nano(most) == BUDGET_MAX_NANO == int(float(BUDGET_MAX_NANO))
    assert int(float(BUDGET_MAX_NANO + 2)) != BUDGET_MAX_NANO + 2
    with pytest.raises(KeyFormatError):
        budget_nano(most + Decimal("0.000000001"))
