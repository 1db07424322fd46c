"""The tokenizer stage of a preparation: a vocabulary is trained on a sample of the clean text, or reused."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nmt_cli.artifacts.directory_kinds import did_you_mean, kind_of
from nmt_cli.cache import cache_folder
from nmt_cli.console import Progress
from nmt_cli.dataset.data_manifest import read_manifest
from nmt_cli.dataset.prepared_data import SIDES
from nmt_cli.errors import DataError
from nmt_cli.files import reading_errors, write_file
from nmt_cli.hub import HubName, hub_name
from nmt_cli.languages import match_code
from nmt_cli.preparing.clean_text import CleanText
from nmt_cli.preparing.corpus import DEFAULT_VOCAB_SIZE, LocatedCorpus, SideModels, TokenizerConfig
from nmt_cli.preparing.inputs import fingerprint_of
from nmt_cli.processes import FEWER_WORKERS_HINT, worker_pool
from nmt_cli.recipe.directions import Directions
from nmt_cli.tokenization.sentencepiece_model import (
    has_our_ids,
    normalization,
    read_pieces,
    tokenizer_kind,
    with_our_ids,
)
from nmt_cli.tokenization.tokenizer import MIN_VOCAB_SIZE, Tokenizer
from nmt_cli.tokenization.train_sentencepiece import (
    TokenizerReport,
    VocabularyTooLargeError,
    suitable_size,
    train_tokenizer,
)

logger = logging.getLogger(__name__)

_COUNTS_FILE = "report.json"
_QUICK_LINES = 10_000  # training on so few takes hardly longer than the start of a process


@dataclass(frozen=True, slots=True)
class Trained:
    """A vocabulary that is trained on the clean text. `tags` are the symbols of all tags of the corpus."""

    config: TokenizerConfig
    directions: Directions
    tags: Sequence[str]
    model: ClassVar[None] = None

    def fingerprint(self, text: str) -> str:
        """The fingerprint of this vocabulary of a text, given the text's."""
        return fingerprint_of({"text": text, "tokenizer": self.config.model_dump(exclude={"taken_from"})})

    def write(self, text: CleanText, directory: Path, *, num_workers: int, progress: Progress) -> None:
        """Train `source.spm` and `target.spm` on the clean training text; they are equal if they are shared."""
        symbols = [*self.directions.target_symbols.values(), *self.tags]
        job, is_shared = TokenizerJob(text, self.config, symbols, directory), self.config.shared
        sides_of_each: Sequence[Sequence[str]] = [SIDES] if is_shared else [(side,) for side in SIDES]
        num_lines = text.counts()["pairs"]["train"] * len(sides_of_each[0])
        num_sampled = min(num_lines, self.config.sample_lines)
        logger.info("tokenizer: training on %s of %s lines", f"{num_sampled:,}", f"{num_lines:,}")
        progress("tokenizer", 0, None)
        trained = _train_all(job, sides_of_each, num_workers=num_workers, is_quick=num_sampled <= _QUICK_LINES)
        if is_shared:
            write_file(directory / "target.spm", (directory / "source.spm").read_bytes(), error=DataError)
            trained *= len(SIDES)
        _write_counts(
            directory, [{"lines": num_lines, "sampled": num_sampled, "skipped": one.num_skipped} for one in trained]
        )
        sizes = [report.vocab_size for report in trained]
        found = " and ".join(f"{size:,}" for size in dict.fromkeys(sizes))
        logger.info("tokenizer: %s %s pieces", found, "shared" if is_shared else "separate")
        if min(sizes) < (self.config.vocab_size or DEFAULT_VOCAB_SIZE):
            message = "tokenizer: the text is too small for %s, the default; --set tokenizer.vocab_size=N takes another"
            logger.info(message, f"{DEFAULT_VOCAB_SIZE:,}")


