"""Sums gradients over the ranks, one bucket at a time, while the backward pass still computes earlier layers.

P is the number of parameters, shared ones counted once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from torch import Tensor, nn

from nmt_cli.devices import Precision

if TYPE_CHECKING:
    from torch.distributed import Work

    from nmt_cli.training.ranks.ranks import Ranks

BUCKET_ELEMENTS = 25 * 2**20 // 4
"""A bucket has 25 MB in float32: enough for the full rate of a connection, and a base model has a few of them."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Parts of the gradient vector [P], in the order in which the backward pass completes them.

    `bounds` has the beginning and the end of each, `of_parameter` the bucket of each parameter.
    """

    bounds: tuple[tuple[int, int], ...]
    of_parameter: tuple[int, ...]

    def sizes(self) -> list[int]:
        """Parameters in each bucket."""
        return [self.of_parameter.count(number) for number in range(len(self.bounds))]


def make_buckets(sizes: Sequence[int], *, num_matrices: int, most_elements: int) -> Buckets:
    """Buckets of parameters of these sizes, which are in the order of the forward pass, matrices before vectors.

    The buckets go from the last matrix to the first, then from the last vector to the first. A bucket has at most
    `most_elements`, or a single parameter that has more.
    """
    ends = list(accumulate(sizes))
    bounds: list[tuple[int, int]] = []
    of_parameter = [0] * len(sizes)
    for parameters in (range(num_matrices), range(num_matrices, len(sizes))):
        is_begun = False
        for index in reversed(parameters):
            start = ends[index] - sizes[index]
            if is_begun and bounds[-1][1] - start <= most_elements:
                bounds[-1] = start, bounds[-1][1]
            else:
                bounds.append((start, ends[index]))
                is_begun = True
            of_parameter[index] = len(bounds) - 1
    return Buckets(tuple(bounds), tuple(of_parameter))


class GradientSum:
    """One sum of the gradient vector [P] over the ranks.

    Every rank begins the buckets in the same order, because collectives have to meet, even if its parameters complete
    in another order. In bf16 a rounded copy of each bucket is sent.
    """

    def __init__(self, gradients: Tensor, buckets: Buckets, *, ranks: Ranks, precision: Precision) -> None:
        self._parts = [gradients[start:stop] for start, stop in buckets.bounds]
        self._of_parameter, self._missing = buckets.of_parameter, buckets.sizes()
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


def in_forward_order(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters of a Transformer in the order of their first use in the forward pass; shared ones appear once.

    The backward pass completes the gradient of a shared matrix at its first use.
    """
    first_use: dict[nn.Parameter, int] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first_use[parameter] = min(_stage(name), first_use.get(parameter, len(_STAGES)))
    return sorted(model.named_parameters(), key=lambda item: first_use[item[1]])


_STAGES = ("source_embedding", "encoder", "encoder_norm", "target_embedding", "decoder", "decoder_norm")


def _stage(name: str) -> int:
    part = name.partition(".")[0]
    return _STAGES.index(part) if part in _STAGES else len(_STAGES)
