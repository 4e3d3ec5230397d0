"""The thought of a message or delta in one spelling: `reasoning_content`, as Moonshot writes it.

Upstreams carry one text under up to three names at once: `reasoning_content` (Moonshot, SGLang, llama.cpp),
`reasoning` (vLLM, OpenRouter) and the pieces of `reasoning_details` (OpenRouter). They are views of the same text:
one is taken, never two. `reasoning_details` stay as they came, because OpenRouter wants them back unchanged.
"" (an empty thought), null and absent are three facts and stay apart.
"""

from enum import IntEnum

from backends.json import Json, JsonObject, as_list, as_str


class View(IntEnum):
    """Where a thought was read from, the better source the higher. Texts of a poorer view repeat a better one."""

    NONE = 0
    SUMMARY = 1
    TEXT = 2
    PLAIN = 3


def respell_thought(part: JsonObject, seen: View = View.NONE) -> View:
    """The best view of the thought so far; `part`, a message or a delta, then holds it as `reasoning_content`.

    Changes `part` in place. `seen` is what the earlier deltas of the same choice gave: pieces of
    `reasoning_details` are text only while no plain field has carried any. `reasoning` is taken out where it is a
    string or null; null stays null under the new name, and "" wins over null.
    """
    plain = part.get("reasoning_content")
    other = None
    if "reasoning" in part:
        other = part["reasoning"]
        if other is None or isinstance(other, str):
            del part["reasoning"]
            part.setdefault("reasoning_content", None)
    if plain and isinstance(plain, str):
        return View.PLAIN
    if other and isinstance(other, str):
        part["reasoning_content"] = other
        return View.PLAIN
    text, view = details_text(part.get("reasoning_details"))
    if text and view >= seen:
        part["reasoning_content"] = text
        return view
    if plain == "" or other == "":
        part["reasoning_content"] = ""
    return seen


def details_text(details: Json) -> tuple[str, View]:
    """The readable text of `reasoning_details` and its kind; ("", View.NONE) where there is none.

    Summaries are left out where the same list has the text that they sum up; encrypted pieces have no text.
    """
    texts: list[str] = []
    summaries: list[str] = []
    for item in as_list(details):
        if isinstance(item, dict):
            texts.append(as_str(item.get("text")) or "")
            summaries.append(as_str(item.get("summary")) or "")
    if text := "".join(texts):
        return text, View.TEXT
    if summary := "".join(summaries):
        return summary, View.SUMMARY
    return "", View.NONE


def says_more_than_text(details: Json) -> bool:
    """The `reasoning_details` hold what no plain thought can carry: sealed data, a signature, an item of a kind
    that is not known here. Where they are left out, that is lost."""
    return any(
        not isinstance(item, dict)
        or bool(item.get("data") or item.get("signature"))
        or item.get("type", "reasoning.text") not in ("reasoning.text", "reasoning.summary")
        for item in as_list(details)
    )
