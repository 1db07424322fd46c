"""A model directory as a directory of another program, which appears once it was compared with the model."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, assert_never

import torch

from nmt_cli import __version__, files
from nmt_cli.bundle import directory as model_directory
from nmt_cli.bundle.card import join_front_matter, split_front_matter, without_use
from nmt_cli.bundle.config import BundleConfig
from nmt_cli.bundle.directory import LoadedModel
from nmt_cli.bundle.kinds import foreign_kind
from nmt_cli.decoding import ctranslate2_model
from nmt_cli.decoding.ctranslate2_engine import PATIENCE, exponent
from nmt_cli.decoding.ctranslate2_model import Quantization
from nmt_cli.errors import DataError, ModelError
from nmt_cli.interchange import huggingface, huggingface_engine
from nmt_cli.interchange.ctranslate2 import CTranslate2Engine
from nmt_cli.interchange.huggingface_engine import HuggingFaceEngine
from nmt_cli.interchange.verification import Agreement, Engine, made_up_lines, usable_lines, verify

Target = Literal["ctranslate2", "huggingface"]
_KINDS: dict[Target, str] = {"ctranslate2": "a CTranslate2 model", "huggingface": "a Hugging Face model"}
_FEWEST_LINES = 10
_MOST_PIECES = 512
_USE_CTRANSLATE2 = """CTranslate2 translates pieces of words, into which SentencePiece
cuts a text and of which it joins one (`pip install ctranslate2 sentencepiece`). In this folder:

```python
import ctranslate2, sentencepiece

source = sentencepiece.SentencePieceProcessor(model_file="source.spm")
target = sentencepiece.SentencePieceProcessor(model_file="target.spm")
translator = ctranslate2.Translator(".", device="cpu")
pieces = source.encode(["A sentence."], out_type=str)
found = translator.translate_batch(
    pieces,
    beam_size=BEAM,
    patience=PATIENCE,
    length_penalty=EXPONENT,
    disable_unk=True,
    min_decoding_length=FEWEST,
    max_decoding_length=MOST,
)
print(target.decode(found[0].hypotheses[0]))
```"""
_USE_HUGGING_FACE = """It is a MarianMTModel
(`pip install transformers torch sentencepiece`). In this folder:

```python
from transformers import MarianMTModel, MarianTokenizer

tokenizer, model = MarianTokenizer.from_pretrained("."), MarianMTModel.from_pretrained(".")
batch = tokenizer(["A sentence."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```"""


def export(
    model: Path,
    output: Path,
    *,
    to: Target,
    quantization: Quantization,
    lines: Sequence[str] | None,
    overwrite: bool,
) -> Agreement:
    """Write the model directory `model` as `output` for another program; how far that agrees with us on `lines`.

    Without `lines` they are made up of the model's own pieces. `quantization` is CTranslate2's; the weights are first
    compared in float32, in any case. Raises ModelError where the model is none, where the target cannot express it,
    where the two differ, and where `output` may not be replaced; UsageError where a package is missing; DataError where
    `lines` are too few to compare.
    """
    check_replaceable(output, to=to, overwrite=overwrite)
    (huggingface_engine.library if to == "huggingface" else ctranslate2_model.library)()
    loaded = model_directory.load(model, device=torch.device("cpu"), dtype=torch.float32)
    chosen = _chosen(lines, loaded)
    with files.new_directory(output, error=ModelError) as temporary:
        match to:
            case "ctranslate2":
                agreement = _as_ctranslate2(loaded, temporary, quantization=quantization, lines=chosen)
                for name in ("source.spm", "target.spm"):
                    shutil.copyfile(model / name, temporary / name)
            case "huggingface":
                spm = {"source_spm": model / "source.spm", "target_spm": model / "target.spm"}
                huggingface.write(loaded, temporary, **spm)
                agreement = verify(loaded, HuggingFaceEngine(temporary), chosen, is_reduced=False)
            case other:
                assert_never(other)
        card = _card(model, loaded.config, to=to, quantization=quantization, agreement=agreement)
        (temporary / "README.md").write_text(card, encoding="utf-8")
    return agreement


def check_replaceable(output: Path, *, to: Target, overwrite: bool) -> None:
    """Raise ModelError unless `output` is a new or an empty folder or, with `overwrite`, one of the target's."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not output.is_dir() or foreign_kind(output) != _KINDS[to]:
        raise ModelError(
            f"{output} exists and is not {_KINDS[to]}, so it is not replaced",
            where=str(output),
            hint="choose another folder with -o",
        )
    if not overwrite:
        raise ModelError(
            f"{_KINDS[to]} stands at {output} already",
            where=str(output),
            hint="add --overwrite to replace it, or choose another folder with -o",
        )


def _as_ctranslate2(
    loaded: LoadedModel, directory: Path, *, quantization: Quantization, lines: Sequence[str]
) -> Agreement:
    def engine() -> Engine:
        return CTranslate2Engine(directory, source=loaded.source, target=loaded.target)

    ctranslate2_model.write(loaded, directory, quantization="float32")
    agreement = verify(loaded, engine(), lines, is_reduced=False)
    if quantization == "float32":
        return agreement
    _clear(directory)
    ctranslate2_model.write(loaded, directory, quantization=quantization)
    return verify(loaded, engine(), lines, is_reduced=True)


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def _chosen(lines: Sequence[str] | None, loaded: LoadedModel) -> list[str]:
    if lines is None:
        return made_up_lines(loaded)
    chosen = usable_lines(lines, loaded)
    if len(chosen) < _FEWEST_LINES:
        raise DataError(
            f"{len(chosen)} of its {len(lines):,} lines can be compared, and {_FEWEST_LINES} are needed: different"
            " ones, not blank, not long, spelt in the model's pieces",
            where="--input",
            hint="give a file of ordinary sentences of the source language, or leave -i out",
        )
    return chosen


def _how_to_use(config: BundleConfig, *, to: Target) -> str:
    """How another program translates with it, as the model's own recipe searches."""
    if to == "huggingface":
        return _USE_HUGGING_FACE
    decoding = config.recipe.decoding
    values = {
        "BEAM": decoding.beam,
        "PATIENCE": PATIENCE if decoding.beam > 1 else 1,
        "EXPONENT": exponent(decoding),
        "FEWEST": decoding.min_tokens,
        "MOST": min(_MOST_PIECES, config.recipe.model.max_positions),
    }
    return re.sub("|".join(values), lambda name: f"{values[name[0]]:g}", _USE_CTRANSLATE2)


def _card(model: Path, config: BundleConfig, *, to: Target, quantization: Quantization, agreement: Agreement) -> str:
    """README.md: how to use this directory, then the model's own card without how nmt uses that one."""
    card = model / "README.md"
    original = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    front, body = split_front_matter(original)
    library, what = (
        ("ctranslate2", f"For CTranslate2, {quantization}")
        if to == "ctranslate2"
        else ("transformers", "For Hugging Face transformers")
    )
    front = {"language": [config.languages.source, config.languages.target], **front}
    return join_front_matter(
        front | {"library_name": library, "pipeline_tag": "translation"},
        f"# {what}\n\nWritten by `nmt export` {__version__}. {_how_to_use(config, to=to)}\n\n"
        f"Compared with the model it was made of, on {agreement}.\n\n"
        f"What follows is the card of that model.\n\n{without_use(body)}",
    )
