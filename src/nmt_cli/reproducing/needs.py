"""The machine of a reproduction, and what each stage needs of it: disk, memory, hours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

import torch

from nmt_cli.artifacts.run import Run
from nmt_cli.console import size_text
from nmt_cli.devices import Precision, PrecisionChoice, choose_device, choose_precision, num_cpus
from nmt_cli.errors import DataError
from nmt_cli.files import bytes_in, free_bytes, nearest_existing
from nmt_cli.memory import free_cpu_bytes
from nmt_cli.preparing.corpus import Corpus
from nmt_cli.preparing.download import cached_file, partial_file
from nmt_cli.preparing.sources.archive import ArchiveSource
from nmt_cli.preparing.sources.hub import HubSource
from nmt_cli.processes import Worker
from nmt_cli.recipe.schema import Recipe
from nmt_cli.reproducing.plan import ReproductionPlan
from nmt_cli.training.micro_batch_size import DeviceNeeds, estimate_device_needs
from nmt_cli.training.reporting.metrics import matrix_rate

# Rough figures of preparation: bytes on disk per pair, in the work folder and in the prepared data together; pairs that
# a core cleans and encodes per second; lines of the vocabulary's sample per second.
_WORK_BYTES_PER_PAIR = 600
_PAIRS_PER_CORE_SECOND = 20_000
_SAMPLED_LINES_PER_SECOND = 100_000
_ARCHIVE_COPIES = 2  # an archive takes its size once more for the files that are unpacked from it
_MAX_OVER_MIN_HOURS = 3  # for other processors, longer sentences, a larger vocabulary
_PREPARING_MEMORY_BYTES = 1_500_000_000
# The least and the greatest share of the rate of plain matrix products that training and search reach. The shares for
# GPUs are from published systems; the shares for CPUs are rough.
_GPU_TRAINING_SHARES, _CPU_TRAINING_SHARES = (0.2, 0.5), (0.25, 0.5)
_GPU_SEARCH_SHARES, _CPU_SEARCH_SHARES = (0.01, 0.05), (0.1, 0.35)
_USABLE_MEMORY_SHARE = 0.9
_TOKENS_PER_LINE = 30
_TOKEN_STEP = 256  # a proposed number of tokens is a multiple of this
_CHECKPOINT_BYTES_PER_PARAMETER = 12  # weights and two moments in float32
_MODEL_BYTES_PER_PARAMETER = 4
# Memory of a search, roughly: per parameter of the model, and for torch and the batches.
_DECODING_BYTES_PER_PARAMETER, _DECODING_BASE_BYTES = 8, 1_000_000_000


@dataclass(frozen=True, slots=True)
class Machine:
    """`num_devices` devices of one kind. Memory and rate are per device.

    On a CPU, `memory_bytes` are the bytes that were free at the start. Translation has another precision there than
    training, and so another rate.
    """

    name: str
    is_gpu: bool
    num_devices: int
    memory_bytes: int
    precision: Precision
    flops_per_second: float
    decoding_flops_per_second: float
    num_cpus: int

    def __str__(self) -> str:
        if not self.is_gpu:
            return f"{self.num_cpus} CPU cores in {self.precision}, no GPU"
        return f"{self.num_devices} x {self.name} in {self.precision}"


class _MachineJob:
    """Measures the machine in a worker process."""

    def start(self) -> Callable[[PrecisionChoice], Machine]:
        """The function that measures."""
        return _measure


def measure_machine(recipe: Recipe) -> Machine:
    """The devices that `nmt train` would take here, and their speed, from a few matrix products on the first."""
    if choose_device("auto").type == "cpu":
        return _measure(recipe.training.precision)
    # A process that has used a GPU holds memory of it until the process ends. So a worker measures.
    worker = Worker(_MachineJob(), environment={})
    try:
        return worker.result_of(recipe.training.precision)
    finally:
        worker.close()


def _measure(choice: PrecisionChoice) -> Machine:
    device = choose_device("auto")
    is_gpu = device.type == "cuda"
    precision = choose_precision(choice, device=device, training=True)
    decoding_precision = choose_precision("auto", device=device, training=False)
    precisions = dict.fromkeys((precision, decoding_precision))
    rates = {each: matrix_rate(device, torch.bfloat16 if each == "bf16" else torch.float32) for each in precisions}
    return Machine(
        name=torch.cuda.get_device_name(device) if is_gpu else "CPU",
        is_gpu=is_gpu,
        num_devices=torch.cuda.device_count() if is_gpu else 1,
        memory_bytes=torch.cuda.get_device_properties(device).total_memory if is_gpu else free_cpu_bytes(),
        precision=precision,
        flops_per_second=rates[precision],
        decoding_flops_per_second=rates[decoding_precision],
        num_cpus=num_cpus(),
    )


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """The time that a stage takes, as a range of hours, and what the estimate is based on, in words."""

    min_hours: float
    max_hours: float
    basis: str

    @classmethod
    def from_flops(cls, flops: float, *, flops_per_second: float, shares: tuple[float, float]) -> TimeEstimate:
        """The time for floating-point operations, at the least and at the greatest share of the measured rate."""
        min_share, max_share = shares
        full_rate_hours = flops / flops_per_second / 3600
        teraflops = f"{flops_per_second / 1e12:,.{0 if flops_per_second >= 1e13 else 2}f}"
        percents = f"{100 * min_share:.0f} to {100 * max_share:.0f} %"
        basis = f"{percents} of the {teraflops} TFLOP/s of matrix products measured here"
        return cls(full_rate_hours / max_share, full_rate_hours / min_share, basis)

    def __str__(self) -> str:
        return f"{_duration_text(self.min_hours, self.max_hours)} ({self.basis})"


@dataclass(frozen=True, slots=True)
class Needs:
    """The remaining needs of a stage: bytes of disk by folder, memory in words, and time."""

    disk: tuple[tuple[Path, int], ...] = ()
    memory: str = ""
    time: TimeEstimate | None = None

    def lines(self) -> list[str]:
        """The needs in words."""
        lines = [
            f"disk:   {size_text(amount)} in {folder} ({size_text(free_bytes(folder))} free)"
            for folder, amount in self.disk
        ]
        lines += [f"memory: {self.memory}"] if self.memory else []
        return lines + ([f"time:   {self.time}"] if self.time else [])


def preparation_needs(plan: ReproductionPlan, machine: Machine) -> Needs:
    """The needs of `nmt prepare`. The size of a rehearsal's download is unknown beforehand and is left out."""
    corpus = plan.corpus
    pairs = int(plan.experiment.expected["prepare"]["pairs read"].low)
    pairs = pairs if plan.limit is None else min(plan.limit, pairs)
    work_bytes = pairs * _WORK_BYTES_PER_PAIR - bytes_in(plan.data.with_name(f"{plan.data.name}.partial"))
    downloads = _missing_downloads(corpus) if plan.limit is None else ()
    disk = [*downloads, (plan.data, work_bytes)]
    sampled = min(2 * pairs, corpus.tokenizer.sample_lines)
    hours = (pairs / (_PAIRS_PER_CORE_SECOND * machine.num_cpus) + sampled / _SAMPLED_LINES_PER_SECOND) / 3600
    basis = f"up to {_PAIRS_PER_CORE_SECOND:,} pairs/s on each of {machine.num_cpus} cores; downloads not counted"
    return Needs(
        disk=tuple((folder, amount) for folder, amount in disk if amount > 0),
        memory=f"about {size_text(_PREPARING_MEMORY_BYTES)}, and more while the vocabulary is trained",
        time=TimeEstimate(hours, _MAX_OVER_MIN_HOURS * hours, basis),
    )


