"""The view on a terminal: what is told in how many columns."""

from __future__ import annotations

import math

import pytest

from nmt_cli.training.figures import Figures, Standing
from nmt_cli.training.live import LiveView, Part, fitted

STANDING = Standing(1500, 6, learning_rate=2.5e-4, gradient_norm=0.5312, memory_gb=3.21, seconds=90.0)
FIGURES = Figures(
    loss=3.0, nll=2.5, target_tokens_per_second=123_456.0, matrix_rate_share=0.441, padding=0.008, waiting=0.001
)


def shown(view: LiveView) -> list[str]:
    with view.console.capture() as capture:
        view.console.print(view.get_renderable())
    return [line.rstrip() for line in capture.get().splitlines()]


def view_of(width: int, monkeypatch: pytest.MonkeyPatch) -> LiveView:
    monkeypatch.setenv("COLUMNS", str(width))
    view = LiveView("small", updates=2000)
    view.keep_best("BLEU 31.20", update=1200)
    view.move(STANDING, FIGURES, time_left="0:01:30 left")
    return view


def test_a_wide_terminal_has_all_figures_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    bar, learning, speed = shown(view_of(120, monkeypatch))
    assert bar.split()[0] == "small"
    assert bar.split()[-6:] == ["1,500", "/", "2,000", "75%", "0:01:30", "left"]
    assert learning == (
        "  loss 3.000   perplexity 12.18   best BLEU 31.20 after 1,200   learning rate 2.50e-04   gradient norm 0.531"
        "   epoch 7"
    )
    assert speed == ("  123,456 tokens/s   44.1% of the matrix rate   padding 0.8%   waiting 0.1%   memory 3.2 GB")


def test_eighty_columns_have_all_of_them_in_fewer_words(monkeypatch: pytest.MonkeyPatch) -> None:
    bar, learning, speed = shown(view_of(80, monkeypatch))
    assert bar.split()[-6:] == ["1,500", "/", "2,000", "75%", "0:01:30", "left"]
    assert learning == "  loss 3.000  perplexity 12.18  best BLEU 31.20  rate 2.5e-04  norm 0.531"
    assert speed == "  123,456 tokens/s  matrix rate 44%  padding 0.8%  waiting 0.1%  memory 3.2 GB"


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = shown(view_of(width, monkeypatch))
    assert len(lines) == 3
    assert max(len(line) for line in lines) <= width


def test_a_name_is_shown_as_it_is_and_cut_where_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for name in ("lr[bold=3]{x}", "a-name-that-says-everything-about-the-recipe-and-its-author"):
        view = LiveView(name, updates=2000)
        view.move(STANDING, FIGURES, time_left="0:01:30 left")
        bar, *figures = shown(view)
        assert bar.split()[0].rstrip("…") == name[: len(bar.split()[0].rstrip("…"))]
        assert bar.startswith(name[:8])
        assert len(figures) == 2


def test_the_lightest_goes_first() -> None:
    parts = [Part("loss 3", "loss 3", 6), Part("epoch 7", "", 0), Part("norm 1", "norm 1", 1), Part("rate 2", "r 2", 2)]
    assert fitted(parts, width=80) == "loss 3   epoch 7   norm 1   rate 2"
    assert fitted(parts, width=20) == "loss 3  norm 1  r 2"
    assert fitted(parts, width=18) == "loss 3  r 2"
    assert fitted(parts, width=6) == "loss 3"
    assert fitted(parts, width=3) == "los"


def test_what_is_not_known_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    view = LiveView("small", updates=2000)
    nothing = Figures(math.nan, math.nan, math.nan, math.nan, math.nan, 0.5)
    view.move(Standing(1, 0, 1e-7, math.inf, math.nan, 1.0), nothing, time_left="")
    _, learning, speed = shown(view)
    assert learning == "  learning rate 1.00e-07   epoch 1"
    assert speed == "  waiting 50.0%"


def test_a_note_stands_in_place_of_the_figures_until_the_next_update(monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(80, monkeypatch)
    view.note("validating after update 1,500")
    assert shown(view)[1:] == ["  validating after update 1,500"]
    view.move(STANDING, FIGURES, time_left="0:01:30 left")
    assert len(shown(view)) == 3
