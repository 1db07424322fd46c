"""The line that a training begins with: what is trained, on what, and how an update is spread."""

from __future__ import annotations

from nmt_cli.dataset.shape import accumulation
from nmt_cli.devices import Precision
from nmt_cli.model.attention import choose_kernel
from nmt_cli.model.packing import SHORT
from nmt_cli.recipe.schema import Recipe
from nmt_cli.training.distributed import Ranks
from nmt_cli.training.update import Updater


def plan_in_words(recipe: Recipe, updater: Updater, ranks: Ranks, *, precision: Precision, max_tokens: int) -> str:
    """The model, its devices, and the micro-batches of an update, of at most `max_tokens` each."""
    architecture, training, model = recipe.model, recipe.training, updater.model
    dtype = model.output_weight.dtype
    kernel = choose_kernel(
        *(ranks.device, dtype),
        d_k=architecture.d_k,
        d_v=architecture.d_v,
        window=architecture.encoder_window,
        bound=SHORT,
    )
    rounds = accumulation(batch_tokens=training.batch_tokens, max_tokens=max_tokens, world_size=ranks.size)
    spread = f"{ranks.size} device(s) x {rounds} micro-batch(es)"
    size = f"{model.num_parameters() / 1e6:.1f} million parameters"
    return (
        f"{size} on {ranks.device} in {precision} with {kernel} attention{_compiled(updater, ranks)};"
        f" an update of {training.batch_tokens:,} tokens is {spread} of at most {max_tokens:,}"
        f"{' (auto)' if training.max_tokens_per_device == 'auto' else ''}"
    )


def _compiled(updater: Updater, ranks: Ranks) -> str:
    """On a GPU, whether layers are compiled, or why not."""
    if ranks.device.type == "cpu":
        return ""
    reason = updater.reason_not_to_compile
    return ", compiled" if reason is None else f", not compiled ({reason})"
