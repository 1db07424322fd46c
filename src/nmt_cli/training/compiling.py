"""Whether parts of a model are compiled, and what is said where they cannot be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch

from nmt_cli.devices import is_out_of_memory, missing_for_triton
from nmt_cli.errors import DeviceError
from nmt_cli.model.attention import choose_kernel
from nmt_cli.model.packing import SHORT
from nmt_cli.recipe.schema import Recipe

# Weights lie end to end in one vector, and layers that share a graph must all find theirs at multiples of 16 bytes.
_WIDTH_MULTIPLE = 8

_log = logging.getLogger(__name__)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def compiled(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The function, compiled as a whole when it is first called, for the shapes and numbers that it is called with."""
    return torch.compile(function, fullgraph=True, dynamic=False)


def reason_not_to_compile(recipe: Recipe, *, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a model that computes in `dtype` on `device` is not compiled; None where it is."""
    if device.type == "cpu":
        return "on a CPU"
    if not recipe.training.compile:
        return "training.compile is false"
    model = recipe.model
    if model.d_model % _WIDTH_MULTIPLE or model.d_ff % _WIDTH_MULTIPLE:
        return f"d_model or d_ff is no multiple of {_WIDTH_MULTIPLE}"
    kernel = choose_kernel(device, dtype, d_k=model.d_k, d_v=model.d_v, window=model.encoder_window, bound=SHORT)
    if kernel not in ("triton", "varlen"):
        return f"with {kernel} attention, shapes change from batch to batch"
    return missing_for_triton()


def warn_of_missing_tool(reason: str | None) -> None:
    """Warn if the reason not to compile is a tool that the user can install."""
    if reason is not None and reason == missing_for_triton():
        _log.warning("the model is not compiled, and training is slower: %s", reason)


@contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """A context in which functions are called for the first time: DeviceError where they cannot be compiled."""
    try:
        yield
    except RuntimeError as problem:
        from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

        if not isinstance(problem, TorchDynamoException) or is_out_of_memory(problem, is_told=True):
            raise
        reason = problem.inner_exception if isinstance(problem, BackendCompilerFailed) else problem
        raise DeviceError(
            f"the model cannot be compiled for {device}",
            where=str(reason).strip().partition("\n")[0],
            hint="--no-compile trains without; compiling needs the Triton that came with torch, and a C compiler",
        ) from problem
