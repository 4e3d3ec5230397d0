"""What a running gateway takes over from a changed configuration."""

from pathlib import Path

import pytest

from kimi_gateway.settings import Settings, SettingsError, Target, carry_over, load, with_targets

ENVIRON = {"KEY": "kg-a-secret-key", "OTHER": "kg-another-key"}
KEYED = '[[keys]]\nname = "k"\nkey_env = "KEY"\n'


def settings(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "c.toml"
    path.write_text(text)
    return load(path, ENVIRON)


def test_limits_keys_and_targets_are_taken_over_at_once(tmp_path: Path) -> None:
    old = settings(tmp_path, KEYED)
    new = settings(tmp_path, "[server]\nmax_body_bytes = 7\ndrain_grace_s = 1\n" + KEYED.replace("KEY", "OTHER"))
    merged, waiting = carry_over(old, new)
    assert waiting == ()
    assert (merged.server.max_body_bytes, merged.server.drain_grace_s) == (7, 1.0)
    assert merged.key_ring.find("kg-another-key") is not None
    assert merged.key_ring.find("kg-a-secret-key") is None


def test_what_is_bound_is_kept_and_named(tmp_path: Path) -> None:
    old = settings(tmp_path, "")
    text = '[server]\nport = 1\nhost = "::1"\nmax_connections = 3\n[admin]\nlisten = "127.0.0.1:9"\n'
    merged, waiting = carry_over(old, settings(tmp_path, text + "[ledger]\nfsync = true\n"))
    assert waiting == ("server.host", "server.port", "server.max_connections", "ledger", "admin.listen")
    assert (merged.server.host, merged.server.port, merged.server.max_connections) == ("127.0.0.1", 8000, 10000)
    assert merged.ledger == old.ledger
    assert merged.admin.listen is None


def test_a_gateway_that_others_reach_cannot_lose_its_keys(tmp_path: Path) -> None:
    old = settings(tmp_path, '[server]\nhost = "0.0.0.0"\n' + KEYED)
    with pytest.raises(SettingsError, match=r"listens on 0\.0\.0\.0, so it cannot go on without keys"):
        carry_over(old, settings(tmp_path, ""))


def test_routes_nobody_wrote_follow_the_targets(tmp_path: Path) -> None:
    old = settings(tmp_path, "")
    assert old.routes == ()
    emulator = Target(name="e", dialect="moonshot", base_url="http://h/v1", models={"kimi-k3.1-pro": "x"})
    found = with_targets(old, (emulator,))
    assert [(route.model, route.targets) for route in found.routes] == [("kimi-k3.1-pro", ("e",))]
    assert with_targets(found, ()).routes == ()
