"""Several directions in one training: symbols, temperature, figures of each direction, and resumption."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt_cli.api import Translator
from nmt_cli.artifacts.run import open_run
from nmt_cli.artifacts.weights import read_tensors
from nmt_cli.cli.info import info
from nmt_cli.cli.report import report
from nmt_cli.dataset.prepared_data import PreparedData, held_out_files, held_out_lines
from nmt_cli.dataset.sampled_pieces import SampledPieces
from nmt_cli.errors import RecipeError
from nmt_cli.scoring.metrics import bleu
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.runs import _trained_lines
from nmt_cli.training.validation import Validator, measure_average
from tests.dataset.synthetic import in_two_directions, sentences
from tests.training.feeding import feed
from tests.training.tiny import LEARNT, checkpoint, events, stopped_after, train

SETTINGS = ("training.temperature=5", *LEARNT, "validation.every=60", "validation.max_sentences=12")
BOTH = ("en-de", "de-en")


@pytest.fixture(scope="module")
def data_with(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], PreparedData]:
    """400 pairs from English into German, and 100 of them back, with a symbol for each target language on a side."""

    @functools.cache
    def make(side: str) -> PreparedData:
        folder = tmp_path_factory.mktemp(side) / "data"
        return in_two_directions(prepared, folder, num_back=100, symbol_on="target" if side == "target" else "source")

    return make


@pytest.fixture(scope="module")
def run_with(
    data_with: Callable[[str], PreparedData], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """An uninterrupted training with this data."""

    @functools.cache
    def make(side: str) -> Path:
        run = tmp_path_factory.mktemp(side) / "run"
        assert train(data_with(side), run, *SETTINGS) == 0
        return run

    return make


@pytest.mark.parametrize("side", ["source", "target"])
def test_each_direction_has_the_figures_of_its_own_text_and_their_mean_decides(
    data_with: Callable[[str], PreparedData], run_with: Callable[[str], Path], side: str
) -> None:
    data, run = data_with(side), run_with(side)
    last = events(run, "validation")[-1]
    scores = last["by_direction"]
    assert (*scores,) == BOTH
    for key in ("loss", "bleu"):
        assert last[key] == pytest.approx(sum(scores[name][key] for name in BOTH) / 2)
    translator = Translator.from_pretrained(run / "model", device="cpu")
    pairs = data.manifest.languages.pairs
    for pair, files in zip(pairs, held_out_files("valid", pairs), strict=True):
        src, ref = (held_out_lines(data.directory / file)[:12] for file in files)
        found = [one.text for one in translator.translate(src, to=pair.target, from_=pair.source)]
        assert scores[str(pair)]["bleu"] == pytest.approx(bleu(found, ref, target_language=pair.target).value)
    assert scores["en-de"]["bleu"] > 5  # it has learnt to tell the languages apart
    single = run / "checkpoints/update-00000060"
    weights = read_tensors(single / "model.safetensors", hint="")
    assert measure_average(open_run(run), weights, single=single).loss == pytest.approx(last["loss"], abs=1e-4)
    assert {sample["direction"] for sample in last["samples"]} == {*BOTH}


def test_a_training_that_was_stopped_ends_with_the_same_bits(
    data_with: Callable[[str], PreparedData], run_with: Callable[[str], Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with stopped_after(25):
        assert train(data_with("source"), run, *SETTINGS) == 75
    assert train(data_with("source"), run, *SETTINGS) == 0
    assert checkpoint(run, 60) == checkpoint(run_with("source"), 60)
    figures = [[event["by_direction"] for event in events(one, "validation")] for one in (run, run_with("source"))]
    assert figures[0] == figures[1]


def test_a_direction_without_validation_text_is_told_and_does_not_count(
    data_with: Callable[[str], PreparedData], caplog: pytest.LogCaptureFixture
) -> None:
    whole = data_with("source")
    valid = whole.manifest.splits["valid"]
    part = valid.model_copy(update={"pairs": 20, "by_direction": [20, 0]})
    manifest = whole.manifest.model_copy(update={"splits": {**whole.manifest.splits, "valid": part}})
    found = []
    for data in (whole, replace(whole, manifest=manifest)):
        given = feed(data, "decoding.beam=1")
        validator = Validator(
            given.recipe, data, given.updater("fp32"), given.order, ranks=Ranks(0, 1, torch.device("cpu"))
        )
        found.append(validator.measure(max_sentences=None, beat=lambda: None))
    assert caplog.messages == ["there is no validation text of de-en: no figure is of it"]
    assert (*found[1].by_direction,) == ("en-de",)
    assert found[1].loss == pytest.approx(found[0].by_direction["en-de"].loss, rel=1e-5)
    assert found[1].loss != pytest.approx(found[0].loss, rel=1e-3)


def test_sampled_pieces_keep_the_symbols(data_with: Callable[[str], PreparedData], tmp_path: Path) -> None:
    data = data_with("source")
    tokenizer, prepared = Tokenizer.load(data.source_tokenizer_file), sentences(data.split("train").src)
    pieces = SampledPieces(data, tmp_path, alpha=0.3, seed=1, max_tokens_in_sentence=128, beat=lambda: None)
    sampled = sentences(pieces.open(0).src)
    assert [row[0] for row in sampled] == [row[0] for row in prepared]
    assert not {row[0] for row in sampled} & {number for row in sampled for number in row[1:]}
    assert tokenizer.decode(sampled) == tokenizer.decode(prepared)
    assert sampled != prepared


def test_symbols_and_tags_do_not_count_as_pieces_of_a_line(prepared: PreparedData, tmp_path: Path) -> None:
    in_one = in_two_directions(prepared, tmp_path / "data", num_back=0, tags=["<bt>", "<news>"])
    assert _trained_lines(in_one, None, max_positions=99) == _trained_lines(prepared, None, max_positions=99)


def test_a_temperature_for_one_direction_is_refused(prepared: PreparedData, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="temperature is 5, but the data has one direction"):
        train(prepared, tmp_path / "run", "training.temperature=5")
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_how_many_pairs_of_each_direction_an_epoch_has(
    data_with: Callable[[str], PreparedData], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = data_with("source")
    lengths = [side.lengths for side in (data.split("train").src, data.split("train").tgt)]
    mean_lengths = [(side[:400].mean(), side[400:].mean()) for side in lengths]
    for temperature, expected in (
        (1, "epoch: en-de 400, de-en 100"),
        (5, "epoch by temperature 5: en-de 284, de-en 216"),  # 400 ** 0.2 : 100 ** 0.2
    ):
        settings = f"training.temperature={temperature}", "training.batch_tokens=60"
        train(data, tmp_path / "run", *settings, dry_run=True)
        told = capsys.readouterr().out
        assert f"# pairs of each direction in an {expected}\n" in told
        numbers = [int(number) for number in re.findall(r"(?:en-de|de-en) (\d+)", expected)]
        tokens = [np.dot(means, numbers) for means in mean_lengths]
        assert f"# epoch: about {max(tokens) / 60:.0f} updates of 500 pairs" in told


def test_page_card_and_info_have_the_figures_of_each_direction(
    run_with: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page = run_with("source"), tmp_path / "page.html"
    last = events(run, "validation")[-1]["by_direction"]
    info(run)
    told = capsys.readouterr().out
    report([run], output=page)
    card = (run / "model/README.md").read_text(encoding="utf-8")
    html = page.read_text(encoding="utf-8")
    assert "en to de, de to en" in html
    assert f"nmt decode -m {run / 'model'} --to de < input.txt" in told
    for name in BOTH:
        loss, score = f"{last[name]['loss']:.4f}", f"{last[name]['bleu']:.2f}"
        assert f"{name}: loss {loss}, BLEU {score}" in told
        assert f"| {name} | {loss} | {score} |" in card
        assert f">{name}</th>" in html
    assert "Training pairs: en-de 400, de-en 100." in card