def training_needs(plan: ReproductionPlan, run: Run | None, machine: Machine) -> Needs:
    """The needs of `nmt train`, or of the rest of a training that has begun."""
    training, pieces = plan.recipe.training, plan.corpus.tokenizer.vocab_size
    memory = estimate_device_needs(
        plan.recipe,
        source_vocab=pieces,
        target_vocab=pieces,
        precision=machine.precision,
        world_size=machine.num_devices,
    )
    checkpoints = training.keep_last + training.keep_best + 1  # one more while it is written
    bytes_per_parameter = checkpoints * _CHECKPOINT_BYTES_PER_PARAMETER + _MODEL_BYTES_PER_PARAMETER
    disk = max(memory.num_parameters * bytes_per_parameter - bytes_in(plan.run), 0)
    updates_done = 0 if run is None else max((checkpoint.update for checkpoint in run.checkpoints()), default=0)
    updates_left = max(training.updates - updates_done, 0)
    seconds_per_update = None if run is None else _seconds_per_update(run)
    if seconds_per_update is not None:
        hours = seconds_per_update * updates_left / 3600
        basis = f"the run's own speed, {seconds_per_update:.3g} s per update; validations not counted"
        time = TimeEstimate(hours, hours, basis)
    else:
        time = TimeEstimate.from_flops(
            6 * memory.num_parameters * training.batch_tokens * updates_left,  # forward 2, backward 4
            flops_per_second=machine.flops_per_second * machine.num_devices,
            shares=_GPU_TRAINING_SHARES if machine.is_gpu else _CPU_TRAINING_SHARES,
        )
        time = replace(time, basis=f"{machine}: {time.basis}; validations not counted")
    return Needs(disk=((plan.run, disk),), memory=_memory_text(memory, plan.recipe, machine), time=time)


def averaging_needs(plan: ReproductionPlan) -> Needs:
    """The needs of `nmt average`: the model that it writes, and what it reads."""
    size = plan.num_parameters * _MODEL_BYTES_PER_PARAMETER
    return Needs(disk=((plan.run, size),), memory=f"about {size_text(3 * size)}")


