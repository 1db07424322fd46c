"""The cache of plans: finds the plan of an epoch on disk, or lets one process build it while the others wait."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread

from nmt_cli import files
from nmt_cli.dataset.plan_computation import compute_plan, expected_invariants
from nmt_cli.dataset.plan_files import SAMPLED, DamagedPlan, EpochInvariants, EpochPlan, PlanKey, is_in_use, write_plan
from nmt_cli.dataset.prepared_data import PreparedData, open_pairs
from nmt_cli.dataset.sampled_pieces import measure_sampling_cost, sample_pieces
from nmt_cli.devices import num_cpus
from nmt_cli.errors import DataError
from nmt_cli.processes import ONE_THREAD, Worker, WorkerLost

PLANS = "plans"
"""The directory of plans in the prepared data, or in a run directory if the data cannot be written."""
_MAX_PLANS = 4  # in a directory of plans, of any trainings; a plan in use is never removed
_LOGGED_AFTER_SECONDS = 1.0
_POLL_SECONDS = 0.02
_NICENESS = 5  # of the process that builds the next plan: training comes first

logger = logging.getLogger(__name__)


class PlanCache:
    """Finds or builds the plans of the training split of prepared data.

    Plans lie in the data's directory, or in `fallback` if that directory cannot be written or is full. `beat` is called
    before a plan is built, and regularly while pieces are sampled, here or in another process.
    """

    def __init__(
        self,
        data: PreparedData,
        *,
        fallback: Path,
        beat: Callable[[], None],
        known_invariants: Mapping[str, EpochInvariants] | None = None,
    ) -> None:
        self._data, self._fallback, self._beat = data, fallback, beat
        self._directories = (data.directory / PLANS, fallback / PLANS)
        self._background: _BackgroundBuilder | None = None
        self._background_lock, self._is_closed = Lock(), False
        self._known_invariants = dict(known_invariants or {})  # of plans that were opened, by their `training_hash`

    def open(self, key: PlanKey, *, anew: bool, num_workers: int | None = None) -> EpochPlan:
        """Load a plan; build it if there is none, or in any case if `anew`.

        One process builds the plan while the others wait. If pieces are sampled, `num_workers` processes sample them;
        None means one process per CPU. Raises DataError if neither directory can be written, and CacheClosed if this
        cache is closed before the plan is built.
        """
        plan = None if anew else _find_plan(self._directories, key)
        if plan is None:
            plan = self._build_in_either_directory(key, anew=anew, num_workers=num_workers or num_cpus())
        self._known_invariants[key.training_hash] = plan.invariants
        return plan

    def build_ahead(self, key: PlanKey, *, num_workers: int) -> None:
        """Start a background process that builds a plan, unless it was started already; `open` waits for it."""
        with self._background_lock:
            if self._is_closed or (self._background is not None and self._background.key == key):
                return
            if self._background is not None:
                self._background.close()
            job = _BuildingJob(self._data, self._fallback, num_workers, dict(self._known_invariants))
            self._background = _BackgroundBuilder(job, key)

    def close(self) -> None:
        """Build no more plans, here or in the background process, and remove its unfinished plan."""
        with self._background_lock:
            self._is_closed = True
            if self._background is None:
                return
            self._background.close()
            for directory in self._directories:
                if directory.exists():
                    # If another process has the lock, that process clears the directory before it builds.
                    with suppress(CacheClosed, _Unwritable, OSError), self._lock(directory):
                        files.clear_partial_directories(directory, name=self._background.key.directory_name)
            self._background = None

    def _build_in_either_directory(self, key: PlanKey, *, anew: bool, num_workers: int) -> EpochPlan:
        """Build a plan in the data's directory, or else in `fallback`; DataError if neither can be written."""
        in_data, in_fallback = self._directories
        try:
            return self._build_under_lock(in_data, key, anew=anew, num_workers=num_workers)
        except _Unwritable as error:
            message = "the plan of the epoch goes to %s, since %s cannot be written: %s"
            logger.info(message, in_fallback, in_data, error.message)
        try:
            return self._build_under_lock(in_fallback, key, anew=anew, num_workers=num_workers)
        except _Unwritable as error:
            raise DataError(
                f"the plan of the epoch can be written neither to {in_data} nor to {in_fallback}: {error.message}",
                where=str(in_fallback),
                hint="free some space there, or choose another folder with -o",
            ) from None

    @contextmanager
    def _lock(self, directory: Path) -> Iterator[None]:
        """Wait for the lock of a directory of plans, and hold it; the kernel releases it when the process ends."""
        with ExitStack() as stack:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
                stack.callback(os.close, descriptor)
                self._wait_for_lock(descriptor, directory)
            except OSError as error:  # also of a file system without locks
                where, hint = str(directory), "choose another folder with -o"
                raise _Unwritable(str(error.strerror), where=where, hint=hint) from None
            yield

    def _wait_for_lock(self, descriptor: int, directory: Path) -> None:
        start, is_logged, last_progress = time.monotonic(), False, set[tuple[Path, int, int]]()
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            self._raise_if_closed()
            if (progress := _progress_of_builders(directory)) != last_progress:
                last_progress = progress
                self._beat()
            if not is_logged and time.monotonic() - start > _LOGGED_AFTER_SECONDS:
                logger.info("waiting for the plan that another process builds")
                is_logged = True
            time.sleep(_POLL_SECONDS)

    def _beat_unless_closed(self) -> None:
        """Call `beat`; CacheClosed if the cache is closed."""
        self._raise_if_closed()
        self._beat()

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise CacheClosed

    def _build_under_lock(self, directory: Path, key: PlanKey, *, anew: bool, num_workers: int) -> EpochPlan:
        """Build a plan under the lock of its directory, unless another process built it meanwhile."""
        with self._lock(directory):
            self._beat_unless_closed()
            _prune(directory, key)
            plan = None if anew else _find_plan([directory], key)
            return self._build(directory, key, num_workers=num_workers) if plan is None else plan

    def _build(self, directory: Path, key: PlanKey, *, num_workers: int) -> EpochPlan:
        start = time.perf_counter()
        files.clear_partial_directories(directory, name="*")
        with files.new_directory(directory / key.directory_name, error=_Unwritable) as temporary:
            pairs, invariants, sampled_dtype = self._data.split("train"), None, None
            if key.alpha is not None:
                sampled_dtype = self._data.manifest.dtype
                invariants = self._sample(temporary, key, num_workers=num_workers)
                pairs = open_pairs(temporary, SAMPLED, dtype=sampled_dtype)
            computed = compute_plan(pairs, key=key, invariants=invariants)
            write_plan(
                temporary,
                computed.blocks(),
                sizes=computed.sizes(),
                longest_rows=computed.rows(computed.longest_pairs),
                invariants=computed.invariants,
                key=key,
                sampled_dtype=sampled_dtype,
            )
        plan = EpochPlan(directory / key.directory_name, key=key)
        if (seconds := time.perf_counter() - start) > _LOGGED_AFTER_SECONDS:
            logger.info("epoch %d planned: %s updates (%.0f s)", key.epoch + 1, f"{len(plan):,}", seconds)
        return plan

    def _sample(self, directory: Path, key: PlanKey, *, num_workers: int) -> EpochInvariants:
        """Write the sampled ids of an epoch into a directory; return the invariants by which they were sampled."""
        invariants = self._known_invariants.get(key.training_hash)
        invariants = invariants or self._expected_invariants(key, num_workers=num_workers)
        beat = self._beat_unless_closed
        sample_pieces(self._data, directory, key=key, invariants=invariants, num_workers=num_workers, beat=beat)
        return invariants

    def _expected_invariants(self, key: PlanKey, *, num_workers: int) -> EpochInvariants:
        """The invariants of a training whose pieces are sampled, from a sample of its pairs."""
        assert key.alpha is not None
        pairs = self._data.split("train")
        cost = measure_sampling_cost(self._data, alpha=key.alpha, seed=key.seed, max_positions=key.max_positions)
        if (seconds := len(pairs) * cost.seconds_per_pair / num_workers) > _LOGGED_AFTER_SECONDS:
            logger.info("sampling the pieces of an epoch: about %.0f s", seconds)
        return expected_invariants(pairs, key=key, cost=cost)


