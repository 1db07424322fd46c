"""Triton kernels run by Triton's own interpreter, on tensors of a CPU: their numbers, without a GPU."""

from __future__ import annotations

from types import ModuleType

import pytest


def interpret(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Let the kernels in these modules be interpreted until the test ends; skip the test if Triton is not there.

    `triton.jit` looks at TRITON_INTERPRET when it decorates a function, so a module that another test imported holds
    kernels for a GPU. Here each of them, and each of Triton's own functions, is wrapped once more. The interpreter
    multiplies bf16 as if its bits were integers, so kernels are given float32.
    """
    pytest.importorskip("triton", reason="needs Triton, a development dependency on Linux x86-64")
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for module in (tl, tl.standard, *modules):
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                monkeypatch.setattr(module, name, InterpretedFunction(value.fn))
