"""The model inside a worker process, and its three tasks: a search, a map of attention, the next words.

torch is imported inside functions, because the server imports this file and never torch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from nmt_cli import console
from nmt_cli.artifacts.manifest import holds_model, model_digest
from nmt_cli.decoding.terms import TermList
from nmt_cli.documents.kept_text import find_kept
from nmt_cli.errors import DataError, DeviceError, ModelError, UsageError
from nmt_cli.memory import collect_garbage_rarely
from nmt_cli.recipe.directions import Direction
from nmt_cli.serving.log import configure_server_log
from nmt_cli.tokenization.casing import as_sentence, in_capitals
from nmt_cli.tokenization.pieces import Range

if TYPE_CHECKING:
    import torch

    from nmt_cli.artifacts.model_directory import LoadedModel
    from nmt_cli.decoding.translation import Translation
    from nmt_cli.tokenization.tokenizer import Tokenizer

# Label smoothing gives every piece a little probability; likely pieces have far more.
_MIN_PROBABILITY = 3e-4
# The most probable pieces, among which we look for beginnings of words.
_MAX_PIECES = 64


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a worker runs a model: engine, device and precision as for `nmt decode`, and CPU threads."""

    name: str
    device: str
    precision: str
    threads: int


@dataclass(frozen=True, slots=True)
class AskedSentence:
    """A sentence for a worker, with its direction, ranges of its characters that stay, and terms of its translation.

    The direction is the codes of source and target. A term is text of the sentence, with the forms that translate it.
    With `is_aligned`, the translation says which source words and characters its own are from.
    """

    text: str
    pair: tuple[str, str]
    kept: tuple[Range, ...] = ()
    terms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    is_aligned: bool = False


@dataclass(frozen=True, slots=True)
class SearchTask:
    """The search of one sentence, whose translation begins with `prefix`.

    Sentences with the same search can be searched together.
    """

    beam: int
    nbest: int
    length_penalty: float
    max_extra_tokens: int
    prefix: str


@dataclass(frozen=True, slots=True)
class AttentionTask:
    """The attention between a sentence and this translation of it."""

    target: str


@dataclass(frozen=True, slots=True)
class NextWordsTask:
    """At most `num_words` translations of a sentence that begin with `prefix` and differ in the next word."""

    prefix: str
    num_words: int
    beam: int


SentenceTask = SearchTask | AttentionTask | NextWordsTask


@dataclass(frozen=True, slots=True)
class ModelJob:
    """The job of a worker process: to load a model, and to call functions with it."""

    directory: Path
    engine: EngineSettings

    def start(self) -> Callable[[Callable[[WorkerModel], Any]], Any]:
        """Load the model. The server then asks for its `digest`, and sends `WorkerModel.answer`."""
        console.configure_logging(quiet=True)
        configure_server_log()
        logging.getLogger("nmt_cli.decoding").setLevel(logging.ERROR)
        model = WorkerModel(self.directory, self.engine)
        return lambda question: question(model)


