"""The cases of kinds params, tools, partial and multimodal that hold without thinking store and strict mode."""

from typing import Any

import pytest

from support.cases import case
from support.lab import Heard, Lab

OK = {"status": 200, "json_usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
HI: dict[str, Any] = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "hi"}]}
ALL = ("moonshot", "openrouter", "vllm", "sglang")
ENGINES = ("vllm", "sglang")


def count(lab: Lab, target: str) -> int:
    return len(lab.upstreams[target].requests)


def served(lab: Lab, request: Any, target: str = "moonshot") -> tuple[Heard, Any]:
    """The answer to a request that is served, and the body the upstream got."""
    heard = lab.ask(request, OK, target=target)
    assert heard.status == 200, heard.raw
    return heard, lab.sent(target)


def refused(lab: Lab, request: Any, param: str, target: str = "moonshot") -> None:
    """The request is a 400 about `param`, and nothing went upstream."""
    before = count(lab, target)
    heard = lab.ask(request, target=target)
    assert (heard.status, heard.error["type"], heard.error["param"]) == (400, "invalid_request_error", param)
    assert count(lab, target) == before


def test_par_01_fixed_sampling(shared_lab: Lab) -> None:
    request = case("par-01")["given"]["client_request"]
    heard, body = served(shared_lab, request)
    assert "temperature" not in body
    assert "temperature" in heard.headers["x-kimi-adjusted"]
    for value in (1, 1.0):
        heard, body = served(shared_lab, {**HI, "temperature": value})
        assert body.get("temperature", 1) == 1
        assert "x-kimi-adjusted" not in heard.headers
    for engine in ENGINES:
        assert float(served(shared_lab, request, engine)[1]["temperature"]) == 0.5


@pytest.mark.parametrize("target", ALL)
def test_par_02_effort_words(shared_lab: Lab, target: str) -> None:
    expected = case("par-02")["expect"]["upstream_reasoning_effort"]
    for word, sent in expected.items():
        fields: dict[str, Any] = (
            {"reasoning_effort": None if word == "null" else word} if word != "(absent)" else {}
        )
        heard, body = served(shared_lab, {**HI, **fields}, target)
        nested = (body.get("reasoning") or {}).get("effort")
        found = nested if target == "openrouter" else body.get("reasoning_effort")
        assert found == (None if sent == "absent" else sent)
        assert heard.headers["x-kimi-effort"] == ("unset" if sent == "absent" else sent)


@pytest.mark.parametrize("word", ["none", "off", ""])
def test_par_02_words_that_cannot_be_honoured(shared_lab: Lab, word: str) -> None:
    refused(shared_lab, {**HI, "reasoning_effort": word}, "reasoning_effort")


def test_par_02_none_is_a_capability_of_engines(shared_lab: Lab) -> None:
    heard, body = served(shared_lab, {**HI, "reasoning_effort": "none"}, "vllm")
    assert (body["reasoning_effort"], heard.headers["x-kimi-effort"]) == ("none", "none")


def test_par_03_the_thinking_object(shared_lab: Lab) -> None:
    requests = case("par-03")["given"]["client_requests"]
    for target in ALL:
        _, body = served(shared_lab, {**HI, **requests["A"]}, target)
        assert "low" in (body.get("reasoning_effort"), (body.get("reasoning") or {}).get("effort"))
        assert "thinking" not in body
        assert "thinking" not in served(shared_lab, {**HI, **requests["B"]}, target)[1]
    refused(shared_lab, {**HI, **requests["C"]}, "thinking")
    assert served(shared_lab, {**HI, **requests["C"]}, "vllm")[1]["reasoning_effort"] == "none"


@pytest.mark.parametrize(("name", "limit"), [("A", 900), ("B", 1500), ("C", None), ("D", None)])
def test_par_04_max_tokens(shared_lab: Lab, name: str, limit: int | None) -> None:
    _, body = served(shared_lab, {**HI, **case("par-04")["given"]["client_requests"][name]})
    assert "max_tokens" not in body
    assert body.get("max_completion_tokens") == limit


@pytest.mark.parametrize("target", ALL)
def test_par_05_the_developer_role(shared_lab: Lab, target: str) -> None:
    _, body = served(shared_lab, case("par-05")["given"]["client_request"], target)
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