class _BackgroundBuilder:
    """A background process that builds one plan, and a thread that waits for the process."""

    def __init__(self, job: _BuildingJob, key: PlanKey) -> None:
        self.key = key
        self._is_closed = False
        self._thread = Thread(target=self._wait, name="nmt-plan-ahead", daemon=True)
        try:
            self._worker = Worker(job, environment=ONE_THREAD)
        except OSError as error:
            _warn_of_failure(key, error.strerror)
        else:
            self._thread.start()

    def close(self) -> None:
        """End the process. The files of an unfinished plan stay; `PlanCache.close` removes them."""
        if self._thread.is_alive():
            self._is_closed = True
            self._worker.kill()
            self._thread.join()

    def _wait(self) -> None:
        try:
            self._worker.result_of(self.key)
        except (DataError, MemoryError, RuntimeError, WorkerLost) as error:
            if not self._is_closed:
                _warn_of_failure(self.key, error.message if isinstance(error, DataError) else error)
        finally:
            self._worker.close()


@dataclass(frozen=True, slots=True)
class _BuildingJob:
    """The work of the background process; `known_invariants` come from the cache that started it."""

    data: PreparedData
    fallback: Path
    num_workers: int
    known_invariants: Mapping[str, EpochInvariants]

    def start(self) -> Callable[[PlanKey], None]:
        """The function that builds the plan with a key."""
        os.nice(_NICENESS)
        cache = PlanCache(self.data, fallback=self.fallback, beat=lambda: None, known_invariants=self.known_invariants)

        def build(key: PlanKey) -> None:
            cache.open(key, anew=False, num_workers=self.num_workers).close()

        return build


