"""Where our Triton kernels run in tests: on a GPU, or without one in Triton's own interpreter (tests/conftest.py).

To be imported before the kernels: a test module is skipped if there is no Triton. `pytestmark = MARKS` lets
`pytest -m gpu` run a module's tests on a GPU.
"""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton, a development dependency for Linux on x86-64")
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
MARKS = [] if IS_INTERPRETED else [pytest.mark.gpu]
