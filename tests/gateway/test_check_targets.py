"""`kimi-gateway check` against targets over real sockets: each way one can be wrong is one line that says so."""

import asyncio
import os
import pty
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from backends.aiohttp_upstream import AiohttpUpstream
from kimi_gateway.checks.fetch import Tools
from kimi_gateway.checks.targets import look_at_target
from kimi_gateway.core.secret import Secret
from kimi_gateway.settings import Target
from pricing.cards import load_cards
from support.checked import KEY, PRICES, SMALL_JOURNAL, Deployment, behind, check, listing, target
from support.exchange import Exchange
from support.processes import run_module
from support.scripted import dead_port
from support.tunnel import self_signed, tunnel

UNAUTHORIZED = {
    "status": 401,
    "json": {"error": {"message": "Invalid Authentication", "type": "invalid_authentication_error"}},
}
NO_MESSAGES = {"status": 400, "json": {"error": {"message": "messages is empty", "type": "invalid_request_error"}}}


def skewed(seconds: float) -> dict[str, str]:
    """The Date header of a clock that is that much ahead."""
    return {"Date": format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)}


# --- reaching it ----------------------------------------------------------------------------------------------


def test_a_dead_port_is_one_line(tmp_path: Path) -> None:
    with dead_port() as port:
        outcome = check(tmp_path, target(f"http://127.0.0.1:{port}/v1"))
    assert outcome.line == (
        f'targets["t"].base_url: cannot connect to 127.0.0.1:{port}: connection refused; '
        "start it, or set base_url to the host and port where it runs"
    )


def test_a_name_that_does_not_resolve_is_one_line(tmp_path: Path) -> None:
    outcome = check(tmp_path, target("http://no-such-host.invalid/v1"))
    assert outcome.line.startswith(
        'targets["t"].base_url: the host name of no-such-host.invalid:80 cannot be resolved: '
    )


def test_a_name_that_no_dns_could_hold_is_one_line(tmp_path: Path) -> None:
    outcome = check(tmp_path, target(f"http://{'a' * 80}.example/v1"))
    assert outcome.line.startswith('targets["t"]')


def test_a_target_that_never_answers_is_a_mistake_after_bounded_time() -> None:
    async def mute(exchange: Exchange) -> None:
        await exchange.hold()

    async def main(base_url: str) -> list[str]:
        upstream = AiohttpUpstream()
        tools = Tools(upstream, wall=time.time, mono=time.monotonic, list_timeout_s=0.2)
        look = await look_at_target(tools, Target("t", "vllm", base_url, api_key=Secret(KEY)), load_cards())
        await upstream.close()
        return [mistake.line for mistake in look.findings.mistakes]

    with Deployment(models=mute) as engine:
        (line,) = asyncio.run(main(engine.base_url))
    assert line.startswith('targets["t"].base_url: it gave no whole answer within 0.2 s; look at its log')


def test_a_port_that_takes_no_tls_in_time_is_one_line(tmp_path: Path) -> None:
    async def mute(exchange: Exchange) -> None:
        await exchange.hold()

    with Deployment(models=mute) as engine:
        outcome = check(tmp_path, target(f"https://127.0.0.1:{engine.port}/v1", extra="connect_timeout_s = 0.2"))
    assert f"no connection to 127.0.0.1:{engine.port} within 0.2 s" in outcome.line


def test_a_server_that_is_still_loading_is_one_line(tmp_path: Path) -> None:
    loading = {"status": 503, "json": {"error": {"message": "Loading model", "code": 503}}}
    with Deployment(models=loading) as engine:
        outcome = check(tmp_path, target(engine.base_url))
    assert 'targets["t"]: its model list was answered with 503: Loading model; look at its log' in outcome.line


def test_a_redirect_is_one_line_with_its_own_remedy(tmp_path: Path) -> None:
    moved = {"status": 301, "text": "", "headers": {"Location": "https://api.example/v1/models"}}
    with Deployment(models=moved) as engine:
        outcome = check(tmp_path, target(engine.base_url))
    assert "redirects to https://api.example" in outcome.line
    assert outcome.line.endswith("name the final address in base_url")


# --- TLS ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    return self_signed(tmp_path_factory.mktemp("tls"), "IP:127.0.0.1")