def _warn_of_failure(key: PlanKey, reason: object) -> None:
    message = "the process that plans epoch %d ahead has failed; training plans it when the epoch begins: %s"
    logger.warning(message, key.epoch + 1, reason)


class CacheClosed(Exception):  # not an error that users see: nobody waits for the plan
    """The cache was closed before a plan was built."""


class _Unwritable(DataError):
    """A directory of plans that cannot be made, locked or written, or is full."""


def _find_plan(directories: Sequence[Path], key: PlanKey) -> EpochPlan | None:
    """The plan with this key in the first directory with an undamaged one; None if there is none."""
    for directory in directories:
        with suppress(PermissionError):  # its owner lets nobody else read it
            if (directory / key.directory_name).exists():
                try:
                    return EpochPlan(directory / key.directory_name, key=key)
                except DamagedPlan as error:
                    logger.warning("the plan %s: it is built anew", error)
    return None


def _progress_of_builders(directory: Path) -> set[tuple[Path, int, int]]:
    """The files of unfinished plans with their sizes and times, which change while a process builds."""
    progress = set()
    with suppress(OSError):  # renamed or removed meanwhile
        for path in (*directory.glob(".*.partial"), *directory.glob(".*.partial/*")):
            status = path.stat()
            progress.add((path, status.st_size, status.st_mtime_ns))
    return progress


def _prune(directory: Path, key: PlanKey) -> None:
    """Remove this training's earlier plans and the oldest of the others, so that few stay; a plan in use stays."""
    name = key.directory_name
    plans = [path for path in directory.iterdir() if not path.name.startswith(".") and path.name != name]
    plans.sort(key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)
    earlier = [path for path in plans if path.name.startswith(f"{key.training_hash}-") and path.name < name]
    others = [path for path in plans if path not in earlier]
    for path in [*earlier, *others[_MAX_PLANS - 1 :]]:
        if not is_in_use(path):
            files.remove_directory(path)
