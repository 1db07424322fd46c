"""Guided alignment: its loss against the formula, and the trainings and models that have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmt_cli.artifacts.model_directory import load_saved_config
from nmt_cli.dataset.batches import Batch
from nmt_cli.dataset.links import TokenLinks
from nmt_cli.dataset.prepared_data import PreparedData, open_prepared
from nmt_cli.errors import RecipeError
from nmt_cli.model.layers import CrossAttention
from nmt_cli.model.packing import pack
from nmt_cli.model.transformer import Transformer
from nmt_cli.scoring.forced_decoding import ForcedDecoder
from nmt_cli.training.objective import plain_loss
from tests.artifacts.builders import EN_DE
from tests.reference.models import CPU, Pair, random_model, random_pairs, tiny_config
from tests.sharing import shared_folder
from tests.training.feeding import feed
from tests.training.tiny import checkpoint, parallel_text, prepare_tiny, stopped_after, train

GUIDED = "training.guided_alignment=0.5"
VOCAB = 21
SMALL_VOCAB = "tokenizer.vocab_size=320"


def aligned_text(number: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Pairs of the tiny text without places, and their alignments: the German verb comes before the subject."""
    pairs, lines = [], []
    for english, german in parallel_text(4 * number, seed=3):
        if "garden" in english or "sea" in english or "mill" in english or len(english.split()) != len(german.split()):
            continue
        words = german.split()
        verb = next(
            place for place, word in enumerate(words) if word in ("sieht", "findet", "liebt", "malt", "braucht")
        )
        source = next(
            place for place, word in enumerate(english.split()) if word in ("sees", "finds", "loves", "paints", "needs")
        )
        order = [*range(verb), *range(verb + 1, source + 1), verb, *range(source + 1, len(words))]
        pairs.append((english, german))
        lines.append(" ".join(f"{place}-{target}" for place, target in enumerate(order)))
    return pairs, lines


@pytest.fixture(scope="session")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    """120 pairs with alignments."""

    def make(folder: Path) -> None:
        pairs, lines = aligned_text(140)
        prepare_tiny(folder, SMALL_VOCAB, train=pairs[20:], valid=pairs[:20], alignments=lines[20:])

    return open_prepared(shared_folder(tmp_path_factory, "aligned", make) / "data/tiny")


def batch_of(pairs: Sequence[Pair], links: Sequence[tuple[int, int, int, float]]) -> Batch:
    source, target = (
        pack([pair.source for pair in pairs], device=CPU),
        pack([pair.target for pair in pairs], device=CPU),
    )
    places, shares = torch.tensor([link[:3] for link in links]).T, torch.tensor([link[3] for link in links])
    return Batch(source, target, target.ids, TokenLinks(places, shares))


