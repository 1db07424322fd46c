"""A worker process: one model, batches of sentences in, translations out; and the server's side of it.

torch is imported in the worker only. If a worker hangs or is killed, the server keeps its connections.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import TYPE_CHECKING, Any, assert_never

from nmt_cli import console
from nmt_cli.artifacts.manifest import holds_model, model_digest
from nmt_cli.errors import DataError, DeviceError, ModelError, UsageError
from nmt_cli.memory import collect_garbage_rarely
from nmt_cli.processes import Worker, WorkerLost
from nmt_cli.serving.log import log_in_json

if TYPE_CHECKING:
    import torch

    from nmt_cli.artifacts.model_directory import LoadedModel
    from nmt_cli.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# A large model from a slow disk, converted for CTranslate2 on the way.
_LOADING_SECONDS = 600.0
_FOLDER_PREFIX = "nmt-serve-"
# Threads that wait for each other must not spin, since the server itself needs a CPU. Batches have ever new shapes, and
# oneDNN and torch's layer above it would each keep what they made for the last thousand: hundreds of megabytes. A batch
# needs more than 32 (docs/design/serving.md#memory).
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
    "LRU_CACHE_CAPACITY": "128",
}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a worker runs a model: engine, device and precision as for `nmt decode`, and CPU threads."""

    name: str
    device: str
    precision: str
    threads: int


@dataclass(frozen=True, slots=True)
class SearchJob:
    """The search of one sentence; sentences with the same search can be searched together.

    The translation begins with `prefix`, and with `alignments` it says which source word each of its words is from.
    """

    beam: int
    nbest: int
    length_penalty: float
    max_extra_tokens: int
    prefix: str
    alignments: bool


@dataclass(frozen=True, slots=True)
class AttentionJob:
    """The attention between a sentence and this translation of it."""

    target: str


@dataclass(frozen=True, slots=True)
class NextWordsJob:
    """At most `num_words` translations of a sentence that begin with `prefix` and differ in the next word."""

    prefix: str
    num_words: int
    beam: int


SentenceJob = SearchJob | AttentionJob | NextWordsJob


class WorkerFailed(Exception):
    """The worker ended, made a mistake, or did not answer in time and was killed."""


class WorkerProcess:
    """A worker process that answers one batch at a time.

    `digest` is that of the model that it has loaded. Sentences of fewer than `short_below` source tokens are best sent
    apart from others, because the worker does not search them together.
    """

    def __init__(self, model: Path, engine: EngineSettings) -> None:
        # Its temporary files are as large as the model, and would stay if it is killed.
        self._folder = _WorkerFolder()
        threads = str(engine.threads)
        own = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TMPDIR": str(self._folder.path)}
        self._worker = Worker(_ModelJob(model, engine), environment=_ENVIRONMENT | os.environ | own)
        self._threads = ThreadPoolExecutor(2)  # one waits for the answer, and one for the end of the process
        self._end = self._threads.submit(self._worker.wait)
        self._answer: Future[Any] | None = None
        self.digest = ""
        self.short_below = 0

    @classmethod
    async def start(cls, model: Path, engine: EngineSettings) -> WorkerProcess:
        """A worker that has loaded `model`; NmtError if it cannot, WorkerFailed if it dies or takes too long."""
        worker = cls(model, engine)
        try:
            worker.digest, worker.short_below = await worker._do(None, timeout_seconds=_LOADING_SECONDS)
        except BaseException:
            await worker.close()
            raise
        return worker

    async def ask(self, lines: Sequence[str], job: SentenceJob, *, timeout_seconds: float) -> list[dict[str, Any]]:
        """The answers to some sentences; WorkerFailed if no answer comes, NmtError if the worker reports an error."""
        answers: list[dict[str, Any]] = await self._do((list(lines), job), timeout_seconds=timeout_seconds)
        return answers

    async def ended(self) -> str:
        """How the process has ended, once it has."""
        return str(WorkerLost(await asyncio.shield(asyncio.wrap_future(self._end))))

    def kill(self) -> None:
        """End it at once."""
        self._worker.kill()

    async def close(self) -> None:
        """End the process: between two batches by itself, within a batch at once."""
        if self._answer is not None and not self._answer.done():
            self.kill()
            await asyncio.gather(asyncio.wrap_future(self._answer), return_exceptions=True)
        await asyncio.wrap_future(self._threads.submit(self._end_and_clear))
        self._threads.shutdown(wait=False)

    def _end_and_clear(self) -> None:
        self._worker.close()
        self._folder.remove()

    async def _do(self, task: _Task, *, timeout_seconds: float) -> Any:
        self._answer = self._threads.submit(self._worker.result_of, task, timeout_seconds=timeout_seconds)
        try:
            return await asyncio.wrap_future(self._answer)
        except (WorkerLost, TimeoutError) as problem:
            self.kill()
            raise WorkerFailed(str(problem)) from None
        except RuntimeError as problem:
            self.kill()
            logger.error("%s", problem)  # with the traceback of the worker
            raise WorkerFailed("a worker process made a mistake") from None


# Sentences and the job to do with each; None asks which model was loaded.
_Task = tuple[list[str], SentenceJob] | None


