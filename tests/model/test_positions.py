"""Position tables against their formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nmt_cli.model.positions import Positions, sinusoids, sinusoids_in_halves
from tests.reference.models import random_model, tiny_config
from tests.reference.positions import sinusoid, sinusoid_in_halves


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
    out = embedding(torch.tensor([5, 7, 5, 8]), torch.tensor([0, 1, 0, 5]))
    torch.testing.assert_close(out, torch.stack(expected))


def test_only_learned_positions_are_parameters_and_saved() -> None:
    learned, fixed = Positions(tiny_config(positions="learned")), Positions(tiny_config(positions="sinusoidal"))
    assert isinstance(learned.table, nn.Parameter)
    assert list(learned.state_dict()) == ["table"]
    assert list(fixed.parameters()) == []
    assert fixed.state_dict() == {}


def test_learned_rows_that_no_token_took_get_no_gradient() -> None:
    embedding = random_model(tiny_config(positions="learned"), vocab=9, seed=1, dtype=torch.float32).source_embedding
    embedding(torch.tensor([5, 6, 7]), torch.tensor([0, 1, 1])).sum().backward()
    gradient = embedding.positions.table.grad
    assert gradient is not None
    assert gradient[:3].sum(1).tolist() == [16, 32, 0]
    assert not gradient[2:].any()


def test_gradients_of_a_row_that_many_tokens_take_are_summed_in_float32() -> None:
    model = random_model(tiny_config(positions="learned"), vocab=9, seed=1, dtype=torch.bfloat16).train()
    embedding, generator = model.source_embedding, torch.Generator().manual_seed(2)
    ids, positions = (torch.randint(high, (4000,), generator=generator) for high in (9, 30))
    upstream = torch.randn(4000, 16, generator=generator).bfloat16()
    embedding(ids, positions).backward(upstream)
    for table, numbers, factor in ((embedding.positions.table, positions, 1), (embedding.weight, ids, 4)):
        exact = torch.zeros(table.shape, dtype=torch.float64).index_add_(0, numbers, upstream.double() * factor)
        assert table.grad is not None
        # Rounded to bf16 once, at 2^-9; summed in bf16, sums of a hundred and more are wrong by 1 to 3 %.
        assert (table.grad.double() - exact).norm() < 0.003 * exact.norm()
