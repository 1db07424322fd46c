"""The other programs of a comparison: a model's copy in CTranslate2 or in transformers.

Both classes are an `OtherProgram` of verification.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nmt_cli.artifacts.model_directory import LoadedModel
from nmt_cli.decoding.ctranslate2.model import import_ctranslate2
from nmt_cli.errors import import_package
from nmt_cli.interchange.marian_model import CLASSES, HuggingFaceKind
from nmt_cli.interchange.marian_vocabulary import VocabularyRow, names_for_marian, row_name
from nmt_cli.tokenization.tokenizer import BOS, EOS, UNK, Tokenizer

_BATCH_SENTENCES = 32


class CTranslate2Program:
    """A CTranslate2 directory on the CPU."""

    def __init__(self, directory: Path, source: Tokenizer) -> None:
        self._source = source
        self._translator = import_ctranslate2().Translator(
            str(directory), device="cpu", inter_threads=1, intra_threads=torch.get_num_threads()
        )
        # The type of numbers depends on the CPU as well as on the directory.
        self.name = f"CTranslate2 ({self._translator.compute_type})"

    def encode(self, lines: Sequence[str]) -> list[list[str]]:
        """The source pieces of each line: the tokenizer is the model's own."""
        return [self._source.pieces(row) for row in self._source.encode(lines)]

    def log_probs(self, sources: Sequence[list[str]], targets: Sequence[list[str]]) -> list[list[float]]:
        """The log-probability of each target piece and of the end after them."""
        results = self._translator.score_batch(list(sources), list(targets), max_batch_size=_BATCH_SENTENCES)
        return [list(map(float, result.log_probs)) for result in results]


def ctranslate2_of_npz(
    npz: Path, loaded: LoadedModel, *, source: Sequence[VocabularyRow], target: Sequence[VocabularyRow]
) -> CTranslate2Program:
    """CTranslate2's own conversion of a Marian .npz file. Of our import it uses only the names of the rows.

    The converter of CTranslate2 raises KeyError or ValueError if it does not take the file.
    """

    class Converter(import_ctranslate2().converters.MarianConverter):  # type: ignore[misc]  # it has no types
        def _load(self) -> Any:
            spec = super()._load()
            # The converter leaves torch's 1e-5, and Marian adds 1e-6.
            spec.config.layer_norm_epsilon = loaded.config.recipe.model.norm_epsilon
            spec.config.unk_token, spec.config.eos_token = loaded.target.pieces([UNK, EOS])
            return spec

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{side}.yml" for side in ("source", "target")]
        for file, rows in zip(files, (source, target), strict=True):
            start_id = rows[BOS].marian_id  # a row of ours: Marian has no start
            pieces = {
                row.marian_id: row.text
                for row in rows
                if row.marian_id is not None and row.marian_id != start_id and row.text != row_name(row.marian_id)
            }
            quoted = {number: piece.replace("\\", "\\\\").replace('"', '\\"') for number, piece in pieces.items()}
            lines = [f'"{quoted[number]}": {number}\n' for number in sorted(pieces)]  # as CTranslate2 reads them
            file.write_text("".join(lines), encoding="utf-8")
        Converter(str(npz), [str(file) for file in files]).convert(f"{folder}/model")
        return CTranslate2Program(Path(folder) / "model", loaded.source)


class TransformersProgram:
    """A Hugging Face directory in transformers, on the CPU in float32."""

    name = "transformers"

    def __init__(self, directory: Path, *, symbols: Mapping[str, str], kind: HuggingFaceKind) -> None:
        """Load the directory; `symbols` has our piece of each target language. UsageError without transformers."""
        transformers = import_package("transformers", extra="huggingface")
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        model_class, tokenizer_class = (getattr(transformers, name) for name in CLASSES[kind])
        is_m2m100 = kind != "marian"
        self._symbols = {} if is_m2m100 else symbols
        self._tokenizer: Any = tokenizer_class.from_pretrained(directory)
        self.unknown = str(self._tokenizer.unk_token)  # the piece for text that the vocabulary lacks
        model = model_class.from_pretrained(directory, dtype=torch.float32)
        self._model: Any = model.eval()
        settings = model.generation_config.to_dict()
        self._start_id: int = settings.get("decoder_start_token_id", model.config.decoder_start_token_id)
        if is_m2m100:
            self._source_ids: dict[str, int] = self._tokenizer.get_vocab()
            self._source_ids |= {symbol: self._tokenizer.convert_tokens_to_ids(symbol) for symbol in symbols.values()}
            self._target_ids = _name_all_rows(self._source_ids, model.config.vocab_size)
        else:
            is_separate = self._tokenizer.separate_vocabs
            rows = self._model.config.decoder_vocab_size
            self._source_ids = self._tokenizer.encoder
            self._target_ids = _name_all_rows(self._tokenizer.target_encoder if is_separate else self._source_ids, rows)
        self._source_pieces = {number: piece for piece, number in self._source_ids.items()}

    def encode(self, lines: Sequence[str]) -> list[list[str]]:
        """The pieces that the tokenizer makes of each line."""
        ids = [self._tokenizer(line, add_special_tokens=False)["input_ids"] for line in lines]
        return [[self._source_pieces[number] for number in row] for row in ids]

    @torch.inference_mode()
    def log_probs(self, sources: Sequence[list[str]], targets: Sequence[list[str]]) -> list[list[float]]:
        """The log-probability of each target piece and of EOS after them."""
        results: list[list[float]] = []
        for source, target in zip(sources, targets, strict=True):
            gold = self._ids(target, self._target_ids)
            logits = self._model(
                input_ids=torch.tensor([self._ids(source, self._source_ids)]),
                decoder_input_ids=torch.tensor([[self._start_id, *gold[:-1]]]),
            ).logits[0]
            results.append(logits.log_softmax(-1)[range(len(gold)), gold].tolist())
        return results

    def _ids(self, pieces: Sequence[str], vocabulary: Mapping[str, int]) -> list[int]:
        named = names_for_marian(pieces, self._symbols)
        return [*(vocabulary[piece] for piece in named), self._model.config.eos_token_id]


def _name_all_rows(vocabulary: Mapping[str, int], num_rows: int) -> dict[str, int]:
    """The vocabulary, with names for the rows of the matrices that have no piece."""
    rows_with_pieces = set(vocabulary.values())
    return dict(vocabulary) | {row_name(row): row for row in range(num_rows) if row not in rows_with_pieces}
