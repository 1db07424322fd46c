"""What a training shows on a terminal: a bar, and below it the figures of its last updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import NamedTuple

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from nmt_cli import console
from nmt_cli.training.figures import Figures, Standing

_INDENT = "  "


class Part(NamedTuple):
    """A figure in words, in fewer words, and its weight: of parts that do not fit, the lightest goes first."""

    text: str
    short: str
    weight: int


class LiveView(Progress):
    """Three lines that are drawn again several times a second and are gone at the end; other lines go above them."""

    def __init__(self, title: str, *, updates: int) -> None:
        # Before super(), which asks for the renderables.
        self._lines: list[list[Part]] = []
        self._note = ""
        self._best = Part("", "", 4)
        super().__init__(
            TextColumn("{task.description}", style="bold", markup=False),
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
        """The bar, and the figures or a note."""
        yield from super().get_renderables()
        if self._note:
            yield Text(_INDENT + self._note, no_wrap=True, overflow="ellipsis")
            return
        for parts in self._lines:
            yield Text(_INDENT + fitted(parts, width=self.console.width - len(_INDENT)), no_wrap=True)

    def move(self, standing: Standing, figures: Figures, *, time_left: str) -> None:
        """Show where the training stands, with the figures of its last updates."""
        self.update(self._task, completed=standing.update, time_left=time_left)
        self._note = ""
        rate = standing.learning_rate
        learning = [
            _part("loss {:.3f}", figures.loss, weight=6),
            _part("perplexity {:.4g}", figures.perplexity, weight=3),
            self._best,
            Part(f"learning rate {rate:.2e}", f"rate {rate:.1e}", 2),
            _part("gradient norm {:.3g}", standing.gradient_norm, short="norm {:.3g}", weight=1),
            Part(f"epoch {standing.epoch + 1}", "", 0),
        ]
        speed = [
            _part("{:,.0f} tokens/s", figures.target_tokens_per_second, weight=6),
            _part("{:.1%} of the matrix rate", figures.matrix_rate_share, short="matrix rate {:.0%}", weight=5),
            _part("padding {:.1%}", figures.padding, weight=2),
            _part("waiting {:.1%}", figures.waiting, weight=3),
            _part("memory {:.1f} GB", standing.memory_gb, weight=4),
        ]
        self._lines = [learning, speed]

    def note(self, text: str) -> None:
        """Say in place of the figures what is being done between two updates."""
        self._note = text

    def keep_best(self, value: str, *, update: int) -> None:
        """Remember the best validation beside the figures."""
        self._best = Part(f"best {value} after {update:,}", f"best {value}", 4)


def fitted(parts: Sequence[Part], *, width: int) -> str:
    """The parts in a line of at most `width` characters: in words, else in fewer, else without the lightest."""
    for gap, texts in (("   ", [part.text for part in parts]), ("  ", [part.short for part in parts])):
        line = gap.join(text for text in texts if text)
        if len(line) <= width:
            return line
    shown = [part for part in parts if part.short]
    while len(line := "  ".join(part.short for part in shown)) > width and len(shown) > 1:
        shown.remove(min(shown, key=lambda part: part.weight))
    return line[:width]


def _part(form: str, value: float, *, weight: int, short: str | None = None) -> Part:
    """A value in a form of words; nothing where it is not finite."""
    if not isfinite(value):
        return Part("", "", weight)
    return Part(form.format(value), (short or form).format(value), weight)
