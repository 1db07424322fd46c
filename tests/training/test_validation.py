"""The samples of a validation; and its search on a GPU: recorded steps, with a tape in place of CUDA graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from nmt_cli.api import Translator
from nmt_cli.dataset.prepared_data import PreparedData
from nmt_cli.decoding.search.searcher import Searcher
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.scoring.metrics import ScoreReport, bleu
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.training import validation as module
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.stop_signal import StopAsked
from nmt_cli.training.update import Updater
from nmt_cli.training.validation import Validation, Validator
from tests.dataset.synthetic import in_two_directions
from tests.training.feeding import Feed, feed
from tests.training.tiny import events, parallel_text, prepare_tiny

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ALONE = Ranks(0, 1, CPU)


@pytest.fixture
def training(prepared: PreparedData) -> tuple[Feed, Updater]:
    """A training of a few updates, after which translations differ from update to update."""
    given = feed(prepared, "training.ema=0.5", "decoding.max_extra_tokens=8", "decoding.beam=2")
    updater = given.updater("fp32")
    take(given, updater, 1)
    return given, updater


def take(given: Feed, updater: Updater, number: int) -> None:
    for _, update in given.updates(number):
        given.give(updater, 40, update)


def measured(validator: Validator) -> tuple[Validation, list[str]]:
    """The figures, and the translations that were scored."""
    found: list[str] = []

    def noted(translations: Sequence[str], references: Sequence[str], *, target_language: str | None) -> ScoreReport:
        found.extend(translations)
        return bleu(translations, references, target_language=target_language)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "bleu", noted)
        return validator.measure(max_sentences=None, beat=lambda: None), found


def test_one_search_serves_all_validations_and_follows_the_weights(
    training: tuple[Feed, Updater], monkeypatch: pytest.MonkeyPatch
) -> None:
    searchers = list[Searcher]()

    def noted(models: Sequence[Transformer], *, device: torch.device) -> Searcher:
        searchers.append(Searcher(models, device=device))
        return searchers[-1]

    monkeypatch.setattr(module, "searcher_for", noted)
    given, updater = training
    validator = Validator(given.recipe, given.data, updater, given.order, ranks=ALONE)
    first, translations = measured(validator)
    take(given, updater, 8)
    second, others = measured(validator)
    assert others != translations
    assert second.loss < first.loss
    assert len(searchers) == 1


@dataclass(slots=True)
class RankInThread(Ranks):
    """One of two ranks in threads of this process, which share a list."""

    parts: list[Any] = field(default_factory=list)
    meeting: Barrier = field(default_factory=lambda: Barrier(2))

    def gather(self, part: Any) -> list[Any]:
        """The parts of both."""
        self.parts[self.rank] = part
        self.meeting.wait(60)
        parts = list(self.parts)
        self.meeting.wait(60)
        return parts


@pytest.mark.parametrize("num_directions", [1, 2])
def test_two_ranks_share_a_validation_and_find_what_one_finds(
    prepared: PreparedData, tmp_path: Path, num_directions: int
) -> None:
    data = prepared if num_directions == 1 else in_two_directions(prepared, tmp_path / "data", num_back=100)
    settings = ("decoding.max_extra_tokens=8", "decoding.batch_tokens=256", "validation.max_sentences=null")
    parts, meeting = [None, None], Barrier(2)
    validators = []
    for ranks in (ALONE, *(RankInThread(rank, 2, CPU, parts=parts, meeting=meeting) for rank in (0, 1))):
        given = feed(data, *settings)
        updater = given.updater("fp32")
        take(given, updater, 3)
        validators.append(Validator(given.recipe, given.data, updater, given.order, ranks=ranks))
    alone, *together = validators
    expected = alone.measure(max_sentences=None, beat=lambda: None)
    beats = Counter[int]()

    def validate(rank: int, *, stops: bool) -> Validation | None:
        def beat() -> None:
            beats[rank] += 1
            if stops and rank == 1:
                raise StopAsked

        try:
            return together[rank].measure(max_sentences=None, beat=beat)
        except StopAsked:
            return None

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(partial(validate, stops=False), (0, 1)))
        assert list(pool.map(partial(validate, stops=True), (0, 1))) == [None, None]
    assert [replace(one, seconds=0.0) for one in found if one] == [replace(expected, seconds=0.0)] * 2
    assert min(beats[0], beats[1]) > 2


@pytest.mark.parametrize(("language", "tokens"), [("zh", "zh"), ("th", "char"), ("de", "13a")])
def test_bleu_counts_the_tokens_of_the_target_language(
    training: tuple[Feed, Updater], language: str, tokens: str
) -> None:
    given, updater = training
    validator = Validator(given.recipe, given.data, updater, given.order, ranks=ALONE)
    (part,) = validator._held_out
    validator._held_out = [replace(part, languages=LanguagePair(source="en", target=language))]
    found = validator.measure(max_sentences=None, beat=lambda: None)
    assert f"|tok:{tokens}|" in (found.signature or "")


def test_white_space_in_validation_text_is_that_of_training_text(tmp_path: Path) -> None:
    pairs = parallel_text(120, seed=3)
    odd = [(f" {source}\t".replace(" ", "  "), target) for source, target in pairs[:20]]
    found = []
    for name, valid in (("tidy", pairs[:20]), ("odd", odd)):
        given = feed(prepare_tiny(tmp_path, train=pairs[20:], valid=valid, name=name))
        found.append(Validator(given.recipe, given.data, given.updater("fp32"), given.order, ranks=ALONE)._sources)
    assert found[0] == found[1]


def test_samples_are_the_translations_of_the_same_sentences_from_short_to_long(
    prepared: PreparedData, finished_run: Callable[..., Path]
) -> None:
    run = finished_run("validation.max_sentences=null", "decoding.beam=1")
    first, *_, last = (event["samples"] for event in events(run, "validation"))
    sources, references = prepared.texts("valid")
    pairs = [(sample["source"], sample["reference"]) for sample in first]
    assert pairs == [(sample["source"], sample["reference"]) for sample in last]
    assert len(set(pairs)) == 5
    assert set(pairs) <= {*zip(sources, references, strict=True)}
    lengths = [len(row) for row in Tokenizer.load(run / "source.spm").encode([source for source, _ in pairs])]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]
    # The model of the last update was validated last.
    translations = Translator.from_pretrained(run / "model", device="cpu").translate([source for source, _ in pairs])
    assert [sample["translation"] for sample in last] == [found.text for found in translations]


def test_there_are_as_many_samples_as_sentences_and_none_without_bleu(finished_run: Callable[..., Path]) -> None:
    few = finished_run("training.updates=8", "validation.max_sentences=3")
    assert [len(event["samples"]) for event in events(few, "validation")] == [3]
    without = finished_run("training.updates=8", "validation={every: 8, bleu: false, metric: loss}")
    assert [event["samples"] for event in events(without, "validation")] == [[]]
