"""The tokenizer stage of a preparation: tokenizers, trained on a sample of the clean text, or given."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli.artifacts.directory_kinds import did_you_mean
from nmt_cli.cache import cache_folder
from nmt_cli.console import Progress
from nmt_cli.dataset.prepared_data import SIDES
from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors, write_file
from nmt_cli.hub_names import HubName, hub_name
from nmt_cli.preparing.clean_text import CleanText
from nmt_cli.preparing.corpus import DEFAULT_VOCAB_SIZE, Corpus, LocatedCorpus, SideModels, TokenizerConfig
from nmt_cli.processes import FEWER_WORKERS_HINT, worker_pool
from nmt_cli.tokenization.sentencepiece_model import has_our_ids, with_our_ids
from nmt_cli.tokenization.tokenizer import Tokenizer
from nmt_cli.tokenization.train_sentencepiece import TokenizerReport, VocabularyTooLargeError, train_tokenizer

logger = logging.getLogger(__name__)

_COUNTS_FILE = "report.json"
_QUICK_LINES = 10_000  # training on so few takes hardly longer than the start of a process


def write_tokenizers(corpus: Corpus, text: CleanText, directory: Path, *, num_workers: int, progress: Progress) -> None:
    """Train `source.spm` and `target.spm` on the clean training text; they are equal if the vocabulary is shared."""
    job, is_shared = TokenizerJob(text, corpus.tokenizer, directory), corpus.tokenizer.shared
    sides_of_each: Sequence[Sequence[str]] = [SIDES] if is_shared else [(side,) for side in SIDES]
    num_lines = text.counts()["pairs"]["train"] * len(sides_of_each[0])
    num_sampled = min(num_lines, corpus.tokenizer.sample_lines)
    logger.info("tokenizer: training on %s of %s lines", f"{num_sampled:,}", f"{num_lines:,}")
    progress("tokenizer", 0, None)
    trained = _train_all(job, sides_of_each, num_workers=num_workers, is_quick=num_sampled <= _QUICK_LINES)
    if is_shared:
        write_file(directory / "target.spm", (directory / "source.spm").read_bytes(), error=DataError)
        trained *= len(SIDES)
    _write_counts(directory, [{"lines": num_lines, "sampled": one.given, "skipped": one.skipped} for one in trained])
    sizes, kind = [report.vocab_size for report in trained], "shared" if is_shared else "separate"
    logger.info("tokenizer: %s %s pieces", " and ".join(f"{size:,}" for size in dict.fromkeys(sizes)), kind)
    if min(sizes) < (corpus.tokenizer.vocab_size or DEFAULT_VOCAB_SIZE):
        message = "tokenizer: the text is too small for %s, the default; --set tokenizer.vocab_size=N takes another"
        logger.info(message, f"{DEFAULT_VOCAB_SIZE:,}")


def find_given_vocabulary(located: LocatedCorpus) -> dict[str, bytes] | None:
    """The SentencePiece models that the corpus takes from elsewhere, with our ids, by the name of their file here.

    None if a vocabulary is trained. The log tells where models with other ids come from.
    DataError if there is no such file or folder, or if a file is no SentencePiece model of a kind that can be used.
    """
    taken_from = located.corpus.tokenizer.taken_from
    if isinstance(taken_from, SideModels):
        return _vocabulary_of_files([_locate(located, name) for name in (taken_from.source, taken_from.target)])
    found = find_taken_from(located)
    if found is None:
        return None
    if isinstance(found, Path) and found.is_file():
        return _vocabulary_of_files([found, found])
    return _vocabulary_in_directory(found.folder if isinstance(found, HubName) else found)


def find_taken_from(located: LocatedCorpus) -> Path | HubName | None:
    """The file or folder of the vocabulary that both languages take unchanged, or the model on the hub, or None."""
    taken_from = located.corpus.tokenizer.taken_from
    if not isinstance(taken_from, str):
        return None
    path = _locate(located, taken_from)
    if path.is_file() or (path.exists() and not path.is_relative_to(cache_folder())):
        return path
    return hub_name(taken_from) or path


def write_given_vocabulary(models: Mapping[str, bytes], directory: Path) -> None:
    """Write a vocabulary from elsewhere into a directory, with counts of zero, because nothing is trained."""
    for name, model in models.items():
        write_file(directory / name, model, error=DataError)
    _write_counts(directory, [{"lines": 0, "sampled": 0, "skipped": 0}] * 2)


def tokenizer_counts(directory: Path) -> dict[str, Any]:
    """For each side, the number of `lines` to train on, and how many were `sampled` and `skipped`."""
    counts: dict[str, Any] = json.loads((directory / _COUNTS_FILE).read_text(encoding="utf-8"))
    return counts


def sample_lines(text: CleanText, sides: Sequence[str], *, size: int, seed: int) -> Iterator[bytes]:
    """At most `size` lines of the clean training text of these sides, in order, sampled by `seed`.

    A pair with several copies can be sampled once per copy.
    """
    shards = text.shards()
    copies = list(map(text.copies(), (shard.number for shard in shards)))
    parts = [(side, number) for side in sides for number in range(len(shards))]
    totals = [int(copies[number].sum()) for _, number in parts]
    sizes = sizes_of_parts(totals, size=size, seed=seed)
    for index, (side, number) in enumerate(parts):
        if sizes[index] == 0:
            continue
        chosen = np.repeat(np.arange(len(shards[number])), copies[number])
        if sizes[index] < totals[index]:
            generator = np.random.default_rng([seed, index])
            chosen = np.sort(generator.choice(chosen, size=sizes[index], replace=False))
        lines = shards[number].text(side).split(b"\n")
        yield from map(lines.__getitem__, chosen.tolist())


def sizes_of_parts(totals: Sequence[int], *, size: int, seed: int) -> list[int]:
    """How many lines of each part a sample of `size` lines has, given how many each part has in total."""
    generator, total = np.random.default_rng(seed), sum(totals)
    if size >= total:
        return list(totals)
    sizes = generator.multivariate_hypergeometric(totals, size, method="marginals")
    return [int(number) for number in sizes]


@dataclass(frozen=True, slots=True)
class TokenizerJob:
    """Trains the tokenizer of one side or of both, and writes it to `SIDE.spm` of the first side.

    If no size is given and the text is too small for the default size, it gets a vocabulary that suits it.
    """

    text: CleanText
    config: TokenizerConfig
    directory: Path

    def start(self) -> Callable[[Sequence[str]], TokenizerReport]:
        """The function for one tokenizer."""
        return self._train

    def _train(self, sides: Sequence[str]) -> TokenizerReport:
        if self.config.vocab_size is not None:
            return self._train_with(self.config.vocab_size, sides)
        try:
            report = self._train_with(DEFAULT_VOCAB_SIZE, sides)
        except VocabularyTooLargeError as error:
            if error.recommended_size is None:
                raise
            return self._train_with(error.recommended_size, sides)
        if report.recommended_size >= DEFAULT_VOCAB_SIZE:
            return report
        return self._train_with(report.recommended_size, sides)

    def _train_with(self, vocab_size: int, sides: Sequence[str]) -> TokenizerReport:
        return train_tokenizer(
            sample_lines(self.text, sides, size=self.config.sample_lines, seed=self.config.seed),
            vocab_size=vocab_size,
            kind=self.config.kind or "bpe",
            character_coverage=self.config.character_coverage,
            output=self.directory / f"{sides[0]}.spm",
        )


def _train_all(
    job: TokenizerJob, sides_of_each: Sequence[Sequence[str]], *, num_workers: int, is_quick: bool
) -> list[TokenizerReport]:
    """Train each tokenizer in a worker process; a single worker takes quick ones in this process.

    SentencePiece ignores Ctrl-C, and frees its memory only at the end of its process.
    """
    # A pool of one worker would be this process. So ask for two, and give them one tokenizer at a time.
    num_jobs = num_workers if is_quick else max(2, num_workers)
    turns = [sides_of_each] if num_workers > 1 else [[sides] for sides in sides_of_each]
    with worker_pool([job] * num_jobs, hint=FEWER_WORKERS_HINT) as run:
        return [report for turn in turns for report in run(turn)]


def _locate(located: LocatedCorpus, name: str) -> Path:
    """A path of a corpus file: beside it, or else in the working folder, or a model of the hub in the cache."""
    path = Path(name).expanduser()
    candidates = (located.folder / path, path, cache_folder() / "models" / path)
    return next((candidate for candidate in candidates if candidate.exists()), path)


def _vocabulary_of_files(files: Sequence[Path]) -> dict[str, bytes]:
    """The vocabulary of SentencePiece models for source and target, which may be one file; they get our ids."""
    models = {file: _read_with_our_ids(file) for file in files}
    return {f"{side}.spm": models[file] for side, file in zip(SIDES, files, strict=True)}


def _vocabulary_in_directory(directory: Path) -> dict[str, bytes]:
    """The vocabulary of a model, a run or prepared data; SentencePiece models with other ids get ours."""
    models = {}
    for side in SIDES:
        file = directory / f"{side}.spm"
        if not file.is_file():
            raise DataError(
                f"there is no {file.name} in {directory}, from which the vocabulary is to be taken",
                where="tokenizer.taken_from",
                hint=f"{did_you_mean(directory, 'data', 'model', 'run')}"
                "name a model directory, a run, prepared data, or the file that spm_train wrote: "
                "--set tokenizer.taken_from=runs/NAME/averaged",
            )
        Tokenizer.load(file)  # DataError if it is damaged
        content = file.read_bytes()
        models[file.name] = content if has_our_ids(content) else _read_with_our_ids(file)
    logger.info("tokenizer: taken from %s", directory)
    return models


def _read_with_our_ids(file: Path) -> bytes:
    """The SentencePiece model in a file, with our ids; DataError if it cannot be used."""
    try:
        with reading_errors(file):
            model = with_our_ids(file.read_bytes())
    except ValueError as error:
        beside = file.with_suffix(".model")
        name = beside if beside != file and beside.is_file() else "NAME.model"
        hint = "name the file that spm_train wrote, with --model_type=unigram or bpe"
        hint += f": --set tokenizer.taken_from={name}"
        raise DataError(f"{file.name} is {error}", where=str(file), hint=hint) from None
    parts = [f"tokenizer: {file}, a {model.kind} model of {model.num_original_pieces:,} pieces"]
    parts += [f"added {', '.join(model.added)}"] if model.added else []
    parts += [f"it normalises text by {model.normalization}"] if model.normalization else []
    logger.info("%s", "; ".join(parts))
    return model.content


def _write_counts(directory: Path, counts: Sequence[dict[str, int]]) -> None:
    write_file(directory / _COUNTS_FILE, json.dumps(dict(zip(SIDES, counts, strict=True))), error=DataError)
