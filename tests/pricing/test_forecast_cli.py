"""`kimi-pricing estimate` as people and scripts run it."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from pricing.request_lines import read_requests
from support.pricing_cli import help_examples, pricing_json, run_pricing, too_wide
from support.shared import shared_path


def request(text: str = "Say hello.", **fields: Any) -> dict[str, Any]:
    """A small request."""
    return {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": text}], **fields}


def write(directory: Path, *requests: object) -> None:
    """Writes the first as request.json over several lines, all of them as requests.jsonl."""
    (directory / "request.json").write_text(json.dumps(requests[0], indent=2))
    (directory / "requests.jsonl").write_text("".join(json.dumps(one) + "\n" for one in requests))


def test_one_request_over_many_lines_is_estimated_at_every_offer(tmp_path: Path) -> None:
    write(tmp_path, request(reasoning_effort="low", max_completion_tokens=16_000))
    found = pricing_json(tmp_path, "estimate", "request.json", "--output-tokens", "2000")
    assert (found["requests"], found["bad_lines"], found["counted_by"]) == (1, 0, "estimate")
    (estimate,) = found["estimates"]
    assert estimate["line"] == 1
    assert "text estimated from its size" in estimate["prompt"]["error"]
    assert estimate["output"] == {"limit": 16_000, "limit_source": "request", "assumed": 2_000}
    offer = estimate["offers"][1]
    tokens = estimate["prompt"]["tokens"]
    assert (offer["seller"], offer["tier"], offer["ttl"]) == ("moonshot", "standard", "1h")
    assert offer["lines"][1] == {
        "case": "first",
        "meter": "write_1h",
        "tokens": tokens,
        "usd_per_mtok": "4.00",
        "usd": f"{tokens * 4 / 10**6:f}".rstrip("0"),
    }
    assert found["totals"][1]["first_total_usd"] == offer["first_total_usd"]


def test_with_the_vocabulary_only_the_frame_is_in_doubt(tmp_path: Path) -> None:
    write(tmp_path, request("The quick brown fox jumps over the lazy dog.", reasoning_effort="low"))
    variables = {"KIMI_TOKENIZER": str(shared_path("tokenizer/tiktoken.model"))}
    found = pricing_json(tmp_path, "estimate", "request.json", variables=variables)
    prompt = found["estimates"][0]["prompt"]
    assert (found["counted_by"], prompt["method"]) == ("vocabulary", "vocabulary")
    assert (prompt["low"], prompt["tokens"]) == (10, 99)
    assert "text estimated" not in prompt["error"]


def test_bad_lines_are_named_by_number_and_counted_and_exit_1(tmp_path: Path) -> None:
    good = json.dumps(request())
    text = f'{good}\n{{bad\n\n[]\n{good}\n{{"messages": 5}}\n{json.dumps(request(model="gpt"))}\n'
    (tmp_path / "mixed.jsonl").write_text(text)
    found = pricing_json(tmp_path, "estimate", "mixed.jsonl", expect=1)
    assert (found["requests"], found["bad_lines"]) == (2, 4)
    assert [problem["line"] for problem in found["problems"]] == [2, 4, 6, 7]
    assert [estimate["line"] for estimate in found["estimates"]] == [1, 5]
    table = run_pricing(tmp_path, "estimate", "mixed.jsonl", expect=1).stdout
    assert "mixed.jsonl: 2 requests, 4 bad lines" in table
    assert "line 4: a request is a JSON object, not an array" in table
    assert "line 6: messages must be an array" in table
    assert "line 7: nobody's price is known for the model 'gpt'; name another with --model" in table
    assert (
        "line 6: messages" in run_pricing(tmp_path, "estimate", "mixed.jsonl", "--format", "csv", expect=1).stderr
    )


def test_standard_input_is_read(tmp_path: Path) -> None:
    done = run_pricing(tmp_path, "estimate", "-", stdin=json.dumps(request()).encode())
    assert "standard input: 1 request" in done.stdout
    assert "no request in it" in run_pricing(tmp_path, "estimate", "-", stdin=b"\n", expect=1).stderr


def test_the_table_names_every_doubt_and_fits_its_page(tmp_path: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    nameless = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, picture]}],
        "max_completion_tokens": 1_048_576,
    }
    write(tmp_path, request(), nameless)
    printed = run_pricing(tmp_path, "estimate", "requests.jsonl").stdout
    for part in (
        "media parts (images, video, base64) that are in no count: 1",
        "requests that name no model, taken as Kimi K3.1 Pro: 1",
        "output limits lowered to what the window leaves: 1",
        "no upper bound",
        "unverified prices of moonshot/kimi-k3.1-pro-highspeed@2026-10-24 writes=replaces: cache_read",
        "--output-tokens N assumes a length",
    ):
        assert part in printed
    assert too_wide(printed) == []
    assumed = run_pricing(tmp_path, "estimate", "request.json", "--output-tokens", "2000", "--effort", "low,max")
    assert "2,000 per answer is your assumption" in assumed.stdout
    assert too_wide(assumed.stdout) == []


def test_csv_has_a_line_per_request_effort_and_offer(tmp_path: Path) -> None:
    write(tmp_path, request(), request())
    words = ("estimate", "requests.jsonl", "--tier", "standard", "--effort", "low,max", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(run_pricing(tmp_path, *words).stdout)))
    assert len(rows) == 2 * 2 * 3
    assert [row["line"] for row in rows[::6]] == ["1", "2"]
    assert rows[0]["warm_usd"] == f"{int(rows[0]['prompt_tokens']) * 200 / 10**9:.9f}".rstrip("0")
    assert rows[0]["assumed_usd"] == ""


def test_targets_of_the_configuration_are_offered_at_their_prices(tmp_path: Path) -> None:
    write(tmp_path, request(max_completion_tokens=1_000_000))
    (tmp_path / "kimi-gateway.toml").write_text(
        '[[targets]]\nname = "own"\ndialect = "vllm"\nbase_url = "http://127.0.0.1:9"\n'
        'prices = { input = 0.5, output = "1" }\n'
        '[[targets]]\nname = "bare"\ndialect = "sglang"\n'
        '[[targets]]\nname = "cn"\ndialect = "moonshot"\nbase_url = "https://api.moonshot.cn/v1"\n'
        '[[targets]]\nname = "hosted"\ndialect = "moonshot"\n'
    )

    def offers(*words: str) -> list[tuple[str, str | None]]:
        found = pricing_json(tmp_path, "estimate", "request.json", *words)["estimates"][0]["offers"]
        return [(offer["seller"], offer["lines"][3]["usd"]) for offer in found]

    assert offers()[-1] == ("target:own", "1")
    assert offers("--target", "own,bare,cn") == [("target:own", "1"), ("target:bare", None), ("target:cn", None)]
    assert {seller for seller, _ in offers("--target", "hosted")} == {"moonshot"}
    message = run_pricing(tmp_path, "estimate", "request.json", "--target", "owm", expect=2).stderr
    assert "did you mean 'own'?" in message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--tier", "fast"), "--tier: 'fast' is none of standard, highspeed"),
        (("--ttl", "2h"), "--ttl: '2h' is none of 5m, 1h"),
        (("--effort", "ultra"), "--effort: 'ultra' is none of low, high, max"),
        (("--seller", "moonshott"), "did you mean 'moonshot'?"),
        (("--target", "x"), "the configuration has no [[targets]]"),
    ],
)
def test_wrong_use_is_exit_2_with_what_was_expected(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    write(tmp_path, request())
    assert expected in run_pricing(tmp_path, "estimate", "request.json", *words, expect=2).stderr


def test_a_wrong_vocabulary_is_refused_and_not_guessed_around(tmp_path: Path) -> None:
    write(tmp_path, request())
    variables = {"KIMI_TOKENIZER": str(tmp_path / "absent")}
    message = run_pricing(tmp_path, "estimate", "request.json", expect=2, variables=variables).stderr
    assert "cannot be read" in message


def test_every_example_of_its_help_runs(tmp_path: Path) -> None:
    write(tmp_path, request(), request(reasoning_effort="high"))
    examples = list(help_examples(tmp_path, "estimate"))
    assert len(examples) >= 4
    for words in examples:
        assert run_pricing(tmp_path, *words).stdout


@pytest.mark.parametrize(
    ("content", "numbers", "problems"),
    [
        (b'{"a":1}\n\n{"a":2}', [1, 3], 0),
        (b'\xef\xbb\xbf{"a":1}\r\n{"a":2}\r\n', [1, 2], 0),
        (b'\n{\n"a": 1\n}\n', [2], 0),
        (b'{"a":\n{"a":2}\n', [1, 2], 1),
        (b"{\n{\n", [1], 1),
        (b"5\n", [1], 1),
        (b'{"a":1}\n\xff\xfe\n', [1, 2], 1),
        (b"[" * 100_000, [1], 1),
        (b"", [], 0),
    ],
)
def test_requests_are_found_one_a_line_or_over_many(content: bytes, numbers: list[int], problems: int) -> None:
    found = list(read_requests(io.BytesIO(content)))
    assert [line.number for line in found] == numbers
    assert sum(bool(line.problem) for line in found) == problems
    assert all((line.request is None) == bool(line.problem) for line in found)
    assert not found or found[-1].end_byte <= len(content)
