"""COMET through its own program, comet-score, which may live in an environment of its own.

unbabel-comet wants older versions of numpy and huggingface_hub than the rest of this package is tested with, so it is
run and not imported. Rei et al. 2020, arXiv:2009.09025.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacrebleu.metrics.base import Metric, Score, Signature

from nmt_cli.errors import ModelError, UsageError

logger = logging.getLogger(__name__)

_PROGRAM = "comet-score"
_PIP_ARGUMENTS = "install unbabel-comet 'setuptools<81'"
_CHECKPOINT = ".ckpt"


@dataclass(frozen=True, slots=True)
class Comet:
    """An installation of COMET and a model of it: a name on the hub, or a checkpoint file.

    `gpu` is the index of the GPU to use, or None for the CPU.
    """

    program: Path
    model: str
    gpu: int | None

    @classmethod
    def find(cls, model: str, *, gpu: int | None) -> Comet:
        """The installation whose comet-score is on the PATH or beside this Python.

        UsageError if there is none, or if `model` is a checkpoint file that is not there.
        """
        beside = Path(sys.executable).with_name(_PROGRAM)
        program = shutil.which(_PROGRAM) or (beside if os.access(beside, os.X_OK) else None)
        if program is None:
            hint = f"python3 -m venv ~/comet && ~/comet/bin/pip {_PIP_ARGUMENTS}, then PATH=$PATH:~/comet/bin"
            message = f"`metrics: comet` needs COMET, and there is no {_PROGRAM} here"
            raise UsageError(message, setting="metrics: comet", hint=hint)
        if model.endswith(_CHECKPOINT) and not Path(model).is_file():
            hint = "give the file checkpoints/model.ckpt of a model, with its hparams.yaml one folder up"
            raise UsageError(f"there is no COMET checkpoint {model}", setting="comet_model", hint=hint)
        return cls(Path(program), model, gpu)

    def segment_scores(
        self, systems: Sequence[Sequence[str]], *, sources: Sequence[str], reference: Sequence[str]
    ) -> list[list[float]]:
        """The score of each segment of each system; ModelError, with the program's last line, if it fails."""
        logger.info("COMET: %s with %s", self.program, self.model)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            files = [f"{number}.hyp" for number in range(len(systems))]
            for file, lines in zip(["src", "ref", *files], [sources, reference, *systems], strict=True):
                # COMET would end a line at a carriage return.
                text = "".join(line.replace("\r", " ") + "\n" for line in lines)
                (folder / file).write_text(text, encoding="utf-8")
            self._run(["-s", "src", "-r", "ref", "--to_json", "scores.json", "-t", *files], folder)
            return _read_scores(folder / "scores.json", files=files, num_segments=len(sources))

    def version(self) -> str | None:
        """The version of unbabel-comet in the Python that runs the program; None if that Python cannot tell."""
        first_line = self.program.read_bytes().partition(b"\n")[0]
        if not first_line.startswith(b"#!"):
            return None
        script = "import importlib.metadata as m; print(m.version('unbabel-comet'))"
        command = [*shlex.split(first_line[2:].decode(errors="replace")), "-c", script]
        try:
            process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            return None
        return process.stdout.strip() or None

    def _run(self, arguments: Sequence[str], folder: Path) -> None:
        model = str(Path(self.model).resolve()) if self.model.endswith(_CHECKPOINT) else self.model
        num_gpus = "0" if self.gpu is None else "1"  # `_environment` chooses the GPU
        options = ["--only_system", "--quiet", "--model", model, "--gpus", num_gpus]
        command = [str(self.program.absolute()), *arguments, *options]
        process = subprocess.run(
            command, cwd=folder, env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if process.returncode != 0:
            raise self._program_error(process.stderr.decode(errors="replace"))

    def _environment(self) -> dict[str, str]:
        """This process's environment; if the GPU is not the first, only that GPU is visible."""
        if not self.gpu:
            return dict(os.environ)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return os.environ | {"CUDA_VISIBLE_DEVICES": visible.split(",")[self.gpu] if visible else str(self.gpu)}

    def _program_error(self, stderr: str) -> ModelError:
        """The error for a failed run, by the last line that the program wrote: the words are of unbabel-comet 2.2.7."""
        last_line = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "it said nothing")
        where = str(self.program)
        if "not supported by COMET" in last_line:
            # COMET says so of every model that it cannot fetch: also of a model that exists, if there is no network.
            hint = "fetch it where there is a network, or give a checkpoint: `comet_model: .../checkpoints/model.ckpt`"
            return ModelError(f"COMET has no model {self.model!r} here and cannot fetch it", where=where, hint=hint)
        hint = f"try it alone: {_PROGRAM} -s SRC -t HYP -r REF --model {shlex.quote(self.model)}"
        return ModelError(f"{_PROGRAM} failed: {last_line}", where=where, hint=hint)


def _read_scores(file: Path, *, files: Sequence[str], num_segments: int) -> list[list[float]]:
    """The scores by system and segment, read from the file of `--to_json`."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        scores = [[float(segment["COMET"]) for segment in content[name]] for name in files]
    except (OSError, ValueError, KeyError, TypeError):
        scores = []
    if [len(segments) for segments in scores] != [num_segments] * len(files):
        hint = "take unbabel-comet 2.2 or a later version of it"
        raise ModelError(f"what {_PROGRAM} wrote is not a score for each segment", where=_PROGRAM, hint=hint)
    return scores


class _CometSignature(Signature):
    """The model and the version of COMET, in sacreBLEU's form."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        self.update("model", args["model"])
        self.update("version", args["version"])


class SegmentMean(Metric):
    """The mean of segments' scores, in the form of sacreBLEU's metrics, so that its resampling serves COMET as well.

    Its hypotheses are the scores as text, such as "0.8514".
    """

    _SIGNATURE_TYPE = _CometSignature

    def __init__(self, *, model: str, version: str | None, num_segments: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated
        self.model = model
        self.version = "comet" if version is None else f"comet-{version}"
        # Of the references, sacreBLEU needs these two attributes alone.
        self.num_refs = 1
        self._ref_cache = [{}] * num_segments

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[float]:
        return [float(hypothesis), 1.0]

    def _aggregate_and_compute(self, stats: list[list[Any]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: list[Any]) -> Score:
        return Score("COMET", float(stats[0]) / float(stats[1]))
