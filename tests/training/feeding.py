"""Updates of the tiny training without its loop: recipes, batches of one shape, and updaters to be given them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from nmt_cli.dataset.batches import Batch
from nmt_cli.dataset.prepared_data import PreparedData, Rows
from nmt_cli.devices import Precision
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.data_order import DataOrder, PlannedUpdate
from nmt_cli.training.initial_weights import build_model
from nmt_cli.training.ranks.ranks import Ranks
from nmt_cli.training.update import Updater, UpdateResult
from tests.training.tiny import tiny_recipe

MAX_TOKENS = 320


@dataclass(frozen=True)
class Feed:
    """The updates of a recipe on prepared data: 8 in an epoch, of two micro-batches each."""

    recipe: Recipe
    data: PreparedData
    order: DataOrder
    device: torch.device

    def updater(self, precision: Precision, *, ranks: Ranks | None = None) -> Updater:
        """A new one, always with the same weights, of a single rank unless told otherwise."""
        torch.manual_seed(1)
        model = build_model(self.recipe, self.data).to(self.device)
        return Updater(self.recipe, model, precision=precision, ranks=ranks or Ranks(0, 1, self.device))

    def batch(self, rows: Rows) -> Batch:
        return self.order.batch(rows, device=self.device, pinned=False)

    def updates(self, number: int) -> Iterator[tuple[int, PlannedUpdate]]:
        """The first updates with their numbers."""
        self.order.move_to(epoch=0, index=0)
        for place in range(1, number + 1):
            yield place, self.order.next()

    def give(self, updater: Updater, number: int, update: PlannedUpdate) -> UpdateResult:
        """Let an updater take an update."""
        batches = [(index, self.batch(rows)) for index, rows in enumerate(update.micro_batches) if len(rows)]
        return take(updater, batches, number, update)


def take(updater: Updater, batches: Sequence[tuple[int, Batch]], number: int, update: PlannedUpdate) -> UpdateResult:
    """Let an updater take some micro-batches of an update, and wait for the result."""
    return updater.launch(
        batches,
        number=number,
        num_micro_batches=len(update.micro_batches),
        target_tokens=update.target_tokens,
        received_signal=lambda: None,
    ).result()


def order_of(
    data: PreparedData,
    recipe: Recipe,
    *,
    world_size: int = 1,
    max_tokens: int = MAX_TOKENS,
    run: Path = Path("no-run"),  # only sampled pieces need one
) -> DataOrder:
    """The updates of a training from the beginning."""
    return DataOrder(
        data,
        recipe,
        world_size=world_size,
        max_tokens=max_tokens,
        run_directory=run,
        beat=lambda: None,
    )


def pairs_of_update(data: PreparedData, number: int) -> list[list[int]]:
    """The pairs of each micro-batch of an update of the tiny recipe."""
    order = order_of(data, tiny_recipe())
    update = [order.next() for _ in range(number)][-1]
    return [rows["pair"].tolist() for rows in update.micro_batches]


def feed(data: PreparedData, *settings: str, device: str = "cpu", max_tokens: int = MAX_TOKENS) -> Feed:
    """The tiny recipe with two layers in the encoder, without dropout, changed by settings."""
    recipe = tiny_recipe("model.encoder_layers=2", "model.dropout=0", *settings)
    order = order_of(data, recipe, max_tokens=max_tokens)
    return Feed(recipe, data, order, torch.device(device))


def taped(function: Callable[[], None]) -> Callable[[], None]:
    """As a CUDA graph, the operations on tensors that a function did, on the same memory, and nothing of its Python.

    What asks a tensor for its value cannot be recorded.
    """
    tape: Callable[[], None] = torch.no_grad()(make_fx(function)())
    return tape
