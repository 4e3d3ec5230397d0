"""The report as one page of HTML: charts as inline SVG, tables, no script, nothing to fetch, light and dark.

Every figure on it is the exact decimal string of the JSON report; only the length of a bar is rounded. What came
from outside is escaped, and a policy in the page forbids it to load anything.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from pricing.ledger.shown import instant_text
from pricing.ledger.store import ReportRow
from pricing.ledger.store.report import TOKEN_COLUMNS
from pricing.money import usd_text
from pricing.render import UNKNOWN, plain
from pricing.report_bars import by_class, by_meter, drawn, label, over_time
from pricing.report_view import Report, report_notes, report_object, row_objects

_TIMES: Final = ("day", "hour")
_TOTALS: Final = (
    ("total_usd", "total USD"),
    ("measured_usd", "measured"),
    ("estimated_usd", "estimated"),
    ("assumed_usd", "assumed"),
    ("unpriced_requests", "unpriced requests"),
)
_MEANINGS: Final = (
    ("measured", "tokens as the upstream reported them"),
    ("estimated", "no upstream reported tokens; reckoned from what was sent and delivered"),
    ("assumed", "the split of cache writes by TTL is the requested one"),
    ("unpriced", "no known price covers them: they are in no sum, and not free"),
)
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d1f23; --faint: #8a8f98; --page: #ffffff; --line: #d9dce1; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --faint: #8f96a0; --page: #16181c; --line: #363b43; }
}
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p, li, figcaption, dd small { color: var(--faint); } ul { padding-left: 1.2rem; }
dl { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; } dt { color: var(--faint); }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; overflow-x: auto; } figure svg { max-width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left;
  white-space: nowrap; }
th { font-weight: 600; } .number { text-align: right; } tfoot td { font-weight: 600; }
@media print { body { margin: 0; max-width: none; } }
"""


def print_report_html(report: Report, notes: Sequence[str]) -> None:
    """Prints the page."""
    sys.stdout.write(report_page(report, notes))


def report_page(report: Report, notes: Sequence[str]) -> str:
    """The page as text."""
    shown = report_object(report)
    as_of = instant_text(report.as_of.timestamp())
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>What Kimi cost, as of {as_of}</title>",
        f"<style>{_STYLE}</style></head><body><main>",
        "<h1>What Kimi cost</h1>",
        f"<p>Ledger {_text(report.ledger)}, as of {as_of}{_by(report)}</p>",
        _totals(shown),
        *_charts(report),
        _table(report),
        "<h2>To read this rightly</h2><ul>",
        *(f"<li>{_text(note)}</li>" for note in report_notes(report, notes)),
        *(f"<li>{word}: {_text(meaning)}</li>" for word, meaning in _MEANINGS),
        "</ul></main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _text(value: object) -> str:
    """A value as text of the page; unknown as a dash."""
    return UNKNOWN if value is None else escape(plain(str(value)))


def _by(report: Report) -> str:
    names = list(dict.fromkeys(report.by))
    return f", by {_text(', '.join(names))}" if names else ""


def _totals(shown: Mapping[str, object]) -> str:
    cells = [f"<div><dt>{head}</dt><dd>{_text(shown[name])}</dd></div>" for name, head in _TOTALS]
    previous = shown.get("previous")
    if isinstance(previous, dict):
        percent = previous["difference_percent"]
        words = "" if percent is None else f" <small>{_text(percent)} %</small>"
        cells.append(f"<div><dt>period before</dt><dd>{_text(previous['total_usd'])}</dd></div>")
        cells.append(f"<div><dt>difference</dt><dd>{_text(previous['difference_usd'])}{words}</dd></div>")
    return f"<dl>{''.join(cells)}</dl>"


def _charts(report: Report) -> Iterator[str]:
    names = list(dict.fromkeys(report.by))
    if not report.rows or not names:
        return
    # Loaded only here: drawing takes a tenth of a second to load, and most reports are not drawn.
    from pricing.charts import stacked_bars

    rows = drawn(report)
    bars = [label(row) for row in rows]
    if names[0] in _TIMES:
        labels, costs = over_time(report, names)
        count = len({row.by[names[0]] for row in report.rows})
        about = f"by {names[0]}" if count == len(labels) else f"the last {len(labels)} of {count} {names[0]}s"
    else:
        labels, costs = bars, by_class(rows)
        about = _which(rows, report)
    yield _figure(stacked_bars("costs", "USD", labels, costs), f"Cost in USD, {about}; the table has all figures.")
    drawing = stacked_bars("tokens", "tokens", bars, by_meter(rows))
    yield _figure(drawing, f"Tokens by meter, {_which(rows, report)}; counts that nobody reported are not drawn.")


def _which(rows: Sequence[ReportRow], report: Report) -> str:
    count = len(report.rows)
    return "every group" if len(rows) == count else f"the {len(rows)} dearest of {count}"


def _figure(drawing: str, words: str) -> str:
    return f"<figure>{drawing}<figcaption>{_text(words)}</figcaption></figure>"


def _table(report: Report) -> str:
    names = list(dict.fromkeys(report.by))
    rows = row_objects(report)
    figures = [name for name in (rows[0] if rows else ()) if name not in names and name != "other_groups"]
    heads = [*(_head(name) for name in names), *(_head(name, number=True) for name in figures)]
    lines = [
        "".join([*(_cell(row[name]) for name in names), *(_cell(row.get(name), number=True) for name in figures)])
        for row in rows
    ]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return (
        "<h2>All figures</h2>\n"
        f'<div class="scroll"><table><thead><tr>{"".join(heads)}</tr></thead>\n<tbody>\n{body}\n</tbody>'
        f"{_foot(report, names, figures) if rows else ''}</table></div>"
    )


def _foot(report: Report, names: Sequence[str], figures: Sequence[str]) -> str:
    """The totals under the columns that have one."""
    sums: dict[str, object] = {"requests": sum(row.requests for row in report.rows)}
    sums |= {
        name: sum(row.tokens[name] or 0 for row in report.rows)
        for name in TOKEN_COLUMNS
        if any(row.tokens[name] is not None for row in report.rows)
    }
    sums |= {
        "cost_usd": usd_text(report.total_nano),
        "estimated_usd": usd_text(report.estimated_nano),
        "assumed_usd": usd_text(report.assumed_nano),
        "unpriced_requests": report.unpriced_requests,
    }
    first = "".join(_cell("total" if place == 0 else "") for place in range(len(names)))
    cells = "".join(_cell(sums.get(name, ""), number=True) for name in figures)
    return f"<tfoot><tr>{first}{cells}</tr></tfoot>"


def _head(name: str, *, number: bool = False) -> str:
    return f'<th scope="col"{_number(number)}>{_text(name)}</th>'


def _cell(value: object, *, number: bool = False) -> str:
    words = f"{value:,}" if isinstance(value, int) else value
    return f"<td{_number(number)}>{_text(words)}</td>"


def _number(number: bool) -> str:
    return ' class="number"' if number else ""
