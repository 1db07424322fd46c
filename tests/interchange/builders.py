"""Model directories for the tests of export and import, ours and Marian's."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sentencepiece
import torch
from torch.nn.utils.rnn import pad_sequence

from nmt_cli.artifacts.model_directory import LoadedModel, load_model
from nmt_cli.recipe.schema import Recipe
from tests.artifacts.builders import save_tiny, tiny_model, tiny_recipe
from tests.tokenization.models import train_spm
from tests.training.tiny import parallel_text

SHAPE = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "activation_function": "swish",
    "scale_embedding": True,
    "max_position_embeddings": 128,
    "attention_dropout": 0.1,
    "activation_dropout": 0.2,
    "num_beams": 3,
}
CPU = torch.device("cpu")
_FIRST_PIECES = ("▁deu", "▁nld")  # as many as a multilingual model has codes of languages


@functools.cache
def spm(side: int, *, model_type: str = "unigram", byte_fallback: bool = False) -> bytes:
    """A SentencePiece model of English (side 0) or German (side 1), with SentencePiece's own special ids."""
    return train_spm(
        [pair[side] for pair in parallel_text(600, seed=5)] * 2,
        model_type=model_type,
        vocab_size=420 if byte_fallback else 150,
        hard_vocab_limit=False,  # there are not many words in these lines
        byte_fallback=byte_fallback,
    )


def joint_vocabulary(*models: bytes, without: str = "", first: tuple[str, ...] = _FIRST_PIECES) -> dict[str, int]:
    """</s>, <unk>, these first pieces, the pieces of all models in an order of their own, and <pad>."""
    processors = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in models]
    pieces = sorted({one.id_to_piece(number) for one in processors for number in range(one.get_piece_size())})
    pieces = [piece for piece in pieces if piece not in ("<unk>", "<s>", "</s>", without)]
    Random(2).shuffle(pieces)
    named = ["</s>", "<unk>", *first, *pieces, "<pad>"]
    return {piece: number for number, piece in enumerate(named)}


def write_marian(
    folder: Path,
    *,
    source: bytes | None = None,
    target: bytes | None = None,
    without: str = "",
    first: tuple[str, ...] = _FIRST_PIECES,
    **config: Any,
) -> Any:
    """A random MarianMTModel, written to `folder` as OPUS-MT's are; the model."""
    transformers = pytest.importorskip("transformers")
    source, target = source or spm(0), target or spm(1)
    vocabulary = joint_vocabulary(source, target, without=without, first=first)
    pad = vocabulary["<pad>"]
    special = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0}
    torch.manual_seed(3)
    settings = transformers.MarianConfig(vocab_size=len(vocabulary), **{**SHAPE, **special, **config})
    model = transformers.MarianMTModel(settings).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(std=0.3 if parameter.ndim == 1 else parameter.size(1) ** -0.5)
                parameter.add_(1 if "layer_norm.weight" in name else 0)
        for embedding in {model.model.encoder.embed_tokens, model.model.decoder.embed_tokens}:
            embedding.weight[pad] = 0
        model.final_logits_bias.normal_(std=0.5)
        model.final_logits_bias[0, pad] = 0
        model.final_logits_bias[0, 0] = 3  # so that translations end
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    tokenizer = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return model


