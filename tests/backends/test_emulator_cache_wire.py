"""The emulator's prefix cache over real sockets: counts, headers, owners, clock."""

import httpx2
import pytest

from support.emulated import PRO, chat, emulator

ASKED = {"role": "user", "content": "Say hello."}


LONG = {"role": "user", "content": "word " * 600}  # 750 tokens


def test_a_growing_conversation_is_read_from_the_cache() -> None:
    with emulator() as client:
        first = chat(client, LONG)
        turn = [LONG, first["choices"][0]["message"], ASKED]
        second = chat(client, *turn)
        other_effort = chat(client, *turn, reasoning_effort="low")
        other_tier = chat(client, *turn, model="kimi-k3.1-pro-highspeed")
    details = [answer["usage"]["prompt_tokens_details"] for answer in (first, second, other_effort, other_tier)]
    assert details[0] == {"cached_tokens": 0, "cache_write_tokens": 512}
    assert details[1]["cached_tokens"] == 512
    assert details[1]["cache_write_tokens"] == (second["usage"]["prompt_tokens"] - 1) // 256 * 256 - 512
    assert details[2]["cached_tokens"] == details[3]["cached_tokens"] == 0


def ttl_headers(response: httpx2.Response) -> tuple[str | None, str | None]:
    name = "Msh-Usage-Cache-Write-Tokens-"
    return response.headers.get(name + "5m"), response.headers.get(name + "1h")


@pytest.mark.parametrize(("on", "expected"), [(False, (None, None)), (True, ("0", "512"))])
def test_the_split_by_lifetime_is_in_the_headers_of_unstreamed_answers_and_of_streams_if_set(
    on: bool, expected: tuple[str | None, str | None]
) -> None:
    body = {"model": PRO, "messages": [LONG], "prompt_cache_options": {"mode": "implicit", "ttl": "1h"}}
    with emulator(stream_ttl_headers=on) as client:
        whole = client.post("/v1/chat/completions", json=body, headers={"authorization": "Bearer one"})
        streamed = client.post(
            "/v1/chat/completions", json={**body, "stream": True}, headers={"authorization": "Bearer two"}
        )
    assert ttl_headers(whole) == ("0", "512")
    assert ttl_headers(streamed) == expected


def test_keys_have_caches_of_their_own_unless_one_organisation_holds_them() -> None:
    def cached(client: httpx2.Client, key: str) -> int:
        body = {"model": PRO, "messages": [LONG]}
        answer = client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}).json()
        tokens: int = answer["usage"]["cached_tokens"]
        return tokens

    with emulator(organisations={"one": "org", "two": "org"}) as client:
        assert [cached(client, key) for key in ("one", "two", "three", "three")] == [0, 512, 0, 512]


def test_the_clock_can_be_moved_past_a_lifetime() -> None:
    with emulator() as client:
        chat(client, LONG)
        client.post("/emulator/clock", json={"advance_s": 299})
        assert chat(client, LONG)["usage"]["cached_tokens"] == 512
        client.post("/emulator/clock", json={"advance_s": 301})
        assert chat(client, LONG)["usage"]["cached_tokens"] == 0
