"""What a training shows on a terminal: a bar, and below it the figures of its last updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from nmt_cli import console

_RECENT_UPDATES = 50


class LiveView(Progress):
    """Two lines that are drawn again several times a second and are gone at the end; other lines go above them."""

    def __init__(self, title: str, *, updates: int) -> None:
        # Before super(), which asks for the renderables.
        self._figures = Text(no_wrap=True, overflow="ellipsis")
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=_RECENT_UPDATES)
        self._best = ""
        super().__init__(
            TextColumn("[bold]{task.description}", markup=True),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f} / {task.total:,.0f}"),
            TaskProgressColumn(),
            TextColumn("{task.fields[time_left]}"),
            console=console.stderr_console(),
            expand=True,
            transient=True,
        )
        self._task = self.add_task(title, total=updates, time_left="")

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bar and the figures."""
        yield from super().get_renderables()
        yield self._figures

    def count(self, *, loss: float, tokens: int, seconds: float) -> None:
        """Take an update into the figures: the sum of its losses, its target tokens, the stopwatch after it."""
        self._recent.append((seconds, loss, tokens))

    def move(self, update: int, *, epoch: int, learning_rate: float, time_left: str) -> None:
        """Show where the training stands."""
        self.update(self._task, completed=update, time_left=time_left)
        parts = [*self._averages(), f"learning rate {learning_rate:.2e}", f"epoch {epoch}", self._best]
        self._show("   ".join(part for part in parts if part))

    def note(self, text: str) -> None:
        """Say in place of the figures what is being done between two updates."""
        self._show(text)

    def keep_best(self, text: str) -> None:
        """Remember the best validation beside the figures."""
        self._best = f"best {text}"

    def _averages(self) -> list[str]:
        if not self._recent:
            return []
        tokens = sum(tokens for _, _, tokens in self._recent)
        loss = sum(loss for _, loss, _ in self._recent) / max(tokens, 1)
        # The first of the recent updates only marks when the second began.
        (begin, _, first), (end, _, _) = self._recent[0], self._recent[-1]
        speed = f"{(tokens - first) / (end - begin):,.0f} tokens/s" if end > begin else ""
        return [f"loss {loss:.3f}", speed]

    def _show(self, text: str) -> None:
        self._figures.plain = f"  {text}"
