"""Float32 master weights and gradients in flat buffers, and the model that computes with them.

P is the number of parameters, shared ones counted once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from nmt_cli.devices import Precision
from nmt_cli.training.ranks.gradients import BUCKET_ELEMENTS, GradientSum, in_forward_order, make_buckets
from nmt_cli.training.ranks.ranks import Ranks


class MasterWeights:
    """The parameters of a model as one float32 vector [P], matrices first, and their gradients as another.

    In fp32 the model's parameters are views of the first vector. In bf16 the model computes with a bf16 copy: `collect`
    adds its gradients to the float32 gradients after each backward pass, and `publish` updates the copy after an
    update. `set_aside` holds the trained vector while another replaces it. `summing` is for the last backward pass of
    an update: it collects, and sums over the ranks. The first backward pass of an update begins a new sum.
    """

    def __init__(self, model: nn.Module, *, precision: Precision) -> None:
        """Take over `model`, in float32 and on its device."""
        parameters = sorted(in_forward_order(model), key=lambda item: item[1].ndim < 2)
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
        self._buckets = make_buckets(
            [parameter.numel() for parameter in self._parameters],
            num_matrices=sum(parameter.ndim >= 2 for parameter in self._parameters),
            most_elements=BUCKET_ELEMENTS,
        )
        self._sum: GradientSum | None = None
        self._has_hooks = False
        # On a GPU, few large operations; on a CPU, the cache holds small ones.
        self._has_launches = self.values.device.type != "cpu"

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a vector [P] by parameter name."""
        return dict(zip(self.shapes, self._split(flat), strict=True))

    def load(self, flat: Tensor, named: dict[str, Tensor]) -> None:
        """Copy tensors by parameter name into a vector [P]."""
        for name, view in self.named(flat).items():
            view.copy_(named[name])

    def collect(self) -> None:
        """Add the gradients of the last backward pass to the float32 sum."""
        totals, gradients = self._take_gradients()
        if not gradients:
            return
        if self._has_launches and len(gradients) == len(self._parameters):
            # Three kernels. `_foreach_add_` of two types launches one for each parameter.
            self.gradients.add_(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        else:
            for total, gradient in zip(totals, gradients, strict=True):
                total.add_(gradient)

    @contextmanager
    def collecting(self, *, is_first: bool) -> Iterator[None]:
        """Collect the gradients of the backward pass in the block; the first of an update begins a new sum."""
        if is_first and self._copy is None:
            self.gradients.zero_()
        yield
        if not is_first:
            self.collect()
        elif self._copy is not None:
            totals, gradients = self._take_gradients()
            if len(gradients) < len(self._parameters):
                self.gradients.zero_()
            if gradients:
                torch._foreach_copy_(totals, gradients)

    @contextmanager
    def summing(self, ranks: Ranks, *, precision: Precision) -> Iterator[None]:
        """Collect the gradients of the backward pass in the block, and sum them over several ranks.

        Sums are sent in `precision`, and begin while the block still runs. The block is empty if the gradients of this
        rank are already collected. Raises ConnectionLost.
        """
        if not self._has_hooks:
            self._register_hooks()
        self._sum = GradientSum(self.gradients, self._buckets, ranks=ranks, precision=precision)
        try:
            yield
            self.collect()
            self._sum.finish()
        finally:
            self._sum = None

    def publish(self) -> None:
        """Let the model see the current values."""
        if self._copy is not None:
            self._copy.copy_(self.values)

    @contextmanager
    def replaced_by(self, values: Tensor | None) -> Iterator[None]:
        """Replace the trained values by other values [P] while the context lasts."""
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

    def drop_gradients(self) -> None:
        """Drop all gradients, also what an interrupted backward pass has left."""
        self.gradients.zero_()
        if self._copy is not None:
            for parameter in self._parameters:
                parameter.grad = None

    def _take_gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Move the bf16 gradients out of their parameters: return their places in the sum, and the gradients."""
        if self._copy is None:
            return [], []
        found = [
            (total, parameter.grad)
            for total, parameter in zip(self._sums, self._parameters, strict=True)
            if parameter.grad is not None
        ]
        for parameter in self._parameters:
            parameter.grad = None
        return [total for total, _ in found], [gradient for _, gradient in found]

    def _register_hooks(self) -> None:
        """Let torch report when the gradient of a parameter is complete, for a shared one with all its parts."""
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._complete, index))
        self._has_hooks = True

    def _complete(self, index: int, parameter: Tensor) -> None:
        if self._sum is None:  # the backward pass of an earlier micro-batch
            return
        if self._copy is not None and parameter.grad is not None:
            self._sums[index].add_(parameter.grad)
            parameter.grad = None
        self._sum.complete(index)

    def _split(self, flat: Tensor) -> list[Tensor]:
        sizes = [shape.numel() for shape in self.shapes.values()]
        return [part.view(shape) for part, shape in zip(flat.split(sizes), self.shapes.values(), strict=True)]