@dataclass(frozen=True)
class Reused:
    """A vocabulary that is used unchanged: of a folder, of a model on the hub, or of a file for each language.

    Its files need not be there before something asks for them. `own` are the directions of the corpus with our symbols,
    and `symbols` are its tags and the user's own symbols.
    """

    place: Path | HubName | tuple[Path, Path]
    own: Directions
    tags: Sequence[str]
    symbols: Sequence[str]

    @property
    def model(self) -> str | None:
        """The model or run that it is taken from, as --init-from takes it; None for other places."""
        is_model = isinstance(self.place, HubName) or (
            isinstance(self.place, Path) and kind_of(self.place) in ("model", "run")
        )
        return str(self.place) if is_model else None

    @cached_property
    def files(self) -> dict[str, bytes]:
        """The SentencePiece models with our ids, by the name of their file in prepared data.

        The log tells where models with other ids come from. DataError if there is no such file or folder, or if a file
        is no SentencePiece model of a kind that can be used.
        """
        if isinstance(self.place, tuple):
            models = {file: _read_with_our_ids(file) for file in dict.fromkeys(self.place)}
            return {f"{side}.spm": models[file] for side, file in zip(SIDES, self.place, strict=True)}
        return _vocabulary_in_directory(self._folder)

    @property
    def _folder(self) -> Path:
        assert not isinstance(self.place, tuple)
        return self.place.folder if isinstance(self.place, HubName) else self.place

    @cached_property
    def directions(self) -> Directions:
        """The directions of the corpus, with the symbols of the vocabulary if it has some.

        DataError if the vocabulary lacks a language or a symbol.
        """
        taken = None if isinstance(self.place, tuple) else _directions_of(self._folder)
        found = _with_symbols_of(taken, self.own) if taken is not None and taken.has_symbols else self.own
        of_each = [found.direction(pair) for pair in found.pairs]
        needed = {
            "source.spm": [*chain.from_iterable(one.source_symbols for one in of_each), *self.tags, *self.symbols],
            "target.spm": [*chain.from_iterable(one.target_symbols for one in of_each), *self.symbols],
        }
        for name, symbols in needed.items():
            pieces = {piece.text for piece in read_pieces(self.files[name])} if symbols else ()
            if missing := [symbol for symbol in dict.fromkeys(symbols) if symbol not in pieces]:
                places = self.place if isinstance(self.place, tuple) else (self.place,)
                place = " and ".join(dict.fromkeys(map(str, places)))
                message = f"the vocabulary of {place} has no symbol {', '.join(missing)}"
                if set(missing) <= set(self.tags):
                    hint = "leave out `tags` and `synthetic` of the sources: a finished vocabulary takes no new symbols"
                    raise DataError(message, where="tokenizer.taken_from", hint=hint)
                raise _unsuitable_error(message)
        return found

    def fingerprint(self, text: str) -> str:
        """The fingerprint of this vocabulary for a text, given the text's."""
        hashes = {name: hashlib.sha256(model).hexdigest() for name, model in self.files.items()}
        symbols = {"languages": self.directions.model_dump()} if self.directions.has_symbols else {}
        return fingerprint_of({"text": text, "tokenizer": hashes, **symbols})

    def write(self, text: CleanText, directory: Path, *, num_workers: int, progress: Progress) -> None:
        """Write the files, with counts of zero, because nothing is trained."""
        for name, model in self.files.items():
            write_file(directory / name, model, error=DataError)
        _write_counts(directory, [{"lines": 0, "sampled": 0, "skipped": 0}] * 2)


def find_vocabulary(located: LocatedCorpus) -> Trained | Reused:
    """The origin of a corpus's vocabulary; nothing is read yet."""
    corpus, config = located.corpus, located.corpus.tokenizer
    place: Path | HubName | tuple[Path, Path]
    match config.taken_from:
        case None:
            return Trained(config, corpus.directions, corpus.tag_symbols)
        case SideModels(source=source, target=target):
            place = (_locate(located, source), _locate(located, target))
        case name:
            path = _locate(located, name)
            is_own = path.exists() and not path.is_relative_to(cache_folder())
            place = (path, path) if path.is_file() else path if is_own else hub_name(name) or path
    return Reused(place, corpus.directions, corpus.tag_symbols, config.symbols)


def tokenizer_counts(directory: Path) -> dict[str, Any]:
    """For each side, the number of `lines` to train on, and how many were `sampled` and `skipped`."""
    counts: dict[str, Any] = json.loads((directory / _COUNTS_FILE).read_text(encoding="utf-8"))
    return counts


def sample_lines(
    text: CleanText, sides: Sequence[str], *, size: int, seed: int, direction: int | None = None
) -> Iterator[bytes]:
    """At most `size` lines of the clean training text of these sides, in order, sampled by `seed`.

    A pair with several copies can be sampled once per copy. `direction` is the only one to sample from; None: all.
    """
    chunks = [chunk for chunk in text.chunks() if direction in (None, chunk.direction)]
    copies = list(map(text.copies(), (chunk.number for chunk in chunks)))
    parts = [(side, number) for side in sides for number in range(len(chunks))]
    totals = [int(copies[number].sum()) for _, number in parts]
    sizes = totals
    if size < sum(totals):
        generator = np.random.default_rng(seed)
        sizes = generator.multivariate_hypergeometric(totals, size, method="marginals").tolist()
    for index, (side, number) in enumerate(parts):
        if sizes[index] == 0:
            continue
        chosen = np.repeat(np.arange(len(chunks[number])), copies[number])
        if sizes[index] < totals[index]:
            generator = np.random.default_rng([seed, index])
            chosen = np.sort(generator.choice(chosen, size=sizes[index], replace=False))
        lines = chunks[number].text(side).split(b"\n")
        yield from map(lines.__getitem__, chosen.tolist())