def test_par_06_a_named_tool(shared_lab: Lab) -> None:
    heard, body = served(shared_lab, case("par-06")["given"]["client_request"])
    assert body["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["wx"]
    assert "tool_choice" in heard.headers["x-kimi-adjusted"]
    for choice in ("auto", "none", "required"):
        request = case("par-06")["given"]["client_request"] | {"tool_choice": choice}
        heard, body = served(shared_lab, request)
        assert (body["tool_choice"], len(body["tools"])) == (choice, 2)
        assert "x-kimi-adjusted" not in heard.headers


def test_par_07_several_answers_and_no_messages(shared_lab: Lab) -> None:
    requests = case("par-07")["given"]["client_requests"]
    refused(shared_lab, requests["A"], "n")
    refused(shared_lab, requests["B"], "messages")
    assert served(shared_lab, requests["C"])[1].get("n", 1) == 1


@pytest.mark.parametrize("target", ALL)
def test_par_08_fields_of_others(shared_lab: Lab, target: str) -> None:
    expected = case("par-08")["expect"]
    wanted = expected["vllm_sglang" if target in ENGINES else target]["upstream_body"]
    heard, body = served(shared_lab, case("par-08")["given"]["client_request"], target)
    assert {name: body[name] for name in wanted["has"]} == wanted["has"]
    assert not set(wanted["lacks"]) & set(body)
    assert body["frobnicate"] == 1
    assert set(wanted["lacks"]) <= set(heard.headers["x-kimi-adjusted"].split(","))


def test_sch_01_a_schema_that_moonshot_refuses_is_mended_and_said(shared_lab: Lab) -> None:
    found = case("sch-01")
    request = found["given"]["client_request"]
    heard, body = served(shared_lab, request)
    properties = body["tools"][0]["function"]["parameters"]["properties"]
    assert properties == found["expect"]["upstream_body"]["tools[0].function.parameters.properties"]
    assert "tools[0].function.parameters" in heard.headers["x-kimi-adjusted"]
    for target in ("openrouter", *ENGINES):
        assert served(shared_lab, request, target)[1]["tools"] == request["tools"]


@pytest.mark.parametrize("case_id", ["tool-01", "tool-02", "tool-03"])
def test_tool_calls_are_assembled_by_index(shared_lab: Lab, case_id: str) -> None:
    found = case(case_id)
    heard = shared_lab.ask(found["given"]["client_request"], *found["given"]["upstream"], target=found["upstream"])
    assert heard.tool_calls() == found["expect"]["client"]["stream"]["tool_calls"]
    indexes = [piece["index"] for delta in heard.deltas() for piece in delta.get("tool_calls") or []]
    assert sorted(set(indexes)) == [0, 1]


def test_tool_04_ids_that_repeat_are_left_alone(shared_lab: Lab) -> None:
    request = case("tool-04")["given"]["client_request"]
    _, body = served(shared_lab, request)
    assert body["messages"] == request["messages"]


@pytest.mark.parametrize("target", ENGINES)
def test_part_01_a_prefix_is_spelt_for_engines(shared_lab: Lab, target: str) -> None:
    found = case("part-01")
    _, body = served(shared_lab, found["given"]["client_request"], target)
    wanted = found["expect"]["vllm_sglang"]["upstream_body"]
    assert {name: body[name] for name in wanted["has"]} == wanted["has"]
    assert body["messages"][1] == wanted["messages[1]"]


def test_part_01_moonshot_keeps_its_own_spelling(shared_lab: Lab) -> None:
    _, body = served(shared_lab, case("part-01")["given"]["client_request"])
    assert body["messages"][1]["partial"] is True


@pytest.mark.parametrize(
    ("request_fields", "param"),
    [
        (
            {
                "messages": [
                    {"role": "assistant", "content": "a", "partial": True},
                    {"role": "user", "content": "hi"},
                ]
            },
            "messages[0].partial",
        ),
        ({"messages": [{"role": "user", "content": "hi", "partial": True}]}, "messages[0].partial"),
        (
            {
                "messages": [*HI["messages"], {"role": "assistant", "content": "a", "partial": True}],
                "response_format": {"type": "json_object"},
            },
            "messages[1].partial",
        ),
    ],
)
@pytest.mark.parametrize("target", ["moonshot", "vllm"])
def test_part_01_a_prefix_in_the_wrong_place_is_refused(
    shared_lab: Lab, target: str, request_fields: dict[str, Any], param: str
) -> None:
    refused(shared_lab, {**HI, **request_fields}, param, target)


@pytest.mark.parametrize("kind", ["avif", "bmp-as-png", "svg+xml"])
def test_mm_01_a_picture_that_is_not_taken(shared_lab: Lab, kind: str) -> None:
    request = case("mm-01")["given"]["client_request"]
    if kind != "avif":
        url = (
            "data:image/png;base64,Qk0AAAAAAAAA" if kind == "bmp-as-png" else "data:image/svg+xml;base64,PHN2Zz4="
        )
        part = {"type": "image_url", "image_url": {"url": url}}
        request = {**request, "messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, part]}]}
    refused(shared_lab, request, "messages[0].content[1]")


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,iVBORw0KGgo=",
        "data:image/jpeg;base64,/9j/4AAQ",
        "data:image/gif;base64,R0lGODlh",
        "data:image/webp;base64,UklGRgAAAABXRUJQ",
    ],
)
def test_mm_01_pictures_that_are_taken(shared_lab: Lab, url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    served(shared_lab, {**HI, "messages": [{"role": "user", "content": [part]}]})


def test_mm_02_a_public_address_a_bare_string_and_a_list_in_a_string(shared_lab: Lab) -> None:
    requests = {name: {**HI, **fields} for name, fields in case("mm-02")["given"]["client_requests"].items()}
    refused(shared_lab, requests["A"], "messages[0].content[0]")
    for target in ("openrouter", *ENGINES):
        assert served(shared_lab, requests["A"], target)[1]["messages"] == requests["A"]["messages"]
    for name in "BC":
        assert served(shared_lab, requests[name])[1]["messages"] == requests[name]["messages"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("wish", "serves"), [("highspeed", "highspeed"), ("flex", "standard"), (None, None)])
def test_the_answer_says_which_tier_served_where_the_request_named_one(
    shared_lab: Lab, wish: str | None, serves: str | None, stream: bool
) -> None:
    request = {**HI, "stream": stream, **({"service_tier": wish} if wish else {})}
    model = "kimi-k3.1-pro" + ("-highspeed" if serves == "highspeed" else "")
    heard, body = served(shared_lab, request)
    assert (body["model"], "service_tier" in body) == (model, False)
    answer = heard.chunks[0] if stream else heard.json
    assert (answer.get("service_tier"), answer["model"]) == (serves, model)
    assert heard.headers["x-kimi-tier"] == (serves or "standard")
    assert ("service_tier" in heard.headers.get("x-kimi-adjusted", "")) is (wish == "flex")


def test_an_anomaly_is_named_once(shared_lab: Lab) -> None:
    heard = shared_lab.ask(HI, *case("use-07")["given"]["upstream"])
    names = shared_lab.row(heard)["anomaly"].split(",")
    assert len(names) == len(set(names))
