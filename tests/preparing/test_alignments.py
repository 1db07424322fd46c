"""Word alignments beside a corpus: they go with their pairs into prepared data, and mistakes in them are named."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from nmt_cli.dataset.links import WordLinks, has_links
from nmt_cli.dataset.prepared_data import PreparedData, open_prepared
from nmt_cli.tokenization.pieces import word_ids
from nmt_cli.tokenization.tokenizer import Tokenizer
from tests.dataset.synthetic import sentences
from tests.preparing.corpus_files import Pairs, contents, corpus_of, invented_pairs, refusal, run, write_prefix
from tests.preparing.test_command import OWN, nmt

TEXT = "{{kind: text, prefix: train, alignments: {}}}"


def random_alignments(pairs: Pairs, *, seed: int) -> list[str]:
    """Some pairs of words of each pair; every tenth has none."""
    random = Random(seed)
    lines = []
    for number, pair in enumerate(pairs):
        counts = [len(text.split()) for text in pair]
        num_links = 0 if number % 10 == 0 or 0 in counts else 6
        links = ("-".join(str(random.randrange(count)) for count in counts) for _ in range(num_links))
        lines.append(" ".join(links))
    return lines


def write_lines(file: Path, lines: Sequence[str]) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def write_texts(folder: Path) -> Pairs:
    """Write training and validation text; the training pairs."""
    pairs = invented_pairs(300, seed=3)
    write_prefix(folder / "train", pairs)
    write_prefix(folder / "valid", invented_pairs(320, seed=5)[300:])
    return pairs


def links_of(data: PreparedData) -> dict[tuple[str, str], set[tuple[int, int]]]:
    """The links of tokens of each training pair, source and target, EOS not counted."""
    pairs, links = data.split("train"), WordLinks(data)
    sides = (data.source_tokenizer_file, pairs.src), (data.target_tokenizer_file, pairs.tgt)
    texts = zip(*(Tokenizer.load(file).decode(sentences(rows)) for file, rows in sides), strict=True)
    rows = pairs.rows(np.arange(len(pairs)))
    src_ids, tgt_ids = pairs.src.ids(0, len(pairs)), pairs.tgt.ids(0, len(pairs))
    found: list[set[tuple[int, int]]] = [set() for _ in rows]
    of_tokens = links.of_tokens(rows, src_ids, tgt_ids)
    for sentence, target, source in of_tokens.places.T.tolist():
        found[sentence].add((source, target))
    # The links of a target token have shares that sum to 1.
    for place in {(sentence, target) for sentence, target, _ in of_tokens.places.T.tolist()}:
        is_of_token = (of_tokens.places[0] == place[0]) & (of_tokens.places[1] == place[1])
        assert of_tokens.shares[is_of_token].sum().item() == pytest.approx(1)
    return dict(zip(texts, found, strict=True))


@pytest.mark.parametrize("name", ["train.align", "train.align.gz"])
def test_links_go_with_their_pairs_through_cleaning_and_reach_each_piece_of_a_word(tmp_path: Path, name: str) -> None:
    pairs = invented_pairs(300, seed=3)
    pairs[7] = ("Too short.", "")  # dropped
    pairs[8] = pairs[20]  # a duplicate, of which the first is kept
    pairs[31] = (pairs[31][0].replace(" ", "\u00a0", 1), pairs[31][1])  # becomes a space in a source
    pairs[32] = (pairs[32][0], pairs[32][1].replace(" ", "\u00a0", 1))  # is spelt in bytes
    lines = random_alignments(pairs, seed=4)
    lines[7], lines[20] = "", "0-0"
    write_prefix(tmp_path / "train", pairs)
    write_prefix(tmp_path / "valid", invented_pairs(320, seed=5)[300:])
    write_lines(tmp_path / name, lines)
    source = TEXT.format(f"{name}, weight: 1.5")
    data = open_prepared(run(corpus_of(tmp_path, source), tmp_path / "data").directory)
    found, tokenizer = links_of(data), Tokenizer.load(data.source_tokenizer_file)
    assert len(data.split("train")) > 1.3 * len(found)
    lines_of_pairs = {
        (src.replace("\u00a0", " "), tgt): line for (src, tgt), line in zip(pairs[8:], lines[8:], strict=True)
    }
    kept = {pair: line for pair, line in lines_of_pairs.items() if pair in found}
    kept[pairs[8]] = lines[8]
    assert len(kept) == 291
    assert len(found) == 298
    for pair, line in kept.items():
        pieces = [tokenizer.pieces(ids) for ids in tokenizer.encode(list(pair))]
        words = [word_ids(side) for side in pieces]
        wanted = {tuple(map(int, link.split("-"))) for link in line.split()}
        linked = {link for link in found[pair] if all(words[side][link[side]] is not None for side in (0, 1))}
        spelt_in_bytes = any("<0xC2>" in side for side in pieces)
        assert {(words[0][source], words[1][target]) for source, target in linked} == (
            set() if spelt_in_bytes else wanted
        )
        # A token of a linked word is linked as a whole word is.
        assert {target for _, target in linked} == {
            target for target, word in enumerate(words[1]) if word in {other for _, other in wanted}
        } - ({*range(len(pieces[1]))} if spelt_in_bytes else set())


def test_data_without_alignments_has_no_files_of_them(tmp_path: Path) -> None:
    pairs = write_texts(tmp_path)
    write_lines(tmp_path / "a", random_alignments(pairs, seed=4))
    without = run(corpus_of(tmp_path, "{kind: text, prefix: train}"), tmp_path / "without").directory
    beside = run(corpus_of(tmp_path, TEXT.format("a")), tmp_path / "with").directory
    assert not has_links(open_prepared(without))
    assert has_links(open_prepared(beside))
    plain, linked = contents(without), contents(beside)
    assert linked.keys() - plain.keys() == {"train.links.ids", "train.links.offsets"}
    token_files = [name for name in plain if name.endswith((".ids", ".offsets"))]
    assert [plain[name] for name in token_files] == [linked[name] for name in token_files]


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        ({4: "0-0 1:1"}, "a:5", "'1:1' is no pair of words"),
        ({4: "0-0 1-"}, "a:5", "'1-' is no pair of words"),
        ({11: "0-0 40-1"}, "a:12", "the source has no word 40: it has"),
        ({11: "0-0 0-40"}, "a:12", "the target has no word 40: it has"),
    ],
)
def test_a_mistake_in_an_alignment_is_named_by_file_and_line(
    tmp_path: Path, change: dict[int, str], where: str, message: str
) -> None:
    pairs = write_texts(tmp_path)
    lines = random_alignments(pairs, seed=4)
    for number, line in change.items():
        lines[number] = line
    write_lines(tmp_path / "a", lines)
    error = refusal(lambda: run(corpus_of(tmp_path, TEXT.format("a")), tmp_path / "data"))
    assert error.where == str(tmp_path / where)
    assert error.message.startswith(message)
    assert "0-0 1-2" in error.hint


@pytest.mark.parametrize("num_lines", [299, 301])
def test_alignments_have_a_line_for_each_pair(tmp_path: Path, num_lines: int) -> None:
    write_texts(tmp_path)
    write_lines(tmp_path / "a", ["0-0"] * num_lines)
    error = refusal(lambda: run(corpus_of(tmp_path, TEXT.format("a")), tmp_path / "data"))
    assert error.message == f"a has {num_lines} lines, and train.en has 300 pairs"


def test_the_command_takes_a_file_for_each_training_text(tmp_path: Path) -> None:
    pairs = write_texts(tmp_path)
    write_lines(tmp_path / "a", random_alignments(pairs, seed=4))
    done = nmt(["prepare", *OWN, "--alignments", "a"], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "aligned: 270 of 300 training pairs have links between their words\n" in done.stderr
    assert has_links(open_prepared(tmp_path / "out/mine"))
    again = nmt(["prepare", *OWN, "--alignments", "a"], folder=tmp_path)
    assert "out/mine is already prepared" in again.stderr
    without = nmt(["prepare", *OWN], folder=tmp_path)
    assert (without.returncode, without.stdout) == (4, "")
    refused = nmt(["prepare", *OWN, "--alignments", "a", "--alignments", "a"], folder=tmp_path)
    assert refused.returncode == 2
    assert "there are 2 files of alignments, and 1 training texts" in refused.stderr
