"""Progress of transfers: bars on a terminal, a line now and then elsewhere. On standard error, which is for people."""

import time
from typing import Self

import click
from covey_api.units import format_progress
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

# Without a terminal: a line a change, and one this often while bytes come.
LINE_SECONDS = 2.0


class Bars:
    """One a name."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._terminal = console.is_terminal
        self._tasks: dict[str, TaskID] = {}
        self._lines: dict[str, tuple[str, float]] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, name: str, label: str, done_bytes: int, total_bytes: int, bytes_per_second: int) -> None:
        amount = format_progress(done_bytes, total_bytes, bytes_per_second) if total_bytes else ""
        if self._terminal:
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(label, total=None, amount="")
            task, total = self._tasks[name], total_bytes or None
            self._bars.update(task, description=label, completed=done_bytes, total=total, amount=amount)
            return
        now = time.monotonic()
        last, shown = self._lines.get(name, ("", -LINE_SECONDS))
        if label == last and (not total_bytes or now - shown < LINE_SECONDS):
            return
        click.echo(f"{label} {amount}".rstrip(), err=True)
        self._lines[name] = (label, now)