class _WorkerFolder:
    """The folder for the temporary files of a worker.

    A lock tells other servers, and systemd-tmpfiles(8), that it is in use.
    """

    def __init__(self) -> None:
        hidden = Path(mkdtemp(prefix=f".{_FOLDER_PREFIX}"))
        self._lock = os.open(hidden, os.O_RDONLY)
        with suppress(OSError):  # a disk without locks, where nobody removes it either
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        self.path = hidden.rename(hidden.with_name(hidden.name[1:]))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_left_folders() -> None:
    """Remove the temporary files of servers that were killed, which may take long."""
    for left in Path(gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        _remove_unless_locked(left)


def _remove_unless_locked(folder: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _ModelJob:
    """The job of a worker process: to load a model, and then to answer."""

    directory: Path
    engine: EngineSettings

    def start(self) -> Callable[[_Task], Any]:
        console.configure_logging(quiet=True)
        log_in_json()
        logging.getLogger("nmt_cli.decoding").setLevel(logging.ERROR)
        model = WorkerModel(self.directory, self.engine)
        return lambda task: (model.digest, model.short_below) if task is None else model.answer(*task)


class WorkerModel:
    """The model of a directory; `digest` identifies the model that was loaded."""

    def __init__(self, directory: Path, engine: EngineSettings) -> None:
        """Load the model; UsageError if its engine lacks something that requests may ask for."""
        import torch

        from nmt_cli.decoding.engines import open_engine
        from nmt_cli.decoding.translator import LineTranslator

        torch.set_num_threads(engine.threads)
        self._engine = open_engine(
            [directory], engine=engine.name, device=engine.device, precision=engine.precision, overrides={}
        )
        self._translator = LineTranslator(self._engine)
        self._directory = directory
        self.short_below = self._engine.short_below
        self._open: LoadedModel | None = None
        # After loading: if this equals the digest that the server read before, no other model was loaded.
        self.digest = model_digest(directory)
        try:
            self._engine.check(self._translator.settings(samples=0, beam=2))
        except UsageError as problem:
            raise UsageError(problem.message, setting="engine", hint="take `engine: torch`") from None
        self._translator.translate(["."], samples=0)  # the first translation is slow
        collect_garbage_rarely()

    def answer(self, lines: Sequence[str], job: SentenceJob) -> list[dict[str, Any]]:
        """One answer for each line; no error names an option of nmt decode."""
        try:
            match job:
                case SearchJob():
                    return self._search(lines, job)
                case AttentionJob():
                    return [self._attend(line, job.target) for line in lines]
                case NextWordsJob():
                    return [self._find_next_words(line, job) for line in lines]
                case other:
                    assert_never(other)
        except DeviceError as problem:
            raise DeviceError(problem.message, hint="give a shorter sentence, or ask for a smaller beam") from None
        except UsageError as problem:
            raise UsageError(problem.message, hint="leave out how to search: the model's own settings do") from None

    def _search(self, lines: Sequence[str], job: SearchJob) -> list[dict[str, Any]]:
        # The server cut the batch: it is searched as a whole.
        longest = max(map(len, lines), default=0) * 4 + 8
        self._check_length("prefix", job.prefix, self._engine.target)
        translations = self._translator.translate(
            lines,
            samples=0,
            beam=job.beam,
            nbest=job.nbest,
            length_penalty=job.length_penalty,
            max_extra_tokens=job.max_extra_tokens,
            prefixes=[job.prefix] * len(lines) if job.prefix else None,
            alignments=job.alignments,
            batch_tokens=longest * len(lines) * job.beam + 1,
        )
        return [asdict(translation) for translation in translations]

    def _attend(self, source: str, target: str) -> dict[str, Any]:
        """The map as text: it is large, and the server only hands it on."""
        from nmt_cli.decoding.attention import AttentionMaps

        loaded, device = self._torch_model()
        self._check_length("text", source, loaded.source)
        self._check_length("translation", target, loaded.target)
        return {"map": json.dumps(AttentionMaps(loaded, device=device).cross_words(source, target).as_json())}

    def _find_next_words(self, source: str, job: NextWordsJob) -> dict[str, Any]:
        from nmt_cli.decoding.next_words import best_by_next_word, likely_next_pieces

        loaded, device = self._torch_model()
        begun = " ".join(job.prefix.split())
        self._check_length("text", source, loaded.source)
        self._check_length("prefix", begun, loaded.target)
        beginnings = likely_next_pieces(loaded, source, begun, count=job.num_words, device=device)
        prefixes = [f"{begun} {one}".strip() for one in beginnings]
        found = self._translator.translate([source] * len(prefixes), samples=0, beam=job.beam, prefixes=prefixes)
        best = best_by_next_word(found, begun)
        fields = ("text", "score", "log_prob")
        return {"words": [{"word": word} | {name: getattr(one, name) for name in fields} for word, one in best.items()]}

    def _check_length(self, name: str, text: str, tokenizer: Tokenizer) -> None:
        """Raise DataError, with the name of the request's field, if the text is too long for the model."""
        from nmt_cli.tokenization.tokenizer import as_in_training

        number, longest = len(tokenizer.encode([as_in_training(text)])[0]), self._engine.max_positions - 1
        if number > longest:
            message = f"the {name} has {number:,} pieces, and the model takes {longest:,}"
            raise DataError(message, where=name, hint="give a shorter one")

    def _torch_model(self) -> tuple[LoadedModel, torch.device]:
        """The torch model; with CTranslate2 it is a second copy, loaded at its first use."""
        import torch

        from nmt_cli.artifacts.model_directory import load_model
        from nmt_cli.decoding.torch_engine import TorchEngine

        if isinstance(self._engine, TorchEngine):
            return self._engine.loaded[0], torch.device(self._engine.device)
        if self._open is None:
            # Before, since reading all of another model takes long; after, since it may come meanwhile.
            self._check_place()
            found = load_model(self._directory, device=torch.device("cpu"), dtype=torch.float32)
            self._check_place()
            self._open = found
        return self._open, torch.device("cpu")

    def _check_place(self) -> None:
        """Raise ModelError unless the directory still holds the model that was loaded."""
        if not holds_model(self._directory, self.digest):
            hint = "whoever runs the server must have its models loaded again"
            raise ModelError("the model was replaced, and this one is gone", hint=hint)