class WorkerModel:
    """The model of a directory; `digest` identifies the model that was loaded."""

    def __init__(self, directory: Path, engine: EngineSettings) -> None:
        """Load the model; UsageError if its engine cannot do everything that requests may ask for."""
        import torch

        from nmt_cli.decoding.engine import open_engine
        from nmt_cli.decoding.translator import LineTranslator

        torch.set_num_threads(engine.threads)
        self._engine = open_engine([directory], engine=engine.name, device=engine.device, precision=engine.precision)
        self._translator = LineTranslator(self._engine)
        self._directory = directory
        self._second_copy: LoadedModel | None = None
        # Computed after loading: if it equals the digest that the server read before, no other model was loaded.
        self.digest = model_digest(directory)
        try:
            first = self._engine.directions.first
            # The first translation is slow.
            self._translator.translate(["."], from_=first.source, to=first.target, samples=0, beam=2)
        except UsageError as error:
            raise UsageError(error.message, setting="engine", hint="take `engine: torch`") from None
        collect_garbage_rarely()

    def answer(self, sentences: Sequence[AskedSentence], task: SentenceTask) -> list[dict[str, Any]]:
        """One answer for each sentence; no error names an option of nmt decode."""
        try:
            match task:
                case SearchTask():
                    return self._search(sentences, task)
                case AttentionTask():
                    return [self._find_attention(sentence, task.target) for sentence in sentences]
                case NextWordsTask():
                    return [self._find_next_words(sentence, task) for sentence in sentences]
                case other:
                    assert_never(other)
        except DeviceError as error:
            raise DeviceError(error.message, hint="give a shorter sentence, or ask for a smaller beam") from None
        except UsageError as error:
            raise UsageError(error.message, hint="leave out how to search: the model's own settings do") from None

    def _search(self, sentences: Sequence[AskedSentence], task: SearchTask) -> list[dict[str, Any]]:
        """The translations as dicts."""
        # The server formed the batch, so the limit of tokens must not divide it. A character has at most four bytes,
        # each a piece at most.
        max_pieces = max((len(sentence.text) for sentence in sentences), default=0) * 4 + 8
        self._check_fits_model("prefix", task.prefix, self._engine.target)
        has_terms = any(sentence.terms for sentence in sentences)
        translations = self._translator.translate(
            [sentence.text for sentence in sentences],
            from_=[sentence.pair[0] for sentence in sentences],
            to=[sentence.pair[1] for sentence in sentences],
            samples=0,
            beam=task.beam,
            nbest=task.nbest,
            length_penalty=task.length_penalty,
            max_extra_tokens=task.max_extra_tokens,
            prefixes=[task.prefix] * len(sentences) if task.prefix else None,
            alignments=any(sentence.is_aligned for sentence in sentences),
            kept=[sentence.kept for sentence in sentences],
            terms=[TermList(dict(sentence.terms)) for sentence in sentences] if has_terms else None,
            split_sentences="never",  # the server did it
            copy_symbols=True,
            stop_loops=True,
            batch_tokens=max_pieces * len(sentences) * task.beam + 1,
        )
        return [asdict(translation) for translation in translations]

    def _find_attention(self, sentence: AskedSentence, target: str) -> dict[str, Any]:
        """The map as text: it is large, and the server only hands it on."""
        from nmt_cli.decoding.attention_maps import attention_between_words

        loaded, device = self._as_torch_model()
        self._check_fits_model("text", sentence.text, loaded.source)
        self._check_fits_model("translation", target, loaded.target)
        direction = loaded.config.languages.find(*sentence.pair)
        found = attention_between_words(loaded, sentence.text, target, direction=direction, device=device)
        return {"map": json.dumps(found.as_json())}

    def _find_next_words(self, sentence: AskedSentence, task: NextWordsTask) -> dict[str, Any]:
        """The likely next words after the prefix, each with the best translation that has it."""
        from nmt_cli.decoding.line_reader import cased_with_prefix

        loaded, device = self._as_torch_model()
        (source, target), prefix = sentence.pair, " ".join(task.prefix.split())
        kept, trained = find_kept(sentence.text), self._engine.trained_lines
        cased = as_sentence(sentence.text, kept, tokenizer=loaded.source, language=source, trained=trained)
        (text, casing), prefix = cased_with_prefix(cased, prefix, tokenizer=loaded.target, language=target)
        self._check_fits_model("text", text, loaded.source)
        self._check_fits_model("prefix", prefix, loaded.target)
        direction = loaded.config.languages.find(source, target)
        pieces = likely_next_pieces(loaded, text, prefix, direction=direction, count=task.num_words, device=device)
        prefixes = [f"{prefix} {piece}".strip() for piece in pieces]
        translations = self._translator.translate(
            [text] * len(prefixes),
            from_=source,
            to=target,
            samples=0,
            beam=task.beam,
            prefixes=prefixes,
            terms=TermList(dict(sentence.terms)) if sentence.terms else None,
            split_sentences="never",
            copy_symbols=True,
            stop_loops=True,
        )

        def as_asked(text: str) -> str:
            return in_capitals(text, [], find_kept(text), target)[0] if casing == "capitals" else text

        words = [
            {"word": as_asked(word), "text": as_asked(best.text), "score": best.score, "log_prob": best.log_prob}
            for word, best in best_by_next_word(translations, prefix).items()
        ]
        return {"words": words}

    def _check_fits_model(self, name: str, text: str, tokenizer: Tokenizer) -> None:
        """Raise DataError, with the name of the request's field, if the text is too long for the model."""
        num_pieces = len(tokenizer.encode_source([text])[0])
        max_pieces = self._engine.max_positions - 1 - self._engine.directions.most_symbols
        if num_pieces > max_pieces:
            message = f"the {name} has {num_pieces:,} pieces, and the model takes {max_pieces:,}"
            raise DataError(message, where=name, hint="give a shorter one")

    def _as_torch_model(self) -> tuple[LoadedModel, torch.device]:
        """The torch model; with CTranslate2, which hides layers and heads, a second copy, loaded at its first use."""
        import torch

        from nmt_cli.artifacts.model_directory import load_model
        from nmt_cli.decoding.torch_engine import TorchEngine

        if isinstance(self._engine, TorchEngine):
            return self._engine.loaded[0], torch.device(self._engine.device)
        if self._second_copy is None:
            if not holds_model(self._directory, self.digest):
                hint = "whoever runs the server must have its models loaded again"
                raise ModelError("the model was replaced, and this one is gone", hint=hint)
            self._second_copy = load_model(self._directory, device=torch.device("cpu"), dtype=torch.float32)
        return self._second_copy, torch.device("cpu")


