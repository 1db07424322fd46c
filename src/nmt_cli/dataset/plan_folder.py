"""Where plans lie: beside the data where that may be written, built by the first process that needs one."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nmt_cli import files
from nmt_cli.dataset.plan import DamagedPlan, Plan, PlanKey, is_in_use, write_plan
from nmt_cli.dataset.planning import plan_epoch
from nmt_cli.dataset.store import PreparedData
from nmt_cli.errors import DataError

PLANS = "plans"
_KEPT = 4  # plans in a folder, of whatever trainings; one in use is never removed
_NOTICED_SECONDS = 1.0  # what takes longer is told of
_LOOK_SECONDS = 0.02

_log = logging.getLogger(__name__)


def open_plan(data: PreparedData, *, key: PlanKey, fallback: Path, anew: bool) -> Plan:
    """The plan of an epoch of the training split, found, or else built by one process while the others wait for it.

    It lies in the data's directory or, where that cannot be written or is full, in `fallback`. `anew` builds it even
    where it is. Raises DataError where neither can be written.
    """
    beside, other = data.directory / PLANS, fallback / PLANS
    for folder in () if anew else (beside, other):
        if (plan := _find(folder, key)) is not None:
            return plan
    try:
        return _find_or_build(beside, data, key, anew=anew)
    except _Unwritable as problem:
        _log.info("the plan of the epoch goes to %s, since %s cannot be written: %s", other, beside, problem)
    try:
        return _find_or_build(other, data, key, anew=anew)
    except _Unwritable as problem:
        raise DataError(
            f"the plan of the epoch can be written neither to {beside} nor to {other}: {problem}",
            where=str(other),
            hint="free some space there, or choose another folder with -o",
        ) from None


class _Unwritable(DataError):
    """A folder that cannot be made, locked or written, or is full: says where a plan goes."""


def _find_or_build(folder: Path, data: PreparedData, key: PlanKey, *, anew: bool) -> Plan:
    with _turn(folder):
        plan = None if anew else _find(folder, key)  # it was built while this process waited
        if plan is None:
            plan = _build(folder, data, key)
        _prune(folder, key)
    return plan


def _find(folder: Path, key: PlanKey) -> Plan | None:
    """The plan with this key where it lies in the folder, whole."""
    directory = folder / key.name
    try:
        return Plan(directory, key=key) if directory.exists() else None
    except PermissionError:
        return None  # somebody else's, who keeps it to himself
    except DamagedPlan as problem:
        _log.warning("the plan %s: it is built anew", problem)
        return None


def _build(folder: Path, data: PreparedData, key: PlanKey) -> Plan:
    start = time.perf_counter()
    directory = folder / key.name
    files.clear_interrupted(folder, name="*")
    with files.new_directory(directory, error=_Unwritable) as temporary:
        planned = plan_epoch(data.split("train"), key=key)
        write_plan(
            temporary,
            planned.blocks(),
            sizes=planned.sizes(),
            longest=planned.rows(planned.longest),
            facts=planned.facts,
            key=key,
        )
    plan = Plan(directory, key=key)
    if (seconds := time.perf_counter() - start) > _NOTICED_SECONDS:
        _log.info("epoch %d planned: %s updates (%.0f s)", key.epoch + 1, f"{len(plan):,}", seconds)
    return plan


def _prune(folder: Path, key: PlanKey) -> None:
    """Remove this training's earlier plans and, of the others, all but the newest; never one that is in use."""
    plans = [path for path in folder.iterdir() if not path.name.startswith(".") and path.name != key.name]
    plans.sort(key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)
    earlier = [path for path in plans if path.name.startswith(f"{key.family}-") and path.name < key.name]
    others = [path for path in plans if path not in earlier]
    for path in [*earlier, *others[_KEPT - 1 :]]:
        if not is_in_use(path):
            files.remove_directory(path)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Hold a folder of plans, waiting for whoever holds it; the kernel gives it up when a process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as problem:
        raise _unwritable(folder, problem) from None
    try:
        _lock(folder, descriptor)
        yield
    finally:
        os.close(descriptor)


def _unwritable(folder: Path, problem: OSError) -> _Unwritable:
    return _Unwritable(str(problem.strerror), where=str(folder), hint="choose another folder with -o")


def _lock(folder: Path, descriptor: int) -> None:
    patient_until = time.monotonic() + _NOTICED_SECONDS
    try:
        while time.monotonic() < patient_until:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(_LOOK_SECONDS)
        _log.info("waiting for the plan that another process builds")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as problem:  # of a file system without locks
        raise _unwritable(folder, problem) from None
