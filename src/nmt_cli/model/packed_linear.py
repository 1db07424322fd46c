"""Matrices laid out once for a CPU's products, for a model that only translates from then on.

torch hands a plain matrix to its products as it is: oneDNN lays a bf16 matrix out anew at each product, and float32
goes to MKL, which takes more than twice as long on CPUs of other makers (docs/LOG.md). Sums are in the matrix's own
precision in both.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmt_cli.model.transformer import Transformer


class PackedLinear(nn.Module):
    """x W^T + b as `nn.Linear` computes it, with W laid out for oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """x [N, in] to [N, out]."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


def pack_matrices(model: Transformer) -> bool:
    """Lay out all matrices of a model on a CPU, where this torch can; whether it did.

    The model can then neither be trained nor saved.
    """
    if model.output_weight.device.type != "cpu" or not can_pack(model.output_weight.dtype):
        return False
    with torch.inference_mode():
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(module, name, PackedLinear(child.weight, child.bias))
        bias = model.output_bias
        vocab = model.target_vocab
        model.packed_output = PackedLinear(model.output_weight[:vocab], None if bias is None else bias[:vocab])
    return True


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch lays out matrices of `dtype` for oneDNN."""
    if not torch.backends.mkldnn.is_available() or dtype not in (torch.float32, torch.bfloat16):
        return False
    try:
        with torch.inference_mode():
            PackedLinear(torch.zeros(8, 8, dtype=dtype), None)(torch.zeros(1, 8, dtype=dtype))
    except (AttributeError, RuntimeError):
        return False
    return True
