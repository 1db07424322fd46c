"""R-Drop and SimCut against their formulas in float64, and against two passes of the model by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt_cli.dataset.batches import make_batch
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.devices import Precision
from nmt_cli.errors import RecipeError
from nmt_cli.tokenization.tokenizer import PAD
from nmt_cli.training import consistency as consistency_module
from nmt_cli.training import loss as loss_module
from nmt_cli.training.consistency import Consistency, interleaved_order
from nmt_cli.training.loss import smoothed_cross_entropy
from nmt_cli.training.objective import plain_loss
from tests.training.feeding import Feed, feed
from tests.training.tiny import checkpoint, events, stopped_after, tiny_recipe, train
from tests.training.two_ranks import run_module

R_DROP, SIMCUT = "{name: r_drop, alpha: 5}", "{name: simcut, alpha: 3, cut: 0.2}"


def consistency_of(setting: str) -> Consistency:
    found = Consistency.of(tiny_recipe(f"training.consistency={setting}").training)
    assert found is not None
    return found


def by_formula(setting: str, logits: tuple[Tensor, Tensor], gold: Tensor, *, smoothing: float) -> tuple[Tensor, Tensor]:
    """The loss as the papers write it, and the divergence, summed over tokens; logits [T, V] of both passes.

    R-Drop's is half of equation 4 of arXiv:2106.14448, SimCut's is equation 8 of arXiv:2206.02368.
    """
    losses = [F.cross_entropy(each, gold, label_smoothing=smoothing, reduction="sum") for each in logits]
    first, second = (each.log_softmax(1) for each in logits)
    forward, backward = (
        F.kl_div(second, first, reduction="sum", log_target=True),
        F.kl_div(first, second, reduction="sum", log_target=True),
    )
    if "r_drop" in setting:
        return (losses[0] + losses[1] + 5 * (forward + backward) / 2) / 2, (forward + backward) / 2
    return losses[0] + 3 * forward, forward


@pytest.mark.parametrize("elements", [1, 100, 10_000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("setting", [R_DROP, SIMCUT])
def test_loss_and_gradients_are_those_of_the_formula(
    setting: str, smoothing: float, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "_CPU_LOGITS", elements)
    monkeypatch.setattr(consistency_module, "_BLOCK_ELEMENTS", elements // 3)
    generator, vocab, tokens = torch.Generator().manual_seed(1), 11, 7
    hidden = torch.randn(2 * tokens + 4, 6, generator=generator).requires_grad_()
    weight, bias = (torch.randn(*size, generator=generator).requires_grad_() for size in ((16, 6), (16,)))
    gold = torch.randint(1, vocab, (tokens,), generator=generator)
    slots = torch.cat([gold, gold, torch.full((4,), PAD)])

    order = interleaved_order(slots)
    assert sorted(order.tolist()) == list(range(len(slots)))
    loss = smoothed_cross_entropy(
        hidden[order],
        weight,
        slots[order],
        output_bias=bias,
        vocab=vocab,
        smoothing=smoothing,
        function=consistency_of(setting).loss_function,
    )
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight, bias)]
    logits = (exact[0] @ exact[1].T + exact[2])[:, :vocab]
    value, divergence = by_formula(setting, (logits[:tokens], logits[tokens : 2 * tokens]), gold, smoothing=smoothing)
    torch.testing.assert_close(loss.smoothed.double(), value, rtol=1e-5, atol=1e-5)
    assert loss.kl is not None
    torch.testing.assert_close(loss.kl.double(), divergence, rtol=1e-5, atol=1e-5)
    ours, theirs = torch.autograd.grad(loss.smoothed, (hidden, weight, bias)), torch.autograd.grad(value, exact)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-5, atol=1e-5)


def test_the_first_pass_of_simcut_is_whole_and_the_second_has_no_embedding_at_cut_tokens(
    prepared: PreparedData,
) -> None:
    given, consistency = feed(prepared, f"training.consistency={SIMCUT}"), consistency_of(SIMCUT)
    model = given.updater("fp32").model.eval()
    rows = next(given.updates(1))[1].micro_batches[0]
    torch.manual_seed(5)
    batch = consistency.with_cuts(given.batch(rows))
    one = make_batch(rows, prepared.split("train"), device=given.device, shape=None, pinned=False)
    sides = []
    for side, whole in ((batch.source, one.source), (batch.target, one.target)):
        assert side.is_cut is not None
        passes = side.is_cut[: 2 * whole.num_tokens].view(2, -1)
        assert not passes[0].any(), "the first pass is whole"
        assert 0.1 < passes[1].float().mean() < 0.3
        sides.append(replace(whole, is_cut=F.pad(passes[1], (0, whole.num_empty))))
    cut_once = replace(one, source=sides[0], target=sides[1])
    expected = torch.stack([plain_loss(model, 0.1, each).nll for each in (one, cut_once)])
    hidden = model.decode(batch.target, model.encode(batch.source), batch.source)
    num_tokens = one.target.num_tokens
    log_probs = model.logits(hidden[: 2 * num_tokens]).log_softmax(1)
    nll = -log_probs.gather(1, batch.gold[: 2 * num_tokens, None]).view(2, num_tokens).sum(1)
    torch.testing.assert_close(nll, expected, rtol=1e-4, atol=0)
    assert nll[1] != nll[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("setting", "dropout"),
    [
        (R_DROP, "model.dropout=0.1"),
        (R_DROP, "model.word_dropout.target=0.1"),
        (SIMCUT, "model.dropout=0.1"),
    ],
)
def test_passes_differ_by_dropout_or_cuts_and_the_same_update_gives_the_same_bits(
    setting: str, dropout: str, precision: Precision, prepared: PreparedData
) -> None:
    given = feed(prepared, dropout, f"training.consistency={setting}")
    found = [give_two(given, precision) for _ in range(2)]
    assert found[0][1] > 0
    assert torch.equal(found[0][0], found[1][0])


def give_two(given: Feed, precision: Precision) -> tuple[Tensor, float]:
    """The weights after two updates, and the divergence of the second."""
    updater = given.updater(precision)
    results = [given.give(updater, number, update) for number, update in given.updates(2)]
    return updater.weights.values.clone(), results[-1].kl


@pytest.mark.parametrize("setting", [pytest.param(R_DROP, marks=pytest.mark.slow), SIMCUT])
def test_two_ranks_take_the_updates_of_one(setting: str, prepared: PreparedData, tmp_path: Path) -> None:
    settings = ("model={dropout: 0.1, word_dropout: {target: 0.1}}", f"training.consistency={setting}")
    found = {}
    for num_ranks in (1, 2):  # one rank also in a process of its own, whose float32 products no other test has set
        file = tmp_path / f"found-{num_ranks}.json"
        run_module("tests.training.replaying_ranks", file, prepared.directory, *settings, num_ranks=num_ranks)
        found[num_ranks] = json.loads(file.read_text(encoding="utf-8"))
    alone = found[1]["run"]
    assert all(kl > 0 for _, _, kl, _ in alone["results"])
    for way, of_two in found[2].items():
        # Two float32 summands commute: not a bit may differ.
        assert of_two["results"] == alone["results"], way
        assert of_two["weights"] == alone["weights"], way


def test_a_stopped_training_goes_on_with_the_same_bits_and_the_log_has_the_divergence(
    prepared: PreparedData, finished_run: Callable[..., Path], tmp_path: Path
) -> None:
    settings = (f"training.consistency={SIMCUT}", "training.updates=12")
    run, expected = tmp_path / "run", finished_run(*settings)
    with stopped_after(7):
        assert train(prepared, run, *settings) == 75
    assert train(prepared, run, *settings) == 0
    assert checkpoint(run, 12) == checkpoint(expected, 12)
    assert all(0 < event["kl"] < event["loss"] for event in events(run, "train"))
    assert not any("kl" in event for event in events(finished_run(), "train"))


@pytest.mark.parametrize("setting", ["{name: r_drop}", "{name: simcut, cut: 0}"])
def test_two_passes_that_cannot_differ_are_refused(setting: str) -> None:
    with pytest.raises(RecipeError, match=r"training\.consistency compares equal passes without dropout") as caught:
        tiny_recipe("model.dropout=0", f"training.consistency={setting}")
    assert caught.value.hint == "write model.dropout: 0.1"
