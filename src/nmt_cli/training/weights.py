"""Float32 master weights and gradients in flat buffers, the model that computes with them, and sums over ranks.

P is the number of parameters, shared ones counted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nmt_cli.devices import Precision
from nmt_cli.training.ranks.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed import Work

BUCKET_ELEMENTS = 25 * 2**20 // 4
"""A bucket has 25 MB in float32: enough for the full rate of a connection, and a base model has a few of them."""

_STAGES = ("source_embedding", "encoder", "encoder_norm", "target_embedding", "decoder", "decoder_norm")


class MasterWeights:
    """The parameters of a model as one float32 vector [P], matrices first, and their gradients as another.

    In fp32 the model's parameters are views of the first vector. In bf16 the model computes with a bf16 copy: `collect`
    adds its gradients to the float32 gradients after each backward pass, and `copy_to_model` updates the copy after an
    update. `trained_values` keeps the trained vector while another vector replaces it. `summing` is for the last
    backward pass of an update: it collects, and sums over the ranks. The first pass of an update begins a new sum.
    """

    def __init__(self, model: nn.Module, *, precision: Precision) -> None:
        """Take over `model`, in float32 and on its device."""
        parameters = sorted(_in_forward_order(model), key=lambda item: item[1].ndim < 2)
        self.shapes = {name: parameter.shape for name, parameter in parameters}
        self.num_in_matrices = sum(parameter.numel() for _, parameter in parameters if parameter.ndim >= 2)
        self.values = torch.cat([parameter.detach().float().reshape(-1) for _, parameter in parameters])
        self.gradients = torch.zeros_like(self.values)
        self.trained_values: Tensor | None = None
        self._copy: Tensor | None = None
        if precision == "bf16":
            model.to(torch.bfloat16)
            self._copy = self.values.bfloat16()
        self._parameters = [parameter for _, parameter in parameters]
        self._gradient_views = self._split(self.gradients)
        values = self._split(self.values if self._copy is None else self._copy)
        for parameter, value, total in zip(self._parameters, values, self._gradient_views, strict=True):
            parameter.data = value
            parameter.grad = total if self._copy is None else None
        self._buckets = make_buckets(
            [parameter.numel() for parameter in self._parameters],
            num_matrices=sum(parameter.ndim >= 2 for parameter in self._parameters),
            max_elements=BUCKET_ELEMENTS,
        )
        self._sum: GradientSum | None = None
        self._has_hooks = False
        # On a GPU, few large operations; on a CPU, the cache holds small ones.
        self._is_on_gpu = self.values.device.type != "cpu"

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a vector [P] by parameter name."""
        return dict(zip(self.shapes, self._split(flat), strict=True))

    def load(self, flat: Tensor, named: dict[str, Tensor]) -> None:
        """Copy tensors by parameter name into a vector [P]."""
        for name, view in self.named(flat).items():
            view.copy_(named[name])

    def collect(self) -> None:
        """Add the gradients of the last backward pass to the float32 sum; in fp32 they are there already."""
        totals, gradients = self._take_gradients()
        if not gradients:
            return
        if self._is_on_gpu and len(gradients) == len(self._parameters):
            # Three kernels. `_foreach_add_` of two types launches one for each parameter.
            self.gradients.add_(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        else:
            for total, gradient in zip(totals, gradients, strict=True):
                total.add_(gradient)

    @contextmanager
    def collecting(self, *, begins_sum: bool) -> Iterator[None]:
        """Collect the gradients of the backward pass in the block; the first of an update begins a new sum."""
        if begins_sum and self._copy is None:
            self.gradients.zero_()
        yield
        if not begins_sum:
            self.collect()
        elif self._copy is not None:  # the first gradients are copied: no zeros are written to be added to
            totals, gradients = self._take_gradients()
            if len(gradients) < len(self._parameters):
                self.gradients.zero_()
            if gradients:
                torch._foreach_copy_(totals, gradients)

    @contextmanager
    def summing(self, ranks: Ranks, *, precision: Precision, begins_sum: bool) -> Iterator[None]:
        """Collect the gradients of the backward pass in the block, and sum them over several ranks.

        Sums are sent in `precision`, and begin while the block still runs. The block is empty if the gradients of this
        rank are already collected, or if it has none. Raises ConnectionLost.
        """
        if begins_sum:
            self.gradients.zero_()
        if not self._has_hooks:
            for index, parameter in enumerate(self._parameters):
                # torch calls the hook when the gradient is complete, for a shared parameter with all its parts.
                parameter.register_post_accumulate_grad_hook(partial(self._complete, index))
            self._has_hooks = True
        self._sum = GradientSum(self.gradients, self._buckets, ranks=ranks, precision=precision)
        try:
            yield
            self.collect()
            self._sum.finish()
        finally:
            self._sum = None

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

    def _take_gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Take the bf16 gradients from their parameters: return their views in the sum, and the gradients."""
        if self._copy is None:
            return [], []
        totals, gradients = [], []
        for total, parameter in zip(self._gradient_views, self._parameters, strict=True):
            if parameter.grad is not None:
                totals.append(total)
                gradients.append(parameter.grad)
                parameter.grad = None
        return totals, gradients

    def _complete(self, index: int, parameter: Tensor) -> None:
        if self._sum is None:  # the backward pass of an earlier micro-batch
            return
        if self._copy is not None and parameter.grad is not None:
            self._gradient_views[index].add_(parameter.grad)
            parameter.grad = None
        self._sum.complete(index)

    def _split(self, flat: Tensor) -> list[Tensor]:
        sizes = [shape.numel() for shape in self.shapes.values()]
        return [part.view(shape) for part, shape in zip(flat.split(sizes), self.shapes.values(), strict=True)]


@dataclass(frozen=True, slots=True)
class Buckets:
    """Parts of the gradient vector [P], in the order in which the backward pass completes them.

    `bounds` has the beginning and the end of each, `of_parameter` the bucket of each parameter.
    """

    bounds: tuple[tuple[int, int], ...]
    of_parameter: tuple[int, ...]


def make_buckets(sizes: Sequence[int], *, num_matrices: int, max_elements: int) -> Buckets:
    """Buckets of parameters of these sizes, which are in the order of the forward pass, matrices before vectors.

    The buckets go from the last matrix to the first, then from the last vector to the first. A bucket has at most
    `max_elements`, or a single parameter that has more.
    """
    ends = list(accumulate(sizes))
    bounds: list[tuple[int, int]] = []
    of_parameter = [0] * len(sizes)
    for index in [*reversed(range(num_matrices)), *reversed(range(num_matrices, len(sizes)))]:
        start, stop = ends[index] - sizes[index], ends[index]
        # No bucket spans the jump from the first matrix to the last vector.
        if bounds and bounds[-1][0] == stop and bounds[-1][1] - start <= max_elements:
            bounds[-1] = start, bounds[-1][1]
        else:
            bounds.append((start, stop))
        of_parameter[index] = len(bounds) - 1
    return Buckets(tuple(bounds), tuple(of_parameter))


class GradientSum:
    """One sum of the gradient vector [P] over the ranks.

    Every rank begins the buckets in the same order, because collectives have to meet, even if its parameters complete
    in another order. In bf16 a rounded copy of each bucket is sent.
    """

    def __init__(self, gradients: Tensor, buckets: Buckets, *, ranks: Ranks, precision: Precision) -> None:
        self._parts = [gradients[start:stop] for start, stop in buckets.bounds]
        self._of_parameter = buckets.of_parameter
        self._missing = [buckets.of_parameter.count(bucket) for bucket in range(len(buckets.bounds))]
        self._ranks, self._precision = ranks, precision
        self._begun: list[tuple[Tensor, Work]] = []

    def complete(self, parameter: int) -> None:
        """Note that the gradient of a parameter is in the vector; begin the buckets that are complete."""
        self._missing[self._of_parameter[parameter]] -= 1
        while len(self._begun) < len(self._parts) and self._missing[len(self._begun)] == 0:
            self._begin(self._parts[len(self._begun)])

    def finish(self) -> None:
        """Begin the remaining buckets, for example if this rank had no sentences; return with the sum in the vector."""
        for part in self._parts[len(self._begun) :]:
            self._begin(part)
        for part, (sent, work) in zip(self._parts, self._begun, strict=True):
            self._ranks.finish_sum(work)
            if sent is not part:
                part.copy_(sent)

    def _begin(self, part: Tensor) -> None:
        sent = part.bfloat16() if self._precision == "bf16" else part
        self._begun.append((sent, self._ranks.begin_sum(sent)))


def _in_forward_order(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters of a Transformer in the order of their first use in the forward pass; shared ones appear once.

    The backward pass completes the gradient of a shared matrix at its first use.
    """
    first_use: dict[nn.Parameter, int] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        part = name.partition(".")[0]
        stage = _STAGES.index(part) if part in _STAGES else len(_STAGES)
        first_use[parameter] = min(stage, first_use.get(parameter, stage))
    return sorted(model.named_parameters(), key=lambda item: first_use[item[1]])