def test_a_self_signed_certificate_is_one_line(tmp_path: Path, tls: tuple[Path, object]) -> None:
    with Deployment(tls=tls[1]) as engine:
        outcome = check(tmp_path, target(engine.base_url))
        assert engine.probes == []
    assert "was not accepted: self-signed certificate; " in outcome.line
    assert "SSL_CERT_FILE" in outcome.line


def test_a_known_issuer_makes_it_well(tmp_path: Path, tls: tuple[Path, object]) -> None:
    with Deployment(tls=tls[1]) as engine:
        outcome = check(tmp_path, target(engine.base_url), env={"SSL_CERT_FILE": str(tls[0])})
    assert outcome.code == 0, outcome.out


def test_a_certificate_for_another_name_is_one_line(tmp_path: Path, tls: tuple[Path, object]) -> None:
    with Deployment(tls=tls[1]) as engine:
        url = f"https://localhost:{engine.port}/v1"
        outcome = check(tmp_path, target(url), env={"SSL_CERT_FILE": str(tls[0])})
    assert "Hostname mismatch" in outcome.line
    assert outcome.line.endswith("write into base_url the host name that the certificate is for")


def test_https_to_a_plain_server_is_one_line(tmp_path: Path) -> None:
    async def main() -> str:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return (await asyncio.to_thread(check, tmp_path, target(f"https://127.0.0.1:{port}/v1"))).line

    assert asyncio.run(main()).endswith("check https:// in its address")


def test_http_to_a_tls_server_is_one_line(tmp_path: Path, tls: tuple[Path, object]) -> None:
    with Deployment(tls=tls[1]) as engine:
        outcome = check(tmp_path, target(engine.base_url.replace("https", "http")))
    assert outcome.line.startswith('targets["t"].base_url: ')
    assert outcome.line.endswith("check http:// or https:// and the port in base_url, and its log")


# --- keys -----------------------------------------------------------------------------------------------------


def test_a_wrong_key_is_one_line(tmp_path: Path) -> None:
    with Deployment(models=behind("another", listing("kimi"))) as engine:
        outcome = check(tmp_path, target(engine.base_url))
    assert outcome.line == (
        'targets["t"].api_key_env: the key was refused (401: Unauthorized); '
        "put the right key into the variable or file that the target names"
    )


def test_a_missing_key_is_one_line(tmp_path: Path) -> None:
    with Deployment() as engine:
        config = target(engine.base_url).replace('api_key_env = "CHECK_KEY"\n', "")
        assert "it wants a key and none is configured (401: Unauthorized); " in check(tmp_path, config).line


def test_a_wrong_key_is_found_where_the_list_is_open_to_everybody(tmp_path: Path) -> None:
    with Deployment([UNAUTHORIZED], models=listing("kimi")) as service:
        outcome = check(tmp_path, target(service.base_url, dialect="openrouter"))
        (sent,) = service.requests
    assert outcome.line.startswith('targets["t"].api_key_env: the key was refused (401: Invalid Authentication); ')
    assert sent.json["messages"] == []  # refused before anything is generated


def test_a_good_key_where_the_list_is_open_is_not_refused(tmp_path: Path) -> None:
    with Deployment([NO_MESSAGES], models=listing("kimi")) as service:
        outcome = check(tmp_path, target(service.base_url, dialect="openrouter", extra=PRICES))
    assert outcome.result("key").endswith("not refused")


def test_a_list_behind_the_key_proves_it_without_a_request(tmp_path: Path) -> None:
    with Deployment() as engine:
        outcome = check(tmp_path, target(engine.base_url, extra=PRICES))
        assert engine.requests == []
    assert outcome.result("key").endswith("accepted")


@contextmanager
def moonshot(host: str, directory: Path) -> Iterator[dict[str, str]]:
    """The environment in which https://<host>/v1 is a service that refuses every key."""
    cert, context = self_signed(directory, f"DNS:{host}")
    with Deployment(models=UNAUTHORIZED, tls=context) as service, tunnel(service.port) as (proxy, asked):
        yield {"HTTPS_PROXY": proxy, "SSL_CERT_FILE": str(cert)}
        assert set(asked) == {f"{host}:443"}


