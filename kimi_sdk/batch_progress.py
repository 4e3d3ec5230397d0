"""The progress of a batch, drawn on a terminal and nowhere else."""

import sys
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_COST_PLACES: Final = Decimal("0.0001")


class Bar:
    """A line on standard error while it lasts: how many of how many, what they cost, how long it will take."""

    def __init__(self, total: int, *, is_wanted: bool) -> None:
        self._total = total
        self._cost = Decimal(0)
        self._errors = 0
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        if is_wanted and sys.stderr is not None and sys.stderr.isatty():
            self._progress = _progress()
            self._task = self._progress.add_task("", total=total, said="")

    def step(self, cost: Decimal, *, is_error: bool) -> None:
        """One more item is there; `cost` in dollars."""
        self._cost += cost
        self._errors += is_error
        if self._progress is None or self._task is None:
            return
        errors = f", {self._errors} failed" if self._errors else ""
        self._progress.update(self._task, advance=1, said=f"{self._cost.quantize(_COST_PLACES)} USD{errors}")

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