@pytest.mark.parametrize(
    "changes", [{}, {"attention_bias": True, "decoder_layers": 4, "norm": "pre"}, {"decoder_layers": 1}]
)
def test_value_and_gradient_are_those_of_the_formula(changes: dict[str, object]) -> None:
    model = random_model(tiny_config(**changes), vocab=VOCAB, seed=3).train()
    pairs = random_pairs([(6, 4), (2, 5), (9, 3)], vocab=VOCAB, seed=4)
    links = [
        (0, 0, 5, 1.0),
        (0, 2, 1, 0.5),
        (0, 2, 4, 0.5),
        (2, 1, 8, 0.25),
        (2, 1, 0, 0.25),
        (2, 1, 3, 0.5),
        (1, 3, 0, 1.0),
    ]
    batch = batch_of(pairs, links)
    plain = plain_loss(model, 0.1, replace(batch, links=None)).smoothed
    ours = plain_loss(model, 0.1, batch, guided_alignment=0.3).smoothed
    expected = plain + 0.3 * by_formula(model, pairs, links)
    parameters = list(model.parameters())
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)  # losses are float32
    for got, wanted in zip(
        torch.autograd.grad(ours, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def by_formula(model: Transformer, pairs: Sequence[Pair], links: Sequence[tuple[int, int, int, float]]) -> Tensor:
    """Minus the sum of share * log softmax(q K^T / sqrt(d_k)) of the first head, one link at a time.

    The query of a target token is where the decoder reads it: one place after it was predicted.
    """
    config = model.config
    module = model.decoder[-1 if config.decoder_layers <= 3 else -2].get_submodule("cross_attention")
    assert isinstance(module, CrossAttention)
    total = torch.zeros((), dtype=torch.float64)
    for number, pair in enumerate(pairs):
        seen: list[Tensor] = []
        handle = module.register_forward_hook(lambda module, given, out, seen=seen: seen.append(given[0]))
        source, target = pack([pair.source], device=CPU), pack([pair.target], device=CPU)
        memory = model.encode(source)
        model.decode(target, memory, source)
        handle.remove()
        q, k = module.q(seen[0])[:, : config.d_k], module.kv(memory)[:, : config.d_k]
        for sentence, at_target, at_source, share in links:
            if sentence == number:
                scores = torch.stack([q[at_target + 1] @ key / config.d_k**0.5 for key in k])
                total = total - share * (scores[at_source] - scores.exp().sum().log())
    return total


def test_micro_batches_add_up_to_the_same_gradient(aligned: PreparedData) -> None:
    norms = []
    for max_tokens in (320, 640):
        given = feed(aligned, GUIDED, "training.batch_tokens=600", max_tokens=max_tokens)
        updater = given.updater("fp32")
        ((number, update),) = given.updates(1)
        assert len(update.micro_batches) == (2 if max_tokens == 320 else 1)
        result = given.give(updater, number, update)
        norms.append((result.gradient_norm, result.smoothed, result.nll))
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)  # sums of float32 in another order


def test_without_the_setting_alignments_change_no_bit(aligned: PreparedData, tmp_path: Path) -> None:
    pairs, _ = aligned_text(140)
    plain = prepare_tiny(tmp_path, SMALL_VOCAB, train=pairs[20:], valid=pairs[:20])
    runs = tmp_path / "with", tmp_path / "without"
    for data, run in zip((aligned, plain), runs, strict=True):
        assert train(data, run, "training.updates=6") == 0
    with_alignments, without = (checkpoint(run, 6)["model.safetensors"] for run in runs)
    assert with_alignments == without


@pytest.mark.parametrize("settings", [(), ("tokenizer.dropout=0.1", "training.consistency={name: r_drop, alpha: 1}")])
def test_a_resumed_training_ends_with_the_same_bits(
    aligned: PreparedData, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    settings = (GUIDED, "training.updates=12", *settings)
    assert train(aligned, tmp_path / "whole", *settings) == 0
    with stopped_after(7):
        assert train(aligned, tmp_path / "stopped", *settings) == 75
    assert train(aligned, tmp_path / "stopped", *settings) == 0
    assert checkpoint(tmp_path / "stopped", 12) == checkpoint(tmp_path / "whole", 12)


def test_the_guided_head_aligns_better_and_fine_tuning_keeps_it(aligned: PreparedData, tmp_path: Path) -> None:
    settings = (
        "training.updates=120",
        "model.decoder_layers=2",
        "validation.every=120",
        "training.checkpoint_every=120",
    )
    errors = {}
    for name, setting in (("plain", "training.guided_alignment=0"), ("guided", GUIDED)):
        assert train(aligned, tmp_path / name, setting, *settings) == 0
        errors[name] = error_rate(tmp_path / name / "model")
    assert errors["guided"] < 0.2 < 0.5 < errors["plain"]
    assert load_saved_config(tmp_path / "plain/model").guided_layer is None
    tuned = (*settings, "training.updates=4", "training.keep_best=1")
    assert train(aligned, tmp_path / "tuned", *tuned, init_from=tmp_path / "guided") == 0
    assert load_saved_config(tmp_path / "tuned/model").guided_layer == 2
    assert error_rate(tmp_path / "tuned/model") < 0.25


def error_rate(model: Path) -> float:
    """The alignment error rate on the validation text: 1 - 2 |A and G| / (|A| + |G|)."""
    pairs, lines = aligned_text(140)
    pairs, lines = pairs[:20], lines[:20]
    decoder = ForcedDecoder(model, direction=EN_DE, device="cpu", precision="fp32", max_tokens=None)
    found = decoder.alignments([src for src, _ in pairs], [tgt for _, tgt in pairs])
    common = size = 0
    for links, line in zip(found, lines, strict=True):
        gold = {(int(src), int(tgt)) for src, tgt in (link.split("-") for link in line.split())}
        common, size = common + len(gold & {*links}), size + len(gold) + len(links)
    return 1 - 2 * common / size


def test_data_without_alignments_is_refused(prepared: PreparedData, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        train(prepared, tmp_path / "run", GUIDED)
    assert caught.value.message == "training.guided_alignment is 0.5, but the data has no word alignments"
    assert caught.value.where == str(prepared.directory)
    assert "--alignments FILE" in caught.value.hint
    assert not (tmp_path / "run").exists()
