"""The operators of torch that run in a block: what they are called with, and what they return."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


class Operators(TorchDispatchMode):
    """A context that notes each call of an operator: its function, arguments, options and result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    @property
    def names(self) -> list[str]:
        return [str(func) for func, *_ in self.calls]

    @property
    def made(self) -> list[Tensor]:
        """The tensors that they return."""
        return [leaf for *_, out in self.calls for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]

    def repeat(self) -> None:
        """Call them again as a graph does: with the same numbers, and with the same tensors or what became of them."""
        renewed: dict[int, Any] = {}

        def present(x: Any) -> Any:
            return renewed.get(id(x), x)

        for func, args, kwargs, out in self.calls:
            again = func(*tree_map(present, args), **tree_map(present, kwargs))
            renewed |= {id(old): new for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True)}
