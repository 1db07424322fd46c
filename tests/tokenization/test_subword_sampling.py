"""Sampled subwords: the probability of each segmentation, by exhaustive sums and by SentencePiece's own sampling."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
import sentencepiece
from numpy.typing import NDArray

from nmt_cli.tokenization import subword_sampling
from nmt_cli.tokenization.pieces import SPACE_MARK
from nmt_cli.tokenization.sentencepiece_model import CONTROL, NORMAL, Piece, read_pieces, tokenizer_kind, with_pieces
from nmt_cli.tokenization.subword_sampling import SubwordSampler, subword_sampler
from nmt_cli.tokenization.text_encoder import EncodedText
from nmt_cli.tokenization.tokenizer import EOS, UNK
from tests.tokenization.models import OUR_IDS, TEXT, train_spm, trained

Segmentation = tuple[str, ...]
Probabilities = Mapping[Segmentation, float]
NUM_DRAWS, SIGMAS = 20_000, 6


@pytest.fixture(params=["bpe", "unigram"])
def model(request: pytest.FixtureRequest) -> bytes:
    return trained(request.param)


def processor_of(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def encoded(model: bytes, lines: Sequence[str]) -> NDArray[np.uint16]:
    return np.array([number for row in processor_of(model).encode(list(lines)) for number in (*row, EOS)], dtype="<u2")


def sample(sampler: SubwordSampler, ids: NDArray[np.uint16], *, seed: int = 1, longest: int = 999) -> list[list[int]]:
    """The ids of each line, without EOS."""
    found = sampler.sample(ids, longest=longest, generator=np.random.default_rng(seed))
    rows = _lines(found)
    assert {int(row[-1]) for row in rows} == {EOS}
    return [row[:-1].tolist() for row in rows]


def _lines(text: EncodedText) -> list[NDArray[np.unsignedinteger]]:
    return np.split(text.ids, np.cumsum(text.lengths)[:-1])


def scores_of(model: bytes) -> dict[str, float]:
    return {piece.text: piece.score for piece in read_pieces(model) if piece.kind == NORMAL}


def by_dropout(word: str, scores: Mapping[str, float], *, probability: float) -> Probabilities:
    """The probabilities of BPE-dropout, summed over all ways to skip merges.

    A merge comes up by its score, then from left to right. Once skipped, it comes up no more for these two symbols.
    """
    found: Counter[Segmentation] = Counter()

    def follow(symbols: Segmentation, skipped: frozenset[tuple[int, int]], reached: float) -> None:
        begins = np.cumsum([0, *map(len, symbols)]).tolist()
        coming = [
            (-scores[symbols[i] + symbols[i + 1]], i)
            for i in range(len(symbols) - 1)
            if symbols[i] + symbols[i + 1] in scores and (begins[i], begins[i + 2]) not in skipped
        ]
        if not coming:
            found[symbols] += reached  # type: ignore[assignment]  # a Counter of fractions
            return
        i = min(coming)[1]
        follow((*symbols[:i], symbols[i] + symbols[i + 1], *symbols[i + 2 :]), skipped, reached * (1 - probability))
        follow(symbols, skipped | {(begins[i], begins[i + 2])}, reached * probability)

    follow(tuple(word), frozenset(), 1.0)
    return found


def by_power(word: str, scores: Mapping[str, float], *, power: float) -> Probabilities:
    """The probabilities of all segmentations, to a power, over their sum."""

    def all_ways(text: str) -> Iterator[Segmentation]:
        if not text:
            yield ()
        for stop in range(1, len(text) + 1):
            if text[:stop] in scores:
                yield from ((text[:stop], *rest) for rest in all_ways(text[stop:]))

    weights = {way: math.exp(power * sum(scores[piece] for piece in way)) for way in all_ways(word)}
    return {way: weight / sum(weights.values()) for way, weight in weights.items()}


def assert_frequencies(rows: Sequence[Sequence[int]], expected: Probabilities, model: bytes) -> None:
    pieces = [piece.text for piece in read_pieces(model)]
    found = Counter(tuple(pieces[number] for number in row) for row in rows)
    assert found.keys() <= expected.keys()
    assert sum(expected.values()) == pytest.approx(1)
    for way, probability in expected.items():
        deviation = (len(rows) * probability * (1 - probability)) ** 0.5
        assert abs(found[way] - len(rows) * probability) <= SIGMAS * deviation + 1, way


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_segmentations_have_the_probabilities_of_the_papers_and_of_sentencepiece(model: bytes, alpha: float) -> None:
    scores, num_tested = scores_of(model), 0
    for word in sorted({word for line in TEXT for word in line.split()}):
        marked = SPACE_MARK + word
        ways = by_power(marked, scores, power=alpha)
        if not 8 <= len(ways) <= subword_sampling._NUM_BEST:
            continue
        is_bpe = tokenizer_kind(model) == "bpe"
        expected = by_dropout(marked, scores, probability=alpha) if is_bpe else ways
        rows = sample(subword_sampler(model, alpha=alpha), encoded(model, [word] * NUM_DRAWS))
        assert_frequencies(rows, expected, model)
        sentencepiece.set_random_generator_seed(1)  # of threads that begin later, here of one
        theirs = processor_of(model).encode(
            [word] * NUM_DRAWS, enable_sampling=True, alpha=alpha, nbest_size=-1, num_threads=1
        )
        assert_frequencies(theirs, expected, model)
        num_tested += 1
        if num_tested == 4:
            return
    raise AssertionError(f"only {num_tested} words have that many segmentations")


def test_lines_keep_their_text_and_get_other_pieces(model: bytes) -> None:
    ids, processor = encoded(model, TEXT), processor_of(model)
    first, other = (sample(subword_sampler(model, alpha=0.2), ids, seed=seed) for seed in (1, 2))
    assert processor.decode(first) == processor.decode(other) == TEXT
    assert np.mean([a != b for a, b in zip(first, other, strict=True)]) > 0.8


def test_symbols_before_a_line_stay_and_the_rest_is_sampled_as_without_them(model: bytes) -> None:
    pieces = [*read_pieces(model), Piece("<2de>", 0.0, CONTROL)]
    with_symbol, symbol = with_pieces(model, pieces, has_bytes=True), len(pieces) - 1
    rows = [[symbol, *row, EOS] for row in processor_of(model).encode(TEXT)]
    ids = np.array([number for row in rows for number in row], dtype="<u2")
    found = sample(subword_sampler(with_symbol, alpha=0.2), ids)
    assert [row[0] for row in found] == [symbol] * len(TEXT)
    assert processor_of(model).decode([row[1:] for row in found]) == TEXT
    assert np.mean([a != b[1:-1] for a, b in zip([row[1:] for row in found], rows, strict=True)]) > 0.5


def test_ids_follow_from_the_generator_and_not_from_what_was_sampled_before(model: bytes) -> None:
    ids = encoded(model, TEXT[:200])
    expected = sample(subword_sampler(model, alpha=0.2), ids)
    used = subword_sampler(model, alpha=0.2)
    sample(used, encoded(model, TEXT[200:]), seed=7)
    assert sample(used, ids) == expected
    num_words, used._max_cached_segmentations = len(used._first_segmentations), 10  # the cache is emptied each time
    assert sample(used, ids) == expected
    assert len(used._first_segmentations) < num_words


def test_a_line_that_becomes_too_long_keeps_its_ids(model: bytes) -> None:
    ids, processor = encoded(model, TEXT), processor_of(model)
    before, sampler = processor.encode(TEXT), subword_sampler(model, alpha=0.2)
    free = sample(sampler, ids)
    longest = int(np.median([len(row) + 1 for row in free]))
    expected = [a if max(len(a), len(b)) < longest else b for a, b in zip(free, before, strict=True)]
    assert sample(sampler, ids, longest=longest) == expected
    assert 0.2 < np.mean([a == b for a, b in zip(expected, before, strict=True)]) < 0.8


def test_words_whose_ids_do_not_follow_from_their_text_keep_them(model: bytes) -> None:
    processor = processor_of(model)
    word = processor.encode(TEXT[0].split()[0])
    bytewise = [processor.piece_to_id(SPACE_MARK), *(processor.piece_to_id(f"<0x{b:02X}>") for b in b"garden")]
    lines = [[*word, UNK], bytewise, [], [UNK]]
    ids = np.array([number for line in lines * 50 for number in (*line, EOS)], dtype="<u2")
    rows = sample(subword_sampler(model, alpha=0.5), ids)
    assert {tuple(row[-1:]) for row in rows[::4]} == {(UNK,)}
    assert [row for place, row in enumerate(rows) if place % 4] == [bytewise, [], [UNK]] * 50


def test_a_merge_is_kept_if_a_character_can_neither_be_found_nor_spelt() -> None:
    """As in vocabularies of Marian: no bytes, and a `q` only within longer pieces. The next merge may be skipped."""
    texts = ["qu", "u", "▁qu", "▁"]
    pieces = [*read_pieces(trained("bpe"))[:4], *(Piece(text, -float(rank), NORMAL) for rank, text in enumerate(texts))]
    model = with_pieces(trained("bpe"), pieces, has_bytes=False)
    rows = sample(subword_sampler(model, alpha=0.9), encoded(model, ["qu"] * NUM_DRAWS))
    assert_frequencies(rows, {("▁qu",): 0.1, ("▁", "qu"): 0.9}, model)


def test_a_vocabulary_with_pieces_across_spaces_is_sampled_by_lines() -> None:
    model = train_spm(
        TEXT * 3,
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        split_by_whitespace=False,
        normalization_rule_name="identity",
        **OUR_IDS,
    )
    assert any(SPACE_MARK in text[1:] for text in scores_of(model))
    processor, lines = processor_of(model), TEXT[:100]
    rows = sample(subword_sampler(model, alpha=0.2), encoded(model, lines))
    assert processor.decode(rows) == lines
    assert np.mean([a != b for a, b in zip(rows, processor.encode(lines), strict=True)]) > 0.9