@pytest.mark.parametrize(("here", "there"), [("cn", "ai"), ("ai", "cn")])
def test_a_key_for_the_other_host_is_one_line_that_names_it(tmp_path: Path, here: str, there: str) -> None:
    with moonshot(f"api.moonshot.{here}", tmp_path) as env:
        outcome = check(tmp_path, target(f"https://api.moonshot.{here}/v1", dialect="moonshot"), env=env)
    assert f"the key was refused by api.moonshot.{here} (401: Invalid Authentication); " in outcome.line
    assert f"most likely it is a key of api.moonshot.{there}" in outcome.line
    assert f'set base_url = "https://api.moonshot.{there}/v1"' in outcome.line


def test_a_host_that_bills_in_another_currency_is_noted_as_unpriced(tmp_path: Path) -> None:
    host = "api.moonshot.cn"
    cert, context = self_signed(tmp_path, f"DNS:{host}")
    config = target(f"https://{host}/v1", dialect="moonshot", model="kimi-k3.1-pro")
    models = behind(KEY, listing("kimi-k3.1-pro"))
    with Deployment(models=models, tls=context) as service, tunnel(service.port) as (proxy, _):
        outcome = check(tmp_path, config, env={"HTTPS_PROXY": proxy, "SSL_CERT_FILE": str(cert)})
    assert outcome.code == 0
    assert outcome.result("model").endswith("unpriced")
    (note,) = [line for line in outcome.lines if line.startswith("note: ")]
    assert "api.moonshot.cn does not bill in USD, so its requests are booked unpriced" in note


def test_a_key_in_clear_to_a_public_host_is_one_line_and_is_not_sent(tmp_path: Path) -> None:
    with Deployment() as proxy:
        outcome = check(
            tmp_path,
            target("http://8.8.8.8/v1"),
            env={"HTTP_PROXY": f"http://127.0.0.1:{proxy.port}"},
        )
        assert proxy.connections == 0
    assert outcome.line.startswith(
        'targets["t"].base_url: 8.8.8.8 is a public address and http:// would send the key in clear; write https://'
    )


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_key_is_not_printed_even_where_the_target_repeats_it(tmp_path: Path, output: str) -> None:
    echo = {"status": 500, "json": {"error": {"message": f"I got {KEY[:12]} and {KEY} from you"}}}
    with Deployment(models=echo) as engine:
        outcome = check(tmp_path, target(engine.base_url), "--format", output)  # fails where it stands anywhere
    assert outcome.code == 1
    assert "from you" in outcome.out


# --- base_url and models --------------------------------------------------------------------------------------


def test_a_base_url_without_v1_is_one_line(tmp_path: Path) -> None:
    with Deployment() as engine:
        base = engine.base_url.removesuffix("/v1")
        outcome = check(tmp_path, target(base))
    assert outcome.line == (
        f'targets["t"].base_url: {base} does not end in /v1, and {base}/models gives 404; '
        f'write base_url = "{base}/v1"'
    )


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 404, "text": "<html>not here</html>"},
        {"status": 200, "text": "<!doctype html><title>Welcome</title>"},
        {"status": 200, "json": {"models": []}},
    ],
)
def test_an_address_that_is_no_api_is_one_line(tmp_path: Path, answer: dict[str, object]) -> None:
    with Deployment(models=answer) as site:
        outcome = check(tmp_path, target(site.base_url))
    assert "so this is not the address of the API; " in outcome.line


def test_an_unknown_model_is_one_line_with_the_closest(tmp_path: Path) -> None:
    with Deployment(models=behind(KEY, listing("kimi-k3.1-pro", "moonshot-v1"))) as engine:
        outcome = check(tmp_path, target(engine.base_url, model="kimi-k3.1"))
    assert outcome.line == (
        'targets["t"].models: "kimi-k3.1" is not among the models it lists; did you mean "kimi-k3.1-pro"?'
    )


def test_an_unknown_model_of_an_engine_with_one_is_told_its_only_one(tmp_path: Path) -> None:
    with Deployment(models=behind(KEY, listing("/data/weights"))) as engine:
        outcome = check(tmp_path, target(engine.base_url, model="moonshotai/Kimi-K3.1-Pro"))
    assert outcome.line.endswith('its only model is "/data/weights": write { "kimi" = "/data/weights" }')


def test_the_only_model_of_an_engine_that_nobody_stated_is_taken(tmp_path: Path) -> None:
    with Deployment(models=listing("/data/weights")) as engine:
        outcome = check(tmp_path, "", env={"VLLM_BASE_URL": engine.base_url})
    assert outcome.code == 0, outcome.out
    assert "vllm /data/weights" in outcome.result("model")


