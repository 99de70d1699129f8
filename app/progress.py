"""Progress bars on a terminal, plain lines elsewhere (logs, CI)."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text


class Bars:
    """Named bars, used as a context manager. A stage that is never updated shows nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._live = self.console.is_terminal
        self._tasks: dict[str, TaskID] = {}
        self._printed: dict[str, tuple[str, int]] = {}
        self._progress = Progress(
            TextColumn("{task.fields[name]:<10}", markup=False),
            BarColumn(bar_width=28),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.description}", style="dim", markup=False),
            console=self.console,
            disable=not self._live,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # a terminal that is gone costs no result
            self._progress.stop()

    def update(self, name: str, fraction: float, message: str) -> None:
        """Show `fraction` (0..1) and `message` on the bar `name`, made at its first update."""
        fraction = min(max(fraction, 0.0), 1.0)
        if not self._live:
            self._print(name, fraction, message)
            return
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(message, total=1.0, name=name)
        self._progress.update(self._tasks[name], completed=fraction, description=message)

    def _print(self, name: str, fraction: float, message: str) -> None:
        """One line when the message changes or another quarter is done."""
        state = (message, int(fraction * 4))
        if self._printed.get(name) != state:
            self._printed[name] = state
            text = Text(f"{name}: {message} ({fraction:.0%})")  # a file's name is no markup
            self.console.print(text)
