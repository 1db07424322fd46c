"""A model's weights as named tensors: each shared tensor once, in safetensors files, loaded strictly.

The names come from `Transformer.named_parameters()`. A tensor that several modules share has its first name only. With
`tying: all`, the one matrix is `output_weight`.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nmt_cli import files
from nmt_cli.errors import ModelError
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import ModelConfig
from nmt_cli.text_encoding import is_unicode


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by their first names, each once; they share memory with the model."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, where: str, hint: str) -> None:
    """Give the model exactly these weights, as parameters of its own on the CPU, in the dtypes that it had.

    Raises ModelError for the first tensor that is missing, unexpected, of another shape, or not finite. `where` is the
    file of the weights.
    """
    parameters = dict(model.named_parameters())
    check_names_and_shapes(weights, expected=parameters, where=where, hint=hint)
    new = {}
    for name, old in parameters.items():
        check_finite(name, weights[name], where=where, hint=hint)
        new[old] = nn.Parameter(weights[name].detach().to(device="cpu", dtype=old.dtype, copy=True))
    every_name = model.named_parameters(remove_duplicate=False)
    model.load_state_dict({name: new[old] for name, old in every_name}, assign=True)


def check_finite(name: str, tensor: Tensor, *, where: str, hint: str) -> None:
    """Raise ModelError if a tensor has values that are NaN or infinite, as a training that diverged may leave them."""
    if not all(map(math.isfinite, tensor.aminmax())):  # eight times as fast as torch.isfinite
        raise ModelError(f"the tensor {name} has values that are not finite", where=where, hint=hint)


def check_names_and_shapes(
    tensors: Mapping[str, Tensor], *, expected: Mapping[str, Tensor], where: str, hint: str
) -> None:
    """Raise ModelError for the first tensor that is missing, unexpected or of another shape."""
    for name, other in expected.items():
        if name not in tensors:
            raise ModelError(f"the tensor {name} is missing", where=where, hint=hint)
        if tensors[name].shape != other.shape:
            message = f"the tensor {name} has shape {list(tensors[name].shape)}, but should have {list(other.shape)}"
            raise ModelError(message, where=where, hint=hint)
    if unexpected := [name for name in tensors if name not in expected]:
        raise ModelError(f"the tensor {unexpected[0]} has no place in this model", where=where, hint=hint)


def uninitialized_model(config: ModelConfig, *, source_vocab: int, target_vocab: int) -> Transformer:
    """A Transformer whose parameters are on the meta device, without memory, until `load_weights` gives it some."""
    with torch.device("meta"):
        return Transformer(config, source_vocab=source_vocab, target_vocab=target_vocab)


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with the mode of any new file; OSError if the disk is full."""
    file.touch()
    mode = stat.S_IMODE(file.stat().st_mode)
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(whole, file, metadata={"format": "pt"})
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from None
        raise
    file.chmod(mode)  # save_file makes files that only their owner may read


def read_tensors(file: Path, *, hint: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, which is mapped: a tensor takes memory when it is used.

    Raises ModelError if the file is missing or damaged.
    """
    try:
        with file.open("rb") as stream:  # safetensors takes only a path in UTF-8, and every open file has one
            path = str(file) if is_unicode(str(file)) else f"/dev/fd/{stream.fileno()}"
            return load_file(path)
    except FileNotFoundError:
        raise ModelError(f"{file.name} is missing", where=str(file), hint=hint) from None
    except PermissionError:
        raise files.unreadable_error(file, name=file.name, error=ModelError) from None
    except SafetensorError as error:
        raise ModelError(f"{file.name} is damaged: {error}", where=str(file), hint=hint) from None
