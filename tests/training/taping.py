"""Steps recorded on a CPU, as a CUDA graph records them on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx.experimental.proxy_tensor import make_fx


def taped(function: Callable[[], None]) -> Callable[[], None]:
    """As a CUDA graph, the operations on tensors that a function did, on the same memory, and nothing of its Python.

    What asks a tensor for its value cannot be recorded.
    """
    tape: Callable[[], None] = torch.no_grad()(make_fx(function)())
    return tape
