"""The report as a page: whole by itself, readable offline and without a script, and nothing in it runs."""

import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from typing_extensions import override

from pricing.ledger.row import LedgerRow
from support.ledger_rows import START, USD, settled_row
from support.pricing_cli import book_rows, pricing_json, run_pricing

HOSTILE = "</svg><script>alert(1)</script><img src=x onerror='a()'>\x1b[2J&\"'"
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(HTMLParser):
    """Elements with their attributes, and the text of table cells by row. Fails where tags do not match."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert self._open == []

    @override
    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    @override
    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    @override
    def handle_data(self, data: str) -> None:
        self.words += data
        if self._open and self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def page(directory: Path, *words: str) -> tuple[str, Page]:
    markup = run_pricing(directory, "report", *words, "--format", "html").stdout
    return markup, Page(markup)


def ledger() -> list[LedgerRow]:
    return [
        settled_row("a", cost_nano=3 * USD + 1),
        settled_row("b", key="team-b", cost_nano=USD, estimated=True),
        settled_row("c", key="team-c", cost_nano=2, assumed=True, started_at=START - 86_400),
        settled_row("u", key="team-u", cost_nano=None, cost_source="unpriced"),
    ]


def test_the_page_has_every_exact_figure_of_the_json_report(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    found = pricing_json(tmp_path, "report", "--by", "key")
    markup, shown = page(tmp_path, "--by", "key")
    for name in ("total_usd", "measured_usd", "estimated_usd", "assumed_usd"):
        assert f"<dd>{found[name]}</dd>" in markup
    assert f"<dd>{found['unpriced_requests']}</dd>" in markup
    head, *rows, total = shown.rows
    assert head[:3] == ["key", "requests", "prompt_tokens"]
    by_key = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert by_key["team-a"]["cost_usd"] == "3.000000001"
    assert by_key["team-c"]["assumed_usd"] == "0.000000002"
    assert by_key["team-u"]["cost_usd"] == "–"
    assert dict(zip(head, total, strict=True))["cost_usd"] == found["total_usd"] == "4.000000003"
    assert found["ledger"] in shown.words
    assert re.search(r"as of 20\d\d-\d\d-\d\dT", shown.words)
    assert "1 unpriced: no known price covers them" in shown.words
    assert "every journal record is in it" in shown.words


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    book_rows(tmp_path, [*ledger(), settled_row("h", key=HOSTILE, tags={"team": HOSTILE}, route=HOSTILE)])
    for by in ("key", "tag:team", "day,key", "route,key", "hour,tag:team"):
        markup, shown = page(tmp_path, "--by", by)
        tags = {tag for tag, _ in shown.elements}
        assert not tags & {"script", "img", "link", "iframe", "object", "embed", "base", "use", "image", "a"}
        names = {name for _, attributes in shown.elements for name in attributes}
        assert not [name for name in names if name.startswith("on") or name in ("src", "href", "xlink:href")]
        assert set(re.findall(r"https?://[^\s\"'<]*", markup)) <= {"http://www.w3.org/2000/svg"}
        assert "@import" not in markup
        assert "url(" not in markup
        assert "\x1b" not in markup
        assert ("meta", "default-src 'none'; style-src 'unsafe-inline'") in [
            (tag, attributes.get("content")) for tag, attributes in shown.elements
        ]


def test_a_hostile_name_is_shown_as_text(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row("h", key=HOSTILE)])
    _, shown = page(tmp_path, "--by", "key")
    assert shown.rows[1][0] == HOSTILE.replace("\x1b", "\ufffd")


def test_the_charts_are_whole_drawings_that_say_exact_amounts(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    for by in ("key", "day,key", "hour"):
        markup, _ = page(tmp_path, "--by", by)
        drawings = [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", markup, re.DOTALL)]
        assert len(drawings) == 2
        names = {drawing.get("id") for drawing in drawings}
        assert names == {"costs", "tokens"}
        titles = " ".join(one.text or "" for one in drawings[0].iter("{http://www.w3.org/2000/svg}title"))
        assert "0.000000002 USD" in titles
        assert "var(--ink)" in markup


def test_many_groups_are_all_in_the_table_and_the_chart_says_what_it_leaves_out(tmp_path: Path) -> None:
    book_rows(tmp_path, [settled_row(f"r{at}", key=f"key-{at:03}", cost_nano=at * USD) for at in range(1, 61)])
    _, shown = page(tmp_path, "--by", "key")
    assert len(shown.rows) == 62
    assert "the 31 dearest of 60" in shown.words
    book_rows(tmp_path, [settled_row(f"d{at}", started_at=START - at * 86_400, cost_nano=1) for at in range(40)])
    _, shown = page(tmp_path, "--by", "day")
    assert "the last 31 of 40" in shown.words


def test_light_and_dark_follow_the_reader(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    markup, _ = page(tmp_path)
    assert "color-scheme: light dark" in markup
    assert "@media (prefers-color-scheme: dark)" in markup


def test_the_period_before_and_the_cut_are_on_the_page(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    words = ("--by", "key", "--since", "2026-11-30", "--until", "2026-12-01", "--compare-previous", "--top", "1")
    markup, shown = page(tmp_path, *words)
    assert "<dt>period before</dt><dd>0.000000002</dd>" in markup
    assert "previous_cost_usd" in shown.rows[0]
    assert shown.rows[2][0] == "other"


def test_a_page_without_requests_says_so(tmp_path: Path) -> None:
    book_rows(tmp_path, [])
    markup, shown = page(tmp_path)
    assert "<svg" not in markup
    assert "no requests from the beginning to now" in shown.words
    _, shown = page(tmp_path, "--by", "")
    assert "no requests" in shown.words


def test_drawing_leaves_no_hook_in_pythons_imports(tmp_path: Path) -> None:
    book_rows(tmp_path, ledger())
    page(tmp_path)
    assert "pygal" in sys.modules
    assert [finder for finder in sys.meta_path if type(finder).__module__.startswith("pygal")] == []
