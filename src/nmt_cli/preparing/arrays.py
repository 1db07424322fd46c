"""Files of arrays by name, which appear whole or not at all."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt_cli.errors import DataError
from nmt_cli.files import write_file


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to a file that `numpy.load` reads, each when it is asked for. DataError where the disk is full."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # to mypy, a name could be that of its option
    write_file(path, buffer.getvalue(), error=DataError)