@dataclass(frozen=True, slots=True)
class TokenizerJob:
    """Trains the tokenizer of one side or of both, and writes it to `SIDE.spm` of the first side.

    If no size is given, little text gets a vocabulary that suits it.
    """

    text: CleanText
    config: TokenizerConfig
    symbols: Sequence[str]
    directory: Path

    def start(self) -> Callable[[Sequence[str]], TokenizerReport]:
        """The function for one tokenizer."""
        return self._train

    def _train(self, sides: Sequence[str]) -> TokenizerReport:
        config, symbols = self.config, self.symbols if SIDES[0] in sides else []
        sample = partial(sample_lines, self.text, sides, size=config.sample_lines, seed=config.seed)
        train = partial(
            train_tokenizer,
            kind=config.kind or "bpe",
            character_coverage=config.character_coverage,
            symbols=symbols,
            user_symbols=config.symbols,
            output=self.directory / f"{sides[0]}.spm",
        )
        if config.vocab_size is not None:
            return train(sample(), vocab_size=config.vocab_size)
        num_symbols = len(symbols) + len(config.symbols)
        try:
            size = suitable_size(sample(), num_symbols=num_symbols, most=DEFAULT_VOCAB_SIZE)
            return train(sample(), vocab_size=size)
        except VocabularyTooLargeError as error:
            if error.largest < MIN_VOCAB_SIZE:
                raise
            return train(sample(), vocab_size=error.largest)


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


def _directions_of(directory: Path) -> Directions | None:
    """The directions of a model, a run or prepared data; None for any other folder."""
    from nmt_cli.artifacts.model_directory import load_saved_config  # imports torch
    from nmt_cli.artifacts.run import open_run

    match kind_of(directory):
        case "model":
            return load_saved_config(directory).languages
        case "run":
            return open_run(directory).record.languages
        case "data":
            return read_manifest(directory).languages
        case _:
            return None


def _with_symbols_of(taken: Directions, own: Directions) -> Directions:
    """The directions of a corpus, with the symbols of the model that its vocabulary is taken from.

    DataError if the model lacks a language, or has one symbol for two.
    """

    def symbols(codes: Sequence[str], of_model: Mapping[str, str]) -> dict[str, str]:
        meant = {code: code if code in of_model else match_code(code, list(of_model)) for code in codes}
        found = {code: of_model[other] for code, other in meant.items() if other is not None}
        if missing := [code for code in codes if code not in found]:
            languages = f"its languages are {', '.join(of_model)}"
            raise _unsuitable_error(f"the vocabulary has no symbol for {', '.join(missing)}: {languages}")
        for symbol in found.values():
            if len(alike := [code for code in found if found[code] == symbol]) > 1:
                raise _unsuitable_error(f"the vocabulary has one symbol for {' and '.join(alike)}, {symbol}")
        return found

    return Directions(
        pairs=own.pairs,
        target_symbols=symbols(own.targets, taken.target_symbols),
        target_symbol_on=taken.target_symbol_on,
        source_symbols=symbols(own.sources, taken.source_symbols) if taken.source_symbols else {},
    )


def _unsuitable_error(message: str) -> DataError:
    hint = "train a vocabulary with this corpus: leave out tokenizer.taken_from"
    return DataError(message, where="tokenizer.taken_from", hint=hint)


def _locate(located: LocatedCorpus, name: str) -> Path:
    """A path of a corpus file: beside it, or else in the working folder, or a model of the hub in the cache."""
    path = Path(name).expanduser()
    candidates = (located.folder / path, path, cache_folder() / "models" / path)
    return next((candidate for candidate in candidates if candidate.exists()), path)


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
            original = file.read_bytes()
            model = with_our_ids(original)
    except ValueError as error:
        beside = file.with_suffix(".model")
        name = beside if beside != file and beside.is_file() else "NAME.model"
        hint = "name the file that spm_train wrote, with --model_type=unigram or bpe"
        hint += f": --set tokenizer.taken_from={name}"
        raise DataError(f"{file.name} is {error}", where=str(file), hint=hint) from None
    num_pieces = len(read_pieces(original))
    num_added = len(read_pieces(model)) - num_pieces
    parts = [f"tokenizer: {file}, a {tokenizer_kind(model)} model of {num_pieces:,} pieces"]
    parts += [f"{num_added} pieces added that nmt needs"] if num_added else []
    parts += [f"it normalises text by {rules}"] if (rules := normalization(model)) else []
    logger.info("%s", "; ".join(parts))
    return model


def _write_counts(directory: Path, counts: Sequence[dict[str, int]]) -> None:
    write_file(directory / _COUNTS_FILE, json.dumps(dict(zip(SIDES, counts, strict=True))), error=DataError)
