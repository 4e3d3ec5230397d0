"""An answer drawn in a terminal and in a notebook. rich is loaded only to draw; nothing else here needs it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType


def rich_answer(text: str, thinking: str | None, footer: str) -> "RenderableType":
    """For rich: the thinking dimmed, the text as Markdown, a line below."""
    from rich.console import Group
    from rich.markdown import Markdown
    from rich.text import Text

    parts: list[RenderableType] = []
    if thinking:
        parts.append(Text(thinking.rstrip() + "\n", style="dim italic"))
    if text:
        parts.append(Markdown(text))
    parts.append(Text(footer, style="dim"))
    return Group(*parts)


def markdown_answer(text: str, thinking: str | None, footer: str) -> str:
    """For notebooks: the thinking folded away, the text, a line below."""
    parts = []
    if thinking:
        fence = "`" * max(3, _longest_run(thinking, "`") + 1)
        parts.append(f"<details><summary>thinking</summary>\n\n{fence}text\n{thinking}\n{fence}\n\n</details>")
    if text:
        parts.append(text)
    parts.append(f"<sub>{footer}</sub>")
    return "\n\n".join(parts)


def _longest_run(text: str, character: str) -> int:
    longest = run = 0
    for one in text:
        run = run + 1 if one == character else 0
        longest = max(longest, run)
    return longest
