"""Token by token with cached keys and values gives what the whole decoder gives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from nmt_cli.model import decoder_cache
from nmt_cli.model.packing import pack
from nmt_cli.model.transformer import Transformer
from tests.reference.models import BOS, CPU, EOS, random_model, tiny_config

VOCAB = 23
SOURCES = [[5, 6, 7, 8, EOS], [9, EOS], [10, 11, 12, EOS]]
CONFIGS: dict[str, dict[str, object]] = {
    "post-norm": {},
    "pre-norm": {"norm": "pre", "attention_bias": True},
    "all that is newer": {"norm": "pre", "norm_type": "rms", "activation": "swiglu", "positions": "rotary"},
    "learned positions, target tying": {"positions": "learned", "tying": "target"},
    "untied, depths apart": {"tying": "none", "encoder_layers": 1, "decoder_layers": 3},
    "keys narrower than values": {"d_k": 3, "d_v": 10},
    "keys wider than values, gelu": {"d_k": 9, "d_v": 2, "activation": "gelu"},
    "encoder window, sinusoids in halves": {"encoder_window": 3, "positions": "sinusoidal-halves"},
}
Row = tuple[int, list[int]]


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return random_model(tiny_config(**CONFIGS[request.param]), vocab=VOCAB, seed=5)


@pytest.fixture(params=[(1, 1), (3, 1), (8, 8)], ids=["room for 1", "room for 3", "in eights"])
def growth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache grows by this number of steps. It rounds slots and tokens up to this multiple."""
    steps, multiple = request.param
    monkeypatch.setattr(decoder_cache, "_GROWTH_STEPS", steps)
    monkeypatch.setattr(decoder_cache, "_shape_multiple_of", lambda x: multiple)


def last_hidden(model: Transformer, rows: Sequence[Row]) -> Tensor:
    """The whole decoder's output [R, D] at the last token of each row, a source's number and a prefix."""
    source = pack([SOURCES[number] for number, _ in rows], device=CPU)
    target = pack([prefix for _, prefix in rows], device=CPU)
    return model.decode(target, model.encode(source), source)[target.cu_seqlens[1:].long() - 1]


def next_pieces(rows: Sequence[Row], step: int) -> list[int]:
    """A piece for each row that no other row gets."""
    return [4 + (step * 7 + place * 5) % (VOCAB - 4) for place in range(len(rows))]


def walk(model: Transformer, rows: list[Row], cache: decoder_cache.DecoderCache, *, steps: int) -> list[Row]:
    """Take steps, each compared with the whole decoder; returns the rows with their new pieces."""
    for _ in range(steps):
        hidden = model.step(torch.tensor([prefix[-1] for _, prefix in rows]), cache)
        # float64, where sums in another order differ by 1e-15.
        torch.testing.assert_close(hidden, last_hidden(model, rows), rtol=1e-10, atol=1e-10)
        rows = [
            (number, [*prefix, piece])
            for (number, prefix), piece in zip(rows, next_pieces(rows, len(rows[0][1])), strict=True)
        ]
    return rows


@pytest.mark.usefixtures("growth")
def test_steps_are_the_whole_decoder_while_rows_are_chosen_and_sentences_leave(model: Transformer) -> None:
    source = pack(SOURCES, device=CPU)
    with torch.no_grad():
        cache = model.new_cache(model.encode(source), source)
        rows: list[Row] = [(number, [BOS]) for number in range(3)]
        rows = walk(model, rows, cache, steps=1)

        # Each sentence opens into two hypotheses, as after the first step of a beam search.
        chosen = [0, 0, 1, 1, 2, 2]
        cache.select(rows=torch.tensor(chosen), sentences=None)
        rows = walk(model, [rows[row] for row in chosen], cache, steps=3)

        # Both hypotheses of sentence 0 go on from its second, those of sentence 1 change places.
        chosen = [1, 1, 3, 2, 4, 5]
        cache.select(rows=torch.tensor(chosen), sentences=None)
        rows = walk(model, [rows[row] for row in chosen], cache, steps=2)

        # Sentence 1 leaves; what stays is reordered at the same time.
        chosen = [1, 0, 5, 5]
        cache.select(rows=torch.tensor(chosen), sentences=torch.tensor([0, 2]))
        rows = walk(model, [rows[row] for row in chosen], cache, steps=3)

        chosen = [2]
        cache.select(rows=torch.tensor(chosen), sentences=torch.tensor([1]))
        walk(model, [rows[row] for row in chosen], cache, steps=2)
    assert cache.num_tokens == 11


def walk_to(
    model: Transformer, numbers: list[int], *, steps: int, width: int
) -> tuple[list[Row], decoder_cache.DecoderCache]:
    """A cache of some sources after so many steps, from the second on with `width` hypotheses each, and its rows."""
    source = pack([SOURCES[number] for number in numbers], device=CPU)
    cache = model.new_cache(model.encode(source), source)
    rows = walk(model, [(number, [BOS]) for number in numbers], cache, steps=1)
    chosen = [place for place in range(len(numbers)) for _ in range(width)]
    cache.select(rows=torch.tensor(chosen), sentences=None)
    return walk(model, [rows[row] for row in chosen], cache, steps=steps - 1), cache


@pytest.mark.usefixtures("growth")
def test_slots_that_no_open_hypothesis_has_are_given_up(model: Transformer) -> None:
    with torch.no_grad():
        rows, cache = walk_to(model, [0, 1, 2], steps=3, width=4)
        for _ in range(8):
            # All hypotheses of a sentence go on from one of them, not the same in each sentence.
            chosen = [place for first in (1, 6, 8) for place in [first] * 4]
            cache.select(rows=torch.tensor(chosen), sentences=None)
            rows = walk(model, [rows[row] for row in chosen], cache, steps=1)
    # One slot for each of ten pieces, and those of the last steps, since slots are given up only now and then.
    assert cache.num_slots < 1 + 4 * 10 if cache.shape_multiple == 1 else cache.num_slots <= 10 + 2 * 4
