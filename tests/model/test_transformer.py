"""Laws of the model: what a batch, the future, tying and padded vocabularies may change; position tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nmt_cli.model.packing import pack
from nmt_cli.model.transformer import Transformer, sinusoids, sinusoids_in_halves
from nmt_cli.recipe.loading import load_recipe, packaged_names
from nmt_cli.training.loss import ONE_PASS, smoothed_cross_entropy
from tests.reference.models import CPU, EOS, Pair, logits_of, packed, random_model, random_pairs, tiny_config
from tests.reference.transformer import sinusoid, sinusoid_in_halves

VOCAB = 37
LENGTHS = [(5, 4), (9, 12), (1, 1), (3, 7)]
CONFIGS: dict[str, dict[str, object]] = {
    "post-norm": {},
    "pre-norm": {"norm": "pre"},
    "window": {"encoder_window": 3},
    "learned positions": {"positions": "learned"},
}
TABLE3_ROWS = [name for name in packaged_names(kind="recipe") if name.startswith("table3/")]
TABLE3_VOCAB = 50


def assert_same(ours: Tensor | None, theirs: Tensor | None) -> None:
    """Equal in float64, where sums in another order differ by 1e-15."""
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return random_model(tiny_config(**CONFIGS[request.param]), vocab=VOCAB, seed=1)


@pytest.fixture
def pairs() -> list[Pair]:
    return random_pairs(LENGTHS, vocab=VOCAB, seed=2)


def test_neighbours_padding_and_order_do_not_change_logits(model: Transformer, pairs: list[Pair]) -> None:
    longer = random_pairs([(30, 25), (2, 2)], vocab=VOCAB, seed=3)
    batches = (logits_of(model, pairs), logits_of(model, pairs + longer), logits_of(model, pairs[::-1])[::-1])
    for pair, *of_batches in zip(pairs, *batches, strict=False):
        (alone,) = logits_of(model, [pair])
        for logits in of_batches:
            assert_same(logits, alone)


def test_neighbours_do_not_change_gradients(pairs: list[Pair]) -> None:
    def gradient(batches: list[list[Pair]]) -> Tensor:
        model = random_model(tiny_config(), vocab=VOCAB, seed=1)
        for batch in batches:
            torch.cat(logits_of(model, batch)).log_softmax(-1)[:, EOS].sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])

    torch.testing.assert_close(gradient([pairs]), gradient([[pair] for pair in pairs]), rtol=1e-10, atol=1e-10)


def test_later_target_tokens_do_not_change_earlier_logits(model: Transformer, pairs: list[Pair]) -> None:
    pair = pairs[1]
    for kept in range(1, len(pair.target)):
        other = [*pair.target[:kept], *(5 if token == 4 else 4 for token in pair.target[kept:])]
        before, after = logits_of(model, [pair])[0], logits_of(model, [Pair(pair.source, other)])[0]
        assert_same(before[:kept], after[:kept])
        assert not torch.allclose(before[kept:], after[kept:])


def test_source_order_matters_by_positions_alone() -> None:
    model = random_model(tiny_config(positions="learned"), vocab=VOCAB, seed=1)
    row, turn = [7, 9, 11, 13, EOS], [3, 1, 4, 0, 2]
    memories = [model.encode(pack([ids], device=CPU)) for ids in (row, [row[place] for place in turn])]
    assert not torch.allclose(memories[0][turn], memories[1])
    with torch.no_grad():
        model.source_embedding.positions.table.zero_()
    memories = [model.encode(pack([ids], device=CPU)) for ids in (row, [row[place] for place in turn])]
    assert_same(memories[0][turn], memories[1])


@pytest.mark.parametrize(
    ("tying", "groups"),
    [
        ("all", [{"source", "target", "output"}]),
        ("target", [{"source"}, {"target", "output"}]),
        ("none", [{"source"}, {"target"}, {"output"}]),
    ],
)
def test_tying_shares_these_matrices_and_counts_them_once(tying: str, groups: list[set[str]]) -> None:
    config = tiny_config(tying=tying)
    model = Transformer(config, source_vocab=VOCAB, target_vocab=VOCAB)
    matrices = {
        "source": model.source_embedding.weight,
        "target": model.target_embedding.weight,
        "output": model.output_weight,
    }
    found: dict[int, set[str]] = {}
    for name, matrix in matrices.items():
        found.setdefault(id(matrix), set()).add(name)
    assert list(found.values()) == groups
    attention = 4 * 16 * 16
    feed_forward = 16 * 24 + 24 + 24 * 16 + 16
    layers = 2 * (attention + feed_forward + 2 * 32) + 2 * (2 * attention + feed_forward + 3 * 32)
    assert model.num_parameters() == layers + len(groups) * 40 * 16


@pytest.mark.parametrize("tying", ["all", "target"])
def test_a_shared_matrix_gets_the_sum_of_its_uses_gradients(tying: str, pairs: list[Pair]) -> None:
    tied = random_model(tiny_config(tying=tying), vocab=VOCAB, seed=1)
    untied = random_model(tiny_config(tying="none"), vocab=VOCAB, seed=2)
    untied.load_state_dict(tied.state_dict())
    for model in (tied, untied):
        torch.cat(logits_of(model, pairs)).log_softmax(-1)[:, 5].sum().backward()
    source, target, output = (
        weight.grad for weight in (untied.source_embedding.weight, untied.target_embedding.weight, untied.output_weight)
    )
    assert source is not None
    assert target is not None
    assert output is not None
    shared = target + output + source if tying == "all" else target + output
    assert_same(tied.output_weight.grad, shared)
    if tying == "target":
        assert_same(tied.source_embedding.weight.grad, untied.source_embedding.weight.grad)


def test_two_vocabularies_have_their_own_rows_and_logits() -> None:
    model = Transformer(tiny_config(tying="target"), source_vocab=90, target_vocab=37)
    assert model.source_embedding.weight.shape == (96, 16)
    assert model.output_weight.shape == (40, 16)
    assert model.logits(torch.zeros(3, 16)).shape == (3, 37)


def test_padded_embedding_rows_change_neither_logits_nor_loss(pairs: list[Pair]) -> None:
    padded = random_model(tiny_config(embedding_multiple=64), vocab=VOCAB, seed=1)
    exact = random_model(tiny_config(embedding_multiple=1), vocab=VOCAB, seed=2)
    assert (padded.output_weight.size(0), exact.output_weight.size(0)) == (64, VOCAB)
    weights = padded.state_dict()
    exact.load_state_dict({name: tensor[:VOCAB] if len(tensor) == 64 else tensor for name, tensor in weights.items()})
    ours, theirs = torch.cat(logits_of(padded, pairs)), torch.cat(logits_of(exact, pairs))
    assert ours.size(1) == VOCAB
    assert_same(ours, theirs)
    source, target = packed(pairs)
    hidden = padded.decode(target, padded.encode(source), source)
    loss = smoothed_cross_entropy(
        hidden, padded.output_weight, target.ids, output_bias=None, vocab=VOCAB, smoothing=0.1, function=ONE_PASS
    )
    loss.smoothed.backward()
    assert padded.output_weight.grad is not None
    assert not padded.output_weight.grad[VOCAB:].any()


def test_new_weights_are_xavier_uniform_with_zero_biases_and_embeddings_of_variance_one_over_d_model() -> None:
    torch.manual_seed(1)
    config = tiny_config(d_model=64, d_ff=96, attention_bias=True)
    model = Transformer(config, source_vocab=2000, target_vocab=2000)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert bool((parameter == 1).all())
        elif name.endswith("bias"):
            assert not parameter.any()
        elif "embedding" in name or name == "output_weight":
            assert parameter.std().item() == pytest.approx(64**-0.5, rel=0.01)
        else:
            limit = math.sqrt(6 / sum(parameter.shape))
            assert 0.98 * limit < parameter.abs().max().item() <= limit


@pytest.mark.parametrize("name", TABLE3_ROWS)
def test_a_row_has_a_finite_loss_and_a_gradient_for_every_parameter(name: str) -> None:
    # The rows about depth keep it and are narrow, the others keep their widths and are one layer deep.
    is_about_depth = name.startswith("table3/c-n")
    smaller = ["d_model=64", "d_ff=128"] if is_about_depth else ["encoder_layers=1", "decoder_layers=1"]
    overrides = [f"model.{change}" for change in (*smaller, "embedding_multiple=8")]
    recipe = load_recipe(name, overrides=overrides)
    torch.manual_seed(1)
    model = Transformer(recipe.model, source_vocab=TABLE3_VOCAB, target_vocab=TABLE3_VOCAB).train()
    source, target = packed(random_pairs([(9, 7), (3, 5), (6, 8)], vocab=TABLE3_VOCAB, seed=2))
    gold = target.ids.roll(-1)
    loss = smoothed_cross_entropy(
        model.decode(target, model.encode(source), source),
        model.output_weight,
        gold,
        output_bias=model.output_bias,
        vocab=TABLE3_VOCAB,
        smoothing=recipe.training.label_smoothing,
        function=ONE_PASS,
    )
    assert bool(loss.smoothed.isfinite())
    assert (loss.smoothed.item() == loss.nll.item()) == (recipe.training.label_smoothing == 0)
    loss.smoothed.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert bool(parameter.grad.isfinite().all()), parameter_name
        assert bool(parameter.grad.any()), parameter_name


@pytest.mark.parametrize(
    ("table", "formula"), [(sinusoids, sinusoid), (sinusoids_in_halves, sinusoid_in_halves)], ids=["paper", "halves"]
)
@pytest.mark.parametrize("d_model", [4, 16, 30])
def test_a_table_is_its_formula(
    table: Callable[[int, int], Tensor], formula: Callable[[int, int, int], float], d_model: int
) -> None:
    expected = [[formula(place, column, d_model) for column in range(d_model)] for place in range(50)]
    # Half a unit in the last place of float32 at 1, in which the table is kept.
    torch.testing.assert_close(
        table(50, d_model).double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=6e-8
    )


def test_far_positions_are_as_exact_as_near_ones() -> None:
    # In float32 the angle of position 10,000 would be wrong by 5e-4.
    row = sinusoids(10_001, 8)[10_000].tolist()
    assert row == pytest.approx([sinusoid(10_000, column, 8) for column in range(8)], abs=6e-8)


@pytest.mark.parametrize("kind", ["sinusoidal", "sinusoidal-halves", "learned"])
def test_each_token_gets_the_row_of_its_position(kind: str) -> None:
    embedding = random_model(tiny_config(positions=kind), vocab=9, seed=1, dtype=torch.float32).source_embedding
    table, weight = embedding.positions.table, embedding.weight
    expected = [weight[piece] * 4 + table[place] for piece, place in ((5, 0), (7, 1), (5, 0), (8, 5))]  # 4^2 = 16 = D
    out = embedding.step_input(torch.tensor([5, 7, 5, 8]), torch.tensor([0, 1, 0, 5]))
    torch.testing.assert_close(out, torch.stack(expected))


def test_gradients_of_a_row_that_many_tokens_take_are_summed_in_float32() -> None:
    model = random_model(tiny_config(positions="learned"), vocab=9, seed=1, dtype=torch.bfloat16).train()
    embedding, generator = model.source_embedding, torch.Generator().manual_seed(2)
    ids, positions = (torch.randint(high, (4000,), generator=generator) for high in (9, 30))
    upstream = torch.randn(4000, 16, generator=generator).bfloat16()
    embedding.step_input(ids, positions).backward(upstream)
    for table, numbers, factor in ((embedding.positions.table, positions, 1), (embedding.weight, ids, 4)):
        exact = torch.zeros(table.shape, dtype=torch.float64).index_add_(0, numbers, upstream.double() * factor)
        assert table.grad is not None
        # Rounded to bf16 once, at 2^-9; summed in bf16, sums of a hundred and more are wrong by 1 to 3 %.
        assert (table.grad.double() - exact).norm() < 0.003 * exact.norm()


@pytest.mark.parametrize("side", ["source", "target"])
def test_word_dropout_leaves_tokens_of_its_side_with_their_position_alone(side: str) -> None:
    (pair,) = random_pairs([(4000, 4000)], vocab=VOCAB, seed=2)
    model = random_model(tiny_config(word_dropout={side: 0.3}, max_positions=4000), vocab=VOCAB, seed=1)
    for name, tokens in zip(("source", "target"), packed([pair]), strict=True):
        embedding = getattr(model, f"{name}_embedding")
        marked = replace(tokens, is_cut=torch.arange(4000) < 5)
        whole = embedding.eval()(tokens)
        torch.manual_seed(3)
        out = embedding.train()(tokens)
        is_cut = (out != whole).any(1)
        assert torch.equal(out[is_cut], embedding.look_up_positions(tokens.positions)[is_cut].double())
        # Five standard deviations: one seed in two million.
        assert abs(is_cut.sum() - 4000 * 0.3 * (name == side)) < 5 * math.sqrt(4000 * 0.3 * 0.7)
        assert (name == side) == bool(is_cut.any())
        (gradient,) = torch.autograd.grad(out.sum(), embedding.weight)
        kept = torch.bincount(tokens.ids[~is_cut], minlength=len(gradient))
        torch.testing.assert_close(gradient, (kept[:, None] * 4.0).expand_as(gradient).double())
        torch.manual_seed(3)
        assert torch.equal(embedding(marked)[5:], out[5:]), "what is cut already stays cut beside it"
        assert torch.equal(embedding(marked)[:5], embedding.eval()(marked)[:5])


DROPOUTS: dict[str, dict[str, object]] = {
    "attention": {"attention_dropout": 0.2},
    "feed-forward": {"ffn_dropout": 0.2},
    "source words": {"word_dropout": {"source": 0.2}},
    "target words": {"word_dropout": {"target": 0.2}},
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_each_dropout_acts_by_the_seed_in_training_and_never_in_evaluation(name: str, pairs: list[Pair]) -> None:
    plain = random_model(tiny_config(), vocab=VOCAB, seed=1)
    model = random_model(tiny_config(**DROPOUTS[name]), vocab=VOCAB, seed=1)

    def logits(of: Transformer, *, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat(logits_of(of, pairs))

    expected = logits(plain, seed=3)
    assert torch.equal(logits(model, seed=3), expected)
    model.train()
    found = [logits(model, seed=seed) for seed in (3, 4, 3)]
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[0], expected)
    before = torch.default_generator.get_state()
    assert torch.equal(torch.cat(logits_of(plain.train(), pairs)), expected)
    assert torch.equal(torch.default_generator.get_state(), before), "what is off takes no random numbers"
