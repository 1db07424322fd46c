"""Float32 master weights and gradients in flat buffers, beside the model that computes with them.

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

    In fp32 the model's parameters are views of that vector. In bf16 the model computes with a bf16 copy: `collect` adds
    its gradients to the float32 ones after each backward pass, `publish` renews the copy after an update. `set_aside`
    is the vector that is trained, while another stands in its place.
    """

    def __init__(self, model: nn.Module, *, precision: Precision) -> None:
        """Take over `model`, in float32 and on its device."""
        parameters = sorted(model.named_parameters(), key=lambda item: item[1].ndim < 2)
        self.shapes = {name: parameter.shape for name, parameter in parameters}
        self.num_in_matrices = sum(parameter.numel() for _, parameter in parameters if parameter.ndim >= 2)
        self.values = torch.cat([parameter.detach().float().reshape(-1) for _, parameter in parameters])
        self.gradients = torch.zeros_like(self.values)
        self.set_aside: Tensor | None = None
        self._copy: Tensor | None = None
        if precision == "bf16":
            model.to(torch.bfloat16)
            self._copy = self.values.bfloat16()
        self._parameters = [parameter for _, parameter in parameters]
        self._sums = self._split(self.gradients)
        values = self._split(self.values if self._copy is None else self._copy)
        for parameter, value, total in zip(self._parameters, values, self._sums, strict=True):
            parameter.data = value
            parameter.grad = total if self._copy is None else None

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a vector [P] by parameter name."""
        return dict(zip(self.shapes, self._split(flat), strict=True))

    def load(self, flat: Tensor, named: dict[str, Tensor]) -> None:
        """Copy tensors by parameter name into a vector [P]."""
        for name, view in self.named(flat).items():
            view.copy_(named[name])

    def collect(self) -> None:
        """Add the gradients of the last backward pass to the float32 sum."""
        if self._copy is None:
            return
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            if parameter.grad is not None:
                total.add_(parameter.grad)
                parameter.grad = None

    def publish(self) -> None:
        """Let the model see the present values."""
        if self._copy is not None:
            self._copy.copy_(self.values)

    @contextmanager
    def replaced_by(self, values: Tensor | None) -> Iterator[None]:
        """Let other values [P] stand in the place of those that are trained, for as long as the context lasts."""
        if values is None:
            yield
            return
        self.set_aside = self.values.clone()
        self.values.copy_(values)
        self.publish()
        try:
            yield
        finally:
            self.values.copy_(self.set_aside)
            self.set_aside = None
            self.publish()

    def _split(self, flat: Tensor) -> list[Tensor]:
        sizes = [shape.numel() for shape in self.shapes.values()]
        return [part.view(shape) for part, shape in zip(flat.split(sizes), self.shapes.values(), strict=True)]
