"""Stacked bars as plain SVG to stand inside a page: no script, nothing fetched. The one door to pygal.

Colours of text and lines are the page's own (`--ink`, `--faint`), so that a chart follows its light and dark. The
floats are geometry only; a bar's title holds the exact words it was given.
"""

import sys
from collections.abc import Sequence
from typing import Any, Final

import pygal  # type: ignore[import-untyped]  # it has no types of its own
from pygal.style import Style  # type: ignore[import-untyped]

from pricing.report_bars import Bar, Series

# It hooks into every later import to find its map plug-ins, by a way that Python warns of and 3.12 has not.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != pygal.__name__]

_COLOURS: Final = ("#2a78b5", "#d9822b", "#8d6cab", "#3f9b7a", "#b5493f", "#7f7f7f", "#c2a83e", "#5b8def")
_STYLE: Final = Style(
    background="transparent",
    plot_background="transparent",
    foreground="var(--ink)",
    foreground_strong="var(--ink)",
    foreground_subtle="var(--faint)",
    guide_stroke_color="var(--faint)",
    major_guide_stroke_color="var(--faint)",
    opacity="1",
    opacity_hover=".8",
    transition="0s",
    colors=_COLOURS,
    font_family="inherit",
    label_font_size=11,
    legend_font_size=12,
    title_font_size=15,
)
_SCRIPT: Final = "script"
_ROTATED_DEGREES: Final = 30
_UPRIGHT_MAX: Final = 6


def stacked_bars(name: str, title: str, labels: Sequence[str], series: Sequence[Series]) -> str:
    """An SVG element with one bar for each label, made of the series' pieces; `name` is its id on the page."""
    chart = pygal.StackedBar(
        js=[],
        style=_STYLE,
        disable_xml_declaration=True,
        title=title,
        width=900,
        height=380,
        legend_at_bottom=True,
        truncate_label=24,
        truncate_legend=40,
        x_label_rotation=_ROTATED_DEGREES if len(labels) > _UPRIGHT_MAX else 0,
        show_minor_x_labels=True,
        y_labels_major_count=5,
        formatter=lambda value: f"{value:.12g}",
    )
    chart.x_labels = list(labels)
    for one in series:
        chart.add(one.name, [_value(bar) for bar in one.bars])
    chart.add_xml_filter(_plain)
    markup: str = chart.render(is_unicode=True)
    return markup.replace(f"chart-{chart.uuid}", name)


def _value(bar: Bar | None) -> object:
    if bar is None:
        return None
    return {"value": bar.value, "label": bar.words, "formatter": lambda _: ""}


def _plain(root: Any) -> Any:
    """The drawing without scripts and remarks; what a script would show is a title, which browsers show by
    themselves."""
    for parent in list(root.iter()):
        for child in list(parent):
            child.attrib.pop("id", None)
            if not isinstance(child.tag, str) or _name(child) == _SCRIPT:
                parent.remove(child)
            elif _name(child) == "desc":
                if child.attrib.get("class") == "label":
                    title = parent.makeelement(child.tag.replace("desc", "title"), {})
                    title.text = child.text
                    parent.insert(0, title)
                parent.remove(child)
    return root


def _name(element: Any) -> str:
    name: str = element.tag.rpartition("}")[2]
    return name
