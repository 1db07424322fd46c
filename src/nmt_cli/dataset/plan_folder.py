"""The folder of plans: the plan of an epoch is found there, or built by one process while the others wait."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nmt_cli import files
from nmt_cli.dataset.plan import SAMPLED, DamagedPlan, EpochPlan, PlanKey, is_in_use, write_plan
from nmt_cli.dataset.planning import expected_facts, plan_epoch
from nmt_cli.dataset.sampled_pieces import expected_growth, sample_pieces
from nmt_cli.dataset.store import PreparedData, open_pairs
from nmt_cli.errors import DataError

PLANS = "plans"
_KEPT = 4  # plans in a folder, of any trainings; a plan in use is never removed
_NOTICED_SECONDS = 1.0  # longer work is logged
_POLL_SECONDS = 0.02

logger = logging.getLogger(__name__)


def open_plan(data: PreparedData, *, key: PlanKey, fallback: Path, anew: bool, num_workers: int) -> EpochPlan:
    """Load the plan of an epoch of the training split; build it if there is none.

    One process builds the plan while the others wait. The plan lies in the data's directory, or in `fallback` if that
    directory cannot be written or is full. `anew` builds the plan even if it exists. If its pieces are sampled,
    `num_workers` processes sample them. Raises DataError if neither folder can be written.
    """
    beside, other = data.directory / PLANS, fallback / PLANS
    for folder in () if anew else (beside, other):
        if (plan := _find(folder, key)) is not None:
            return plan
    try:
        return _find_or_build(beside, data, key, anew=anew, num_workers=num_workers)
    except _Unwritable as problem:
        logger.info("the plan of the epoch goes to %s, since %s cannot be written: %s", other, beside, problem.message)
    try:
        return _find_or_build(other, data, key, anew=anew, num_workers=num_workers)
    except _Unwritable as problem:
        raise DataError(
            f"the plan of the epoch can be written neither to {beside} nor to {other}: {problem.message}",
            where=str(other),
            hint="free some space there, or choose another folder with -o",
        ) from None


class _Unwritable(DataError):
    """A folder of plans that cannot be made, locked or written, or is full."""


def _find_or_build(folder: Path, data: PreparedData, key: PlanKey, *, anew: bool, num_workers: int) -> EpochPlan:
    with _turn(folder):
        plan = None if anew else _find(folder, key)  # perhaps it was built while this process waited
        if plan is None:
            plan = _build(folder, data, key, num_workers=num_workers)
        _prune(folder, key)
    return plan


def _find(folder: Path, key: PlanKey) -> EpochPlan | None:
    """The plan with this key; None if the folder has none or a damaged one."""
    directory = folder / key.name
    try:
        return EpochPlan(directory, key=key) if directory.exists() else None
    except PermissionError:
        return None  # its owner lets nobody else read it
    except DamagedPlan as problem:
        logger.warning("the plan %s: it is built anew", problem)
        return None


def _build(folder: Path, data: PreparedData, key: PlanKey, *, num_workers: int) -> EpochPlan:
    start = time.perf_counter()
    directory = folder / key.name
    files.clear_interrupted(folder, name="*")
    with files.new_directory(directory, error=_Unwritable) as temporary:
        pairs, facts, sampled = data.split("train"), None, None
        if key.alpha is not None:
            facts = expected_facts(pairs, key=key, growth=expected_growth(data, key=key))
            sampled = sample_pieces(data, temporary, key=key, facts=facts, num_workers=num_workers)
            pairs = open_pairs(temporary, SAMPLED, dtype=sampled.dtype)
        planned = plan_epoch(pairs, key=key, facts=facts)
        write_plan(
            temporary,
            planned.blocks(),
            sizes=planned.sizes(),
            longest=planned.rows(planned.longest),
            facts=planned.facts,
            key=key,
            sampled=sampled,
        )
    plan = EpochPlan(directory, key=key)
    if (seconds := time.perf_counter() - start) > _NOTICED_SECONDS:
        logger.info("epoch %d planned: %s updates (%.0f s)", key.epoch + 1, f"{len(plan):,}", seconds)
    return plan


def _prune(folder: Path, key: PlanKey) -> None:
    """Remove this training's earlier plans, and all but the newest of the others; a plan in use stays."""
    plans = [path for path in folder.iterdir() if not path.name.startswith(".") and path.name != key.name]
    plans.sort(key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)
    earlier = [path for path in plans if path.name.startswith(f"{key.family}-") and path.name < key.name]
    others = [path for path in plans if path not in earlier]
    for path in [*earlier, *others[_KEPT - 1 :]]:
        if not is_in_use(path):
            files.remove_directory(path)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Hold a folder of plans, waiting for whoever holds it; the kernel releases it when a process ends."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
            stack.callback(os.close, descriptor)
            _lock(descriptor)
        except OSError as problem:  # also of a file system without locks
            raise _Unwritable(str(problem.strerror), where=str(folder), hint="choose another folder with -o") from None
        yield


def _lock(descriptor: int) -> None:
    patient_until = time.monotonic() + _NOTICED_SECONDS
    while time.monotonic() < patient_until:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_POLL_SECONDS)
    logger.info("waiting for the plan that another process builds")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