def write_m2m100(
    folder: Path, *, is_nllb: bool = False, dtype: Any = torch.float32, num_updates: int = 0, **saving: Any
) -> Any:
    """An M2M-100 or NLLB model, written to `folder` as the hub has them; the model, in float32.

    It is random, unless it is trained on English and German, in both directions. M2M-100 has a hundred languages, and a
    few rows after them. `saving` are options of save_pretrained.
    """
    transformers = pytest.importorskip("transformers")
    model_bytes = train_spm(
        [side for pair in parallel_text(600, seed=5) for side in pair],
        model_type="bpe",
        vocab_size=200,
        hard_vocab_limit=False,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
    pieces = [processor.id_to_piece(number) for number in range(3, processor.get_piece_size())]
    folder.mkdir(parents=True)
    (folder / "sentencepiece.bpe.model").write_bytes(model_bytes)
    if is_nllb:
        symbols, num_other_rows = ["deu_Latn", "eng_Latn", "fra_Latn", "zho_Hans", "zho_Hant"], 3
    else:
        Random(2).shuffle(pieces)
        vocabulary = {piece: number for number, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}
        (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        listed = transformers.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
        symbols, num_other_rows = [f"__{code}__" for code in listed], 8
    tokens = {"additional_special_tokens": symbols}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens), encoding="utf-8")
    tokenizer: dict[str, Any] = {"tokenizer_class": "NllbTokenizer" if is_nllb else "M2M100Tokenizer"} | tokens
    if is_nllb:
        rows_of = dict(enumerate(("<s>", "<pad>", "</s>", "<unk>")))
        rows_of |= dict(enumerate([*symbols, "<mask>"], 4 + len(pieces)))
        tokenizer["added_tokens_decoder"] = {
            str(row): {"content": text, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            for row, text in rows_of.items()
        }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    torch.manual_seed(3)
    names = ("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads")
    shape = {name: SHAPE[name] for name in (*names, "encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings")}
    num_rows = 4 + len(pieces) + len(symbols) + num_other_rows
    model = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(vocab_size=num_rows, **shape)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.3 if parameter.ndim == 1 else parameter.size(1) ** -0.5)
            parameter.add_(1 if "layer_norm.weight" in name else 0)
        model.model.shared.weight[1] = 0
    if num_updates:
        rows = {piece: row for row, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces, *symbols])}
        sides = [symbols.index(code) for code in (("eng_Latn", "deu_Latn") if is_nllb else ("__en__", "__de__"))]
        _train(model, processor, rows, [symbols[side] for side in sides], num_updates=num_updates)
    model.to(dtype).float()  # exactly what is written
    model.generation_config.num_beams = 4
    model.to(dtype).save_pretrained(folder, **saving)
    return model.float()


def _train(model: Any, spm: Any, rows: dict[str, int], symbols: list[str], *, num_updates: int) -> None:
    """Train a model of transformers to translate between the two languages of these symbols."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    pairs = parallel_text(600, seed=5)
    encoded = [[[rows.get(piece, 3) for piece in spm.encode(side, out_type=str)] for side in pair] for pair in pairs]
    ids = [[[rows[symbol], *row, 2] for symbol, row in zip(symbols, pair, strict=True)] for pair in encoded]
    ids = [pair[::-1] if number % 2 else pair for number, pair in enumerate(ids)]
    for update in range(num_updates):
        batch = [ids[number % len(ids)] for number in range(40 * update, 40 * (update + 1))]
        sources, targets = (
            pad_sequence([torch.tensor(pair[side]) for pair in batch], batch_first=True, padding_value=1)
            for side in (0, 1)
        )
        labels = targets.masked_fill(targets == 1, -100)
        model(input_ids=sources, attention_mask=(sources != 1).long(), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def edit_json(file: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None takes a key away."""
    content = json.loads(file.read_text(encoding="utf-8")) | changes
    content = {key: value for key, value in content.items() if value is not None}
    file.write_text(json.dumps(content), encoding="utf-8")


def english(number: int) -> Iterator[str]:
    """Sentences that the SentencePiece models were not trained on."""
    yield from (pair[0] for pair in parallel_text(number, seed=99))


def recipe_with(model: dict[str, Any] | None = None, **decoding: Any) -> Recipe:
    return tiny_recipe(model=model, decoding={"beam": 3, "max_extra_tokens": 6, **decoding})


def save_sharp(path: Path, recipe: Recipe | None = None) -> Path:
    """Write a model directory; biases and norms are not what they begin with, and likely pieces are likely."""
    recipe = recipe or recipe_with()
    model = tiny_model(recipe)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(std=0.3).add_(1 if name.endswith("norm.weight") else 0)
            elif name == "output_weight":
                parameter.mul_(math.sqrt(8))
    card = "---\nlanguage:\n- en\n- de\n---\n\n# The model's own card\n"
    save_tiny(path, spm_folder=path.parent / "spm", recipe=recipe, model=model, card=card)
    return path


def load(path: Path) -> LoadedModel:
    return load_model(path, device=CPU, dtype=torch.float32)
