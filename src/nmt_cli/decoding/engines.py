"""An engine by name: which program, on which device, in which precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from nmt_cli.decoding.engine import Engine, with_overrides
from nmt_cli.devices import choose_device, choose_precision, parse_precision
from nmt_cli.errors import DeviceError, UsageError

_KNOWN = {"engine": ("torch", "ctranslate2", "auto"), "precision": ("auto", "fp32", "bf16", "int8")}


def open_engine(
    directories: Sequence[Path], *, engine: str, device: str, precision: str, overrides: Mapping[str, object]
) -> Engine:
    """The engine `engine` (torch, ctranslate2, auto) with the models of `directories`.

    `overrides` are settings that are already known: `auto` chooses an engine that supports them. `device` is auto, cpu,
    cuda or cuda:N; `precision` auto, fp32, bf16 (torch) or int8 (on a CPU). UsageError if they do not go together or a
    package is missing, ModelError if a directory is no model, is damaged, or does not suit the engine, DeviceError if
    there is no such device or it has no int8.
    """
    for setting, name in (("engine", engine), ("precision", precision)):
        if name not in _KNOWN[setting]:
            hint = f"take one of: {', '.join(_KNOWN[setting])}"
            raise UsageError(f"there is no {setting} called {name!r}", setting=setting, hint=hint)
    if precision == "int8" and engine != "ctranslate2" and device != "auto" and choose_device(device).type != "cpu":
        raise UsageError("int8 is for CPUs", setting="precision", hint="take `precision: bf16`, or add `device: cpu`")
    if engine == "ctranslate2" or (
        engine == "auto" and _is_ctranslate2_faster(directories, device, precision, overrides)
    ):
        return _ctranslate2(directories, device=device, precision=precision)
    return _torch(directories, device=device, precision=precision)


def _is_ctranslate2_faster(
    directories: Sequence[Path], device: str, precision: str, overrides: Mapping[str, object]
) -> bool:
    """Whether CTranslate2 is faster for these models and supports the settings.

    It is faster in int8. In float32 torch is at least as fast with many sentences, unless it cannot pack matrices for
    the CPU (docs/design/cpu-search.md#engines).
    """
    import torch

    from nmt_cli.artifacts.manifest import require_model
    from nmt_cli.artifacts.model_directory import load_saved_config
    from nmt_cli.decoding.ctranslate2.model import unsupported_error
    from nmt_cli.model.cpu_linear import can_pack

    if precision not in ("auto", "fp32", "int8"):
        return False
    if precision != "int8" and (choose_device(device).type != "cpu" or can_pack(torch.float32)):
        return False
    if len(directories) > 1 or find_spec("ctranslate2") is None:
        return False
    require_model(directories[0])
    recipe = load_saved_config(directories[0]).recipe
    config = with_overrides(recipe.decoding, overrides)
    is_bounded = config.min_tokens > 0 and config.beam > 1
    return unsupported_error(recipe.model) is None and not config.samples and not is_bounded


def _torch(directories: Sequence[Path], *, device: str, precision: str) -> Engine:
    from nmt_cli.decoding.torch_engine import TorchEngine
    from nmt_cli.model.cpu_linear import can_quantize

    if precision != "int8":
        choice, chosen = parse_precision(precision), choose_device(device)
        dtype = choose_precision(choice, device=chosen, training=False)
        return TorchEngine.load(directories, device=chosen, precision=dtype)
    if not can_quantize():
        raise DeviceError(
            "torch does not multiply 8-bit integers exactly on this CPU",
            setting="precision",
            hint="take `precision: fp32`, or add `engine: ctranslate2`",
        )
    return TorchEngine.load(directories, device=choose_device("cpu"), precision="int8")


def _ctranslate2(directories: Sequence[Path], *, device: str, precision: str) -> Engine:
    from nmt_cli.decoding.ctranslate2.engine import CTranslate2Engine

    if precision == "bf16":
        raise UsageError(
            "the engine ctranslate2 has no bf16 on a CPU",
            setting="precision",
            hint="take fp32 or int8, or `engine: torch`",
        )
    if device not in ("auto", "cpu"):
        choose_device(device)
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