def likely_next_pieces(
    loaded: LoadedModel, source: str, prefix: str, *, direction: Direction, count: int, device: torch.device
) -> list[str]:
    """At most `count` pieces that may begin the word after `prefix` in a translation of `source`, likeliest first.

    `prefix` ends with a whole word; source and prefix must be short enough for the model.
    """
    from nmt_cli.decoding.search.hypotheses import SourceSentence, SymbolIds
    from nmt_cli.model.teacher_forcing import next_log_probs
    from nmt_cli.tokenization.pieces import SPACE_MARK

    symbols = SymbolIds.of(direction, source=loaded.source, target=loaded.target)
    sentence = SourceSentence(loaded.source.encode_source([source])[0], symbols=symbols)
    decoder_ids = [*sentence.start_ids, *loaded.target.encode([prefix])[0]]
    log_probs_V = next_log_probs(loaded.model, sentence.encoder_ids, decoder_ids, device=device)
    probabilities_V = log_probs_V.exp().cpu()
    likely = probabilities_V.topk(min(_MAX_PIECES, len(probabilities_V)))
    ids = [
        index
        for probability, index in zip(likely.values.tolist(), likely.indices.tolist(), strict=True)
        if probability >= _MIN_PROBABILITY
    ]
    pieces = loaded.target.pieces(ids)
    return [piece[1:] for piece in pieces if piece.startswith(SPACE_MARK) and len(piece) > 1][:count]


def best_by_next_word(translations: Sequence[Translation], prefix: str) -> dict[str, Translation]:
    """The likeliest translation for each word after `prefix`, in their order; those without the prefix are ignored.

    Their own prefixes differ, and a score leaves out the prefix.
    """
    prefix_words = prefix.split()
    best: dict[str, Translation] = {}
    for translation in sorted(translations, key=lambda translation: -translation.log_prob):
        words = translation.text.split()
        if words[: len(prefix_words)] == prefix_words and len(words) > len(prefix_words):
            best.setdefault(words[len(prefix_words)], translation)
    return best