def test_limits_that_refuse_the_list_are_no_mistake(tmp_path: Path) -> None:
    full = {"status": 429, "json": {"error": {"message": "slow down", "type": "rate_limit_reached_error"}}}
    with Deployment(models=full) as service:
        outcome = check(tmp_path, target(service.base_url))
    assert outcome.code == 0
    assert "not checked: its limits refuse its list: slow down" in outcome.result("target")


# --- clocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "said"), [(120, "120 s ahead of"), (-120, "120 s behind")])
def test_a_skewed_clock_is_one_line(tmp_path: Path, seconds: float, said: str) -> None:
    with Deployment(models=behind(KEY, listing("kimi", headers=skewed(seconds)))) as engine:
        outcome = check(tmp_path, target(engine.base_url))
    assert outcome.line.startswith("clock: the clocks differ: t's is 1")
    assert said.partition(" ")[2] in outcome.line
    assert "set the one that is wrong by NTP" in outcome.line


@pytest.mark.parametrize(("seconds", "others"), [(20, {}), (-20, {}), (-600, {"Age": "600"})])
def test_a_clock_within_the_limit_or_in_an_old_copy_is_well(
    tmp_path: Path, seconds: float, others: dict[str, str]
) -> None:
    answer = listing("kimi", headers={**skewed(seconds), **others})
    with Deployment(models=behind(KEY, answer)) as engine:
        outcome = check(tmp_path, target(engine.base_url))
    assert outcome.code == 0, outcome.out
    assert "of this machine's" in outcome.result("clock")


@pytest.mark.parametrize("headers", [{}, {"Date": "yesterday"}])
def test_a_target_that_tells_no_time_leaves_the_clock_unchecked(tmp_path: Path, headers: dict[str, str]) -> None:
    with Deployment(models=behind(KEY, listing("kimi", headers=headers))) as engine:
        outcome = check(tmp_path, target(engine.base_url))
    assert outcome.code == 0
    assert "not checked: no target told its time" in outcome.result("clock")


def test_clocks_that_agree_against_ours_are_one_line_for_all(tmp_path: Path) -> None:
    answer = behind(KEY, listing("kimi", headers=skewed(3600)))
    with Deployment(models=answer) as one, Deployment(models=answer) as two:
        outcome = check(tmp_path, target(one.base_url, name="a") + target(two.base_url, name="b"))
    assert outcome.line.startswith("clock: this machine's clock is 3,")
    assert "behind that of a, b; set it by NTP" in outcome.line


# --- several at once ------------------------------------------------------------------------------------------


def test_targets_are_asked_at_once_and_shown_in_their_order(tmp_path: Path) -> None:
    async def slow(exchange: Exchange) -> None:
        await exchange.pause(0.6)
        exchange.close()

    names = [f"t{number}" for number in range(8)]
    with Deployment(models=slow) as engine:
        began_s = time.monotonic()
        outcome = check(tmp_path, "".join(target(engine.base_url, name=name) for name in names))
        took_s = time.monotonic() - began_s
    assert [line.partition('"')[2].partition('"')[0] for line in outcome.mistakes] == names
    assert [line.split()[1] for line in outcome.lines if line.startswith("target ")] == names
    assert took_s < 3  # one after the other they would take 4.8 s


def test_a_terminal_sees_what_is_waited_for_and_a_file_does_not(tmp_path: Path) -> None:
    async def slow(exchange: Exchange) -> None:
        await exchange.pause(0.3)
        await behind(KEY, listing("kimi"))(exchange)

    with Deployment(models=slow) as engine:
        config = f"[server]\nport = 0\n{SMALL_JOURNAL}{target(engine.base_url, name='slow-one')}"
        (tmp_path / "kimi-gateway.toml").write_text(config)
        ours, theirs = pty.openpty()
        env = {"CHECK_KEY": KEY}
        ended = run_module("kimi_gateway", "check", directory=tmp_path, env=env, stderr=os.ttyname(theirs))
        os.close(theirs)
        seen = os.read(ours, 65536).decode()
        os.close(ours)
    assert ended.returncode == 0, ended.stdout
    assert "waiting for slow-one" in seen
    assert seen.endswith("\r\x1b[2K")  # and the line is gone at the end
    assert "waiting" not in ended.stdout
