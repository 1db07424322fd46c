"""Float32 master weights and gradients in flat buffers, and the model that computes with them.

P is the number of parameters, shared ones counted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nmt_cli.devices import Precision


class MasterWeights:
    """The parameters of a model as one float32 vector [P], matrices first, and their gradients as another.

    In fp32 the model's parameters are views of the first vector. In bf16 the model computes with a bf16 copy:
    `collecting` adds its gradients to the float32 gradients, and `copy_to_model` updates the copy after an update.
    `trained_values` keeps the trained vector while another vector replaces it.
    """

    def __init__(self, model: nn.Module, *, precision: Precision) -> None:
        """Take over `model`, in float32 and on its device."""
        parameters = sorted(model.named_parameters(), key=lambda item: item[1].ndim < 2)
        self.shapes = {name: parameter.shape for name, parameter in parameters}
        self.num_in_matrices = sum(parameter.numel() for _, parameter in parameters if parameter.ndim >= 2)
        self.values = torch.cat([parameter.detach().float().reshape(-1) for _, parameter in parameters])
        self.gradients = torch.zeros_like(self.values)
        self.trained_values: Tensor | None = None
        self._copy: Tensor | None = None
        if precision == "bf16":  # tables of positions stay in float32, as in decoding
            self._copy = self.values.bfloat16()
        self._parameters = [parameter for _, parameter in parameters]
        self._gradient_views = self._split(self.gradients)
        values = self._split(self.values if self._copy is None else self._copy)
        for parameter, value, total in zip(self._parameters, values, self._gradient_views, strict=True):
            parameter.data = value
            parameter.grad = total if self._copy is None else None
        # On a GPU, few large operations; on a CPU, the cache holds small ones.
        self._is_on_gpu = self.values.device.type != "cpu"

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a vector [P] by parameter name."""
        return dict(zip(self.shapes, self._split(flat), strict=True))

    def load(self, flat: Tensor, named: dict[str, Tensor]) -> None:
        """Copy tensors by parameter name into a vector [P]."""
        for name, view in self.named(flat).items():
            view.copy_(named[name])

    @contextmanager
    def collecting(self, *, begins_sum: bool) -> Iterator[None]:
        """Collect the gradients of the backward pass in the block; the first of an update begins a new sum."""
        if self._copy is None:
            if begins_sum:
                self.gradients.zero_()
            yield  # the backward pass adds to them
            return
        yield
        gradients = self._take_gradients()
        if begins_sum:
            torch._foreach_copy_(self._gradient_views, gradients)
        elif self._is_on_gpu:
            # Three kernels. `_foreach_add_` of two types launches one for each parameter.
            self.gradients.add_(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        else:
            for total, gradient in zip(self._gradient_views, gradients, strict=True):
                total.add_(gradient)

    def copy_to_model(self) -> None:
        """Let the model compute with the current values: in bf16, copy them; in fp32 it has them already."""
        if self._copy is not None:
            self._copy.copy_(self.values)

    @contextmanager
    def replaced_by(self, values: Tensor | None) -> Iterator[None]:
        """Replace the trained values by other values [P] while the context lasts."""
        if values is None:
            yield
            return
        self.trained_values = self.values.clone()
        self.values.copy_(values)
        self.copy_to_model()
        try:
            yield
        finally:
            self.values.copy_(self.trained_values)
            self.trained_values = None
            self.copy_to_model()

    def drop_gradients(self) -> None:
        """Drop all gradients, also what an interrupted backward pass has left."""
        self.gradients.zero_()
        if self._copy is not None:
            for parameter in self._parameters:
                parameter.grad = None

    def _take_gradients(self) -> list[Tensor]:
        """Take the bf16 gradients from their parameters; every backward pass reaches every parameter."""
        gradients = []
        for parameter in self._parameters:
            assert parameter.grad is not None
            gradients.append(parameter.grad)
            parameter.grad = None
        return gradients

    def _split(self, flat: Tensor) -> list[Tensor]:
        sizes = [shape.numel() for shape in self.shapes.values()]
        return [part.view(shape) for part, shape in zip(flat.split(sizes), self.shapes.values(), strict=True)]
