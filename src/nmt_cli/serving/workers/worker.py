"""A worker process: one model, batches of sentences in on stdin, translations out on stdout.

torch is imported here only. If this process hangs or is killed, the server keeps its connections.
`messages.encode_message` frames the messages. The process ends with its stdin.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, assert_never

from nmt_cli import console
from nmt_cli.artifacts.manifest import is_model_there, model_digest
from nmt_cli.devices import collect_garbage_rarely
from nmt_cli.errors import DataError, DeviceError, ModelError, NmtError, UsageError
from nmt_cli.serving.settings import EngineSettings
from nmt_cli.serving.workers.messages import AttentionJob, Job, NextWordsJob, SearchJob, encode_message, job_from_fields

if TYPE_CHECKING:
    import torch

    from nmt_cli.artifacts.model_directory import LoadedModel
    from nmt_cli.decoding.translation import Translation
    from nmt_cli.tokenization.tokenizer import Tokenizer


def main() -> None:
    """Load the model that the first message names, then answer one message after another."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The output of a library must not come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    console.configure_logging(quiet=True)
    logging.getLogger("nmt_cli.decoding").setLevel(logging.ERROR)
    first = _receive(sys.stdin.buffer)
    if first is None:
        return
    try:
        model = WorkerModel(Path(first["model"]), EngineSettings(**first["engine"]))
    except NmtError as problem:
        _send(answers, {"error": problem_fields(problem)})
        return
    _send(answers, {"digest": model.digest, "narrow": model.narrow})
    while (message := _receive(sys.stdin.buffer)) is not None:
        try:
            answer: dict[str, Any] = {"answers": model.answer(message["lines"], job_from_fields(message["job"]))}
        except NmtError as problem:
            answer = {"error": problem_fields(problem)}
        _send(answers, answer)


class WorkerModel:
    """The model of a directory; `digest` identifies the model that was loaded."""

    def __init__(self, directory: Path, engine: EngineSettings) -> None:
        """Load the model; UsageError if its engine lacks something that requests may ask for."""
        import torch

        from nmt_cli.decoding.engines import open_engine
        from nmt_cli.decoding.translator import Translator

        torch.set_num_threads(engine.threads)
        self._engine = open_engine(
            [directory], engine=engine.name, device=engine.device, precision=engine.precision, overrides={}
        )
        self._translator = Translator(self._engine)
        self._directory = directory
        self.narrow = self._engine.narrow
        self._open: LoadedModel | None = None
        # After loading: if this equals the digest that the server read before, no other model was loaded.
        self.digest = model_digest(directory)
        try:
            self._engine.check(self._translator.settings(samples=0, beam=2))
        except UsageError as problem:
            raise UsageError(problem.message, setting="engine", hint="take `engine: torch`") from None
        self._translator.translate(["."], samples=0)  # the first translation is slow
        collect_garbage_rarely()

    def answer(self, lines: Sequence[str], job: Job) -> list[dict[str, Any]]:
        """One answer for each line, as JSON takes it; no error names an option of nmt decode."""
        try:
            match job:
                case SearchJob():
                    return self._search(lines, job)
                case AttentionJob():
                    return [self._attend(line, job.target) for line in lines]
                case NextWordsJob():
                    return [self._vary(line, job) for line in lines]
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

    def _check_length(self, name: str, text: str, tokenizer: Tokenizer) -> None:
        """Raise DataError, with the name of the request's field, if the text is too long for the model."""
        number, longest = len(tokenizer.encode([text])[0]), self._engine.max_positions - 1
        if number > longest:
            message = f"the {name} has {number:,} pieces, and the model takes {longest:,}"
            raise DataError(message, where=name, hint="give a shorter one")

    def _attend(self, source: str, target: str) -> dict[str, Any]:
        """The map as text: it is large, and the server only hands it on."""
        from nmt_cli.decoding.attention_maps import AttentionMaps

        loaded, device = self._opened()
        self._check_length("text", source, loaded.source)
        self._check_length("translation", target, loaded.target)
        return {"map": json.dumps(AttentionMaps(loaded, device=device).cross_words(source, target).as_json())}

    def _vary(self, source: str, job: NextWordsJob) -> dict[str, Any]:
        from nmt_cli.decoding.next_words import best_by_next_word, likely_next_pieces

        loaded, device = self._opened()
        begun = " ".join(job.prefix.split())
        self._check_length("text", source, loaded.source)
        self._check_length("prefix", begun, loaded.target)
        beginnings = likely_next_pieces(loaded, source, begun, number=job.number, device=device)
        prefixes = [f"{begun} {one}".strip() for one in beginnings]
        found = self._translator.translate([source] * len(prefixes), samples=0, beam=job.beam, prefixes=prefixes)
        return {"words": [{"word": word, **_plain(one)} for word, one in best_by_next_word(found, begun).items()]}

    def _opened(self) -> tuple[LoadedModel, torch.device]:
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
        if not is_model_there(self._directory, self.digest):
            hint = "whoever runs the server must have its models loaded again"
            raise ModelError("the model was replaced, and this one is gone", hint=hint)


def _plain(translation: Translation) -> dict[str, Any]:
    return {"text": translation.text, "score": translation.score, "log_prob": translation.log_prob}


def problem_fields(problem: NmtError) -> dict[str, Any]:
    """An error as JSON takes it."""
    kind = type(problem).__name__
    fields = {"message": problem.message, "hint": problem.hint, "where": problem.where, "setting": problem.setting}
    return {"kind": kind, **fields}


def _receive(stream: BinaryIO) -> Mapping[str, Any] | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "big")
    content = stream.read(size)
    if len(content) < size:
        return None
    message: dict[str, Any] = json.loads(content)
    return message


def _send(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    stream.write(encode_message(message))
    stream.flush()


if __name__ == "__main__":
    main()
