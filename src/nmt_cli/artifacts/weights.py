"""A model's weights as named tensors: each shared tensor once, in safetensors files, loaded strictly.

The names come from `Transformer.named_parameters()`. A tensor that several modules share has its first name only. With
`tying: all`, the one matrix is `output_weight`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nmt_cli import files
from nmt_cli.artifacts.manifest import CONFIG
from nmt_cli.errors import ModelError
from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import ModelConfig
from nmt_cli.text_encoding import is_unicode

_ERROR_NUMBER = re.compile(r"os error (\d+)")

# A mode sees the call of a function of torch.nn.init or, in some versions of torch, only the tensor method in it.
_RANDOM_FUNCTIONS = frozenset({
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.kaiming_uniform_,
    nn.init.xavier_uniform_,
    Tensor.normal_,
    Tensor.uniform_,
})  # fmt: skip


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by their first names, each once; they share memory with the model."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, where: str, hint: str) -> None:
    """Copy exactly these weights into the model's tensors, to their device and dtype.

    Raises ModelError for the first tensor that is missing, unexpected, of another shape, or not finite. `where` is the
    file of the weights.
    """
    parameters = dict(model.named_parameters())
    check_names_and_shapes(shapes_of(weights), expected=shapes_of(parameters), where=where, hint=hint)
    with torch.no_grad():
        for name, parameter in parameters.items():
            check_finite(name, weights[name], where=where, hint=hint)
            parameter.copy_(weights[name])


def check_finite(name: str, tensor: Tensor, *, where: str, hint: str) -> None:
    """Raise ModelError if a tensor has values that are NaN or infinite, as a training that diverged may leave them."""
    if not all(map(math.isfinite, tensor.aminmax())):  # eight times as fast as torch.isfinite
        raise ModelError(f"the tensor {name} has values that are not finite", where=where, hint=hint)


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_names_and_shapes(
    shapes: Mapping[str, tuple[int, ...]], *, expected: Mapping[str, tuple[int, ...]], where: str, hint: str
) -> None:
    """Raise ModelError for the first tensor that is missing, unexpected or of another shape."""
    for name, shape in expected.items():
        if name not in shapes:
            raise ModelError(f"the tensor {name} is missing", where=where, hint=hint)
        if shapes[name] != shape:
            message = f"the tensor {name} has shape {list(shapes[name])}, but should have {list(shape)}"
            raise ModelError(message, where=where, hint=hint)
    if unexpected := [name for name in shapes if name not in expected]:
        raise ModelError(f"the tensor {unexpected[0]} has no place in this model", where=where, hint=hint)


def uninitialized_model(config: ModelConfig, *, source_vocab: int, target_vocab: int) -> Transformer:
    """A Transformer with arbitrary weights, into which the caller copies others.

    To sample weights would take longer than to read a model. The state of torch's generator stays as it is.
    """
    with _WithoutRandomNumbers():
        return Transformer(config, source_vocab=source_vocab, target_vocab=target_vocab)


def check_tensors_fit(file: Path, config: ModelConfig, *, source_vocab: int, target_vocab: int, hint: str) -> None:
    """Raise ModelError unless a safetensors file has the tensors of this architecture.

    It compares the header of the file with a model on the meta device, so the check takes little memory.
    """
    with open_tensors(file, hint=hint) as tensors:
        shapes = shapes_in_file(tensors)
    if config.encoder_layers + config.decoder_layers > len(shapes):
        message = f"{file.name} has {len(shapes):,} tensors, which are too few for the layers of the recipe"
        raise ModelError(message, where=str(file), hint=hint)
    widest = max(max(shape, default=0) for shape in shapes.values())
    if max(config.d_model, config.d_k, config.d_v) > widest:
        largest = f"the largest dimension of a tensor in {file.name} is {widest:,}"
        raise ModelError(f"{largest}, and the recipe asks for wider layers", where=str(file), hint=hint)
    small = config if config.positions == "learned" else config.model_copy(update={"max_positions": 1})
    try:
        with torch.device("meta"):  # but for the tables of positions, here of one position
            model = uninitialized_model(small, source_vocab=source_vocab, target_vocab=target_vocab)
    except (RuntimeError, OverflowError):  # more elements than 63 bits count
        message = f"the recipe in {CONFIG} describes a model larger than any memory"
        raise ModelError(message, where=str(file.with_name(CONFIG)), hint=hint) from None
    check_names_and_shapes(shapes, expected=shapes_of(weights_of(model)), where=str(file), hint=hint)


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, or raise OSError."""
    file.touch()
    mode = file.stat().st_mode  # safetensors makes files that only their owner may read
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    except SafetensorError as error:
        if number := _ERROR_NUMBER.search(str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
        raise
    file.chmod(mode)


def read_tensors(file: Path, *, hint: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, which is mapped: a tensor takes memory when it is used.

    Raises ModelError if the file is damaged.
    """
    with open_tensors(file, hint=hint) as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118  # no mapping


def open_tensors(file: Path, *, hint: str) -> Any:
    """A handle on a safetensors file, with `keys()`, `get_slice(name)` and `get_tensor(name)`.

    Raises ModelError if the file is damaged.
    """
    try:
        with file.open("rb") as stream:  # safetensors takes only a path in UTF-8, and every open file has one
            path = str(file) if is_unicode(str(file)) else f"/dev/fd/{stream.fileno()}"
            return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise ModelError(f"{file.name} is missing", where=str(file), hint=hint) from None
    except PermissionError:
        raise files.unreadable_error(file, name=file.name, error=ModelError) from None
    except SafetensorError as error:
        raise ModelError(f"{file.name} is damaged: {error}", where=str(file), hint=hint) from None


def shapes_in_file(tensors: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of an open file, from its header."""
    names: list[str] = tensors.keys()
    return {name: tuple(tensors.get_slice(name).get_shape()) for name in names}


class _WithoutRandomNumbers(TorchFunctionMode):
    """A mode in which functions of random numbers leave their tensor as it was allocated."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RANDOM_FUNCTIONS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))
