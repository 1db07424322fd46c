"""The engine of a translator: its interface, and the choice of an engine by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from nmt_cli.decoding.ctranslate2.engine import CTranslate2Engine
from nmt_cli.decoding.search.hypotheses import Details, Hypothesis, SourceSentence
from nmt_cli.decoding.torch_engine import TorchEngine
from nmt_cli.devices import choose_device, choose_precision, parse_precision
from nmt_cli.errors import DeviceError, UsageError
from nmt_cli.model import cpu_linear
from nmt_cli.recipe.directions import Directions
from nmt_cli.recipe.schema import DecodingConfig, TrainedLines
from nmt_cli.tokenization.tokenizer import Tokenizer

_CHOICES = {"engine": ("torch", "ctranslate2"), "precision": ("auto", "fp32", "bf16", "int8")}


class Engine(Protocol):
    """One model, or several that translate together, on one device and in one precision."""

    name: str
    # The precision of matrix products: fp32, bf16 or int8.
    precision: str
    # cpu, cuda:0 and so on.
    device: str
    directions: Directions
    source: Tokenizer
    target: Tokenizer
    # The model's own decoding section.
    decoding: DecodingConfig
    # The maximum number of pieces per side.
    max_positions: int
    # The source lines in training; None if they are not known.
    trained_lines: TrainedLines | None

    def search(
        self, sources: Sequence[SourceSentence], *, config: DecodingConfig, nbest: int, details: Details
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, in input order; a source without pieces has the empty one.

        UsageError if the engine does not support these settings.
        """

    def align(
        self, sources: Sequence[SourceSentence], nbest_lists: Sequence[Sequence[Hypothesis]], *, config: DecodingConfig
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each source with their alignments."""


def open_engine(directories: Sequence[Path], *, engine: str, device: str, precision: str) -> Engine:
    """The engine `engine` (torch or ctranslate2) with the models of `directories`.

    `device` is auto, cpu, cuda or cuda:N; `precision` auto, fp32, bf16 (torch) or int8 (on a CPU). Raises UsageError if
    they do not go together, or a package is missing. Raises ModelError if a directory is no model, is damaged, or does
    not suit the engine. Raises DeviceError if there is no such device, or it has no int8.
    """
    for setting, name in (("engine", engine), ("precision", precision)):
        if name not in _CHOICES[setting]:
            hint = f"take one of: {', '.join(_CHOICES[setting])}"
            raise UsageError(f"there is no {setting} called {name!r}", setting=setting, hint=hint)
    if precision == "int8" and engine == "torch" and device != "auto" and choose_device(device).type != "cpu":
        raise UsageError("int8 is for CPUs", setting="precision", hint="take `precision: bf16`, or add `device: cpu`")
    if engine == "ctranslate2":
        return _open_ctranslate2(directories, device=device, precision=precision)
    return _open_torch(directories, device=device, precision=precision)


def _open_torch(directories: Sequence[Path], *, device: str, precision: str) -> Engine:
    if precision != "int8":
        torch_device = choose_device(device)
        torch_precision = choose_precision(parse_precision(precision), device=torch_device, training=False)
        return TorchEngine.load(directories, device=torch_device, precision=torch_precision)
    if not cpu_linear.can_quantize():
        raise DeviceError(
            "torch does not multiply 8-bit integers exactly on this CPU",
            setting="precision",
            hint="take `precision: fp32`, or add `engine: ctranslate2`",
        )
    return TorchEngine.load(directories, device=choose_device("cpu"), precision="int8")


def _open_ctranslate2(directories: Sequence[Path], *, device: str, precision: str) -> Engine:
    if precision == "bf16":
        raise UsageError(
            "the engine ctranslate2 has no bf16 on a CPU",
            setting="precision",
            hint="take fp32 or int8, or `engine: torch`",
        )
    if device not in ("auto", "cpu"):
        choose_device(device)  # first, because it says if there is no such device
        raise UsageError(
            "the engine ctranslate2 translates on the CPU",
            setting="device",
            hint="take `device: cpu`, or `engine: torch`",
        )
    if len(directories) > 1:
        raise UsageError(
            "the engine ctranslate2 translates with one model, not with several together",
            setting="model",
            hint="give one model, or take `engine: torch`",
        )
    return CTranslate2Engine(directories[0], precision="int8" if precision == "int8" else "fp32")
