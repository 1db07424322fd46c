"""The machine that an experiment would run on: its devices, their memory, and how fast they multiply matrices."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from nmt_cli.devices import Precision, PrecisionChoice, choose_device, choose_precision, num_cpus
from nmt_cli.recipe.schema import Recipe

_WARM_UP, _ROUNDS = 3, 5


@dataclass(frozen=True, slots=True)
class Machine:
    """`num_devices` of one kind; memory in bytes of each; `products` in floating-point operations a second of each.

    `decoding_products` are those in the precision that translating takes, which on a CPU is another.
    """

    name: str
    is_gpu: bool
    num_devices: int
    memory_bytes: int
    precision: Precision
    products: float
    decoding_products: float
    num_cpus: int

    def __str__(self) -> str:
        if not self.is_gpu:
            return f"{self.num_cpus} CPU cores in {self.precision}, no GPU"
        return f"{self.num_devices} x {self.name} in {self.precision}"


def look_at_machine(recipe: Recipe) -> Machine:
    """The devices that `nmt train` would take here, and their speed, from a few matrix products on the first."""
    choice = recipe.training.precision
    if choose_device("auto").type == "cpu":
        return _look(choice)
    # In a process of its own: whoever has used a GPU holds memory of it until the end.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_look, choice).result()


def _look(choice: PrecisionChoice) -> Machine:
    device = choose_device("auto")
    precision = choose_precision(choice, device=device, training=True)
    decoding = choose_precision("auto", device=device, training=False)
    products = _products_a_second(device, precision)
    return Machine(
        name=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        is_gpu=device.type == "cuda",
        num_devices=torch.cuda.device_count() if device.type == "cuda" else 1,
        memory_bytes=_memory(device),
        precision=precision,
        products=products,
        decoding_products=products if decoding == precision else _products_a_second(device, decoding),
        num_cpus=num_cpus(),
    )


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _products_a_second(device: torch.device, precision: Precision) -> float:
    """Floating-point operations a second in the best of a few products of square matrices."""
    size = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    for _ in range(_WARM_UP):
        left @ right
    return 2 * size**3 / min(_seconds(left, right) for _ in range(_ROUNDS))


def _seconds(left: torch.Tensor, right: torch.Tensor) -> float:
    is_gpu = left.device.type == "cuda"
    if is_gpu:
        torch.cuda.synchronize(left.device)
    start = time.perf_counter()
    left @ right
    if is_gpu:
        torch.cuda.synchronize(left.device)
    return max(time.perf_counter() - start, 1e-9)


def bytes_below(path: Path) -> int:
    """The bytes of the files at or below a path; 0 where there is nothing."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