def decoding_needs(plan: ReproductionPlan, machine: Machine, *, lines: int) -> Needs:
    """The needs of `nmt decode`."""
    memory = plan.num_parameters * _DECODING_BYTES_PER_PARAMETER + _DECODING_BASE_BYTES
    time = TimeEstimate.from_flops(
        2 * plan.num_parameters * plan.recipe.decoding.beam * lines * _TOKENS_PER_LINE,
        flops_per_second=machine.decoding_flops_per_second,
        shares=_GPU_SEARCH_SHARES if machine.is_gpu else _CPU_SEARCH_SHARES,
    )
    return Needs(memory=f"about {size_text(memory)}", time=time)


def check_disk(all_needs: Sequence[Needs], *, is_rehearsal: bool) -> None:
    """Raise DataError if a disk has no room for all that the stages still need."""
    folders: dict[int, Path] = {}  # by disk, the first folder on it
    needed_bytes: Counter[int] = Counter()  # by disk
    for folder, amount in chain.from_iterable(needs.disk for needs in all_needs):
        disk = nearest_existing(folder).stat().st_dev
        folders.setdefault(disk, folder)
        needed_bytes[disk] += amount
    for disk, folder in folders.items():
        needed, free = size_text(needed_bytes[disk]), free_bytes(folder)
        if needed_bytes[disk] > free:
            choices = "--data, -o, and for downloads HF_HOME or NMT_CACHE"
            smaller = "a smaller --limit" if is_rehearsal else "rehearse it first: --limit 10000"
            raise DataError(
                f"the disk of {folder} has {size_text(free)} free, but the remaining stages need {needed}",
                where=str(folder),
                hint=f"free some space, name folders on another disk ({choices}), or {smaller}",
            )


def _missing_downloads(corpus: Corpus) -> Iterator[tuple[Path, int]]:
    """The folders that downloads fill, with the bytes that they lack. Downloads of unknown size are left out."""
    from huggingface_hub.constants import HF_HUB_CACHE

    of_hub = [source for source in corpus.sources("train") if isinstance(source, HubSource) and not source.is_local]
    repositories = dict.fromkeys(source.repository.replace("/", "--") for source in of_hub)
    folders = [Path(HF_HUB_CACHE) / f"datasets--{repository}" for repository in repositories]
    if folders and corpus.bytes is not None:
        yield folders[0], corpus.bytes - sum(map(bytes_in, folders))
    sources = chain.from_iterable(map(corpus.sources, corpus.splits))
    archives = {source.url: source.bytes or 0 for source in sources if isinstance(source, ArchiveSource) and source.url}
    for file, size in ((cached_file(url), size) for url, size in archives.items()):
        if not file.exists():
            yield file.parent, _ARCHIVE_COPIES * size - bytes_in(partial_file(file))


def _memory_text(memory: DeviceNeeds, recipe: Recipe, machine: Machine) -> str:
    """The memory that training takes on a device; if it is too much, also the number of tokens that would fit."""
    total = memory.weight_bytes + memory.activation_bytes
    present = size_text(machine.memory_bytes)
    place = f"each GPU's {present}" if machine.is_gpu else f"the {present} that were free at the start"
    text = f"about {size_text(total)} of {place}"
    if total <= machine.memory_bytes:
        return text
    activation_bytes = _USABLE_MEMORY_SHARE * machine.memory_bytes - memory.weight_bytes
    fitting_tokens = int(activation_bytes / memory.bytes_per_token) // _TOKEN_STEP * _TOKEN_STEP
    if fitting_tokens < recipe.model.max_positions:
        return f"{text}: too much for such a device"
    if recipe.training.max_tokens_per_device == "auto":
        return f"{text} for {memory.tokens:,} tokens at once: it will take fewer, about {fitting_tokens:,}"
    return f"{text}: too much; less with --set training.max_tokens_per_device={fitting_tokens}"


def _duration_text(min_hours: float, max_hours: float) -> str:
    if max_hours < 1 / 60:
        return "less than a minute"
    if max_hours < 2:
        low, high, unit = f"{60 * min_hours:.0f}", f"{60 * max_hours:.0f}", "minutes"
    elif max_hours < 72:
        low, high, unit = f"{min_hours:.1f}", f"{max_hours:.1f}", "hours"
    else:
        low, high, unit = f"{min_hours / 24:,.1f}", f"{max_hours / 24:,.1f}", "days"
    if low == "0":
        return f"up to {high} {unit}"
    return f"about {low} {unit}" if low == high else f"{low} to {high} {unit}"


def _seconds_per_update(run: Run) -> float | None:
    """The seconds per update between the last two lines of the log from one start; None if there are no such lines."""
    events = [event for event in run.events() if event.get("event") in ("train", "resume")]
    for earlier, later in reversed([*pairwise(events)]):
        if earlier["event"] == later["event"] == "train":
            updates, seconds = (later[key] - earlier[key] for key in ("update", "seconds"))
            if updates > 0 and seconds > 0:
                return float(seconds / updates)
    return None
