"""Errors that a user can cause and mend; each family has an exit code of its own."""

from __future__ import annotations


class NmtError(Exception):
    """A mistake that the user can mend: what happened, where, and what to type next.

    `hint` is the fix, `where` a file, a file:line, a flag or a key. Caught only in `cli/` and `serving/app`.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str, where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where


class UsageError(NmtError):
    """Wrong flags or arguments."""

    exit_code = 2


class RecipeError(NmtError):
    """A recipe, a corpus file or a `--set` that cannot be read or does not make sense."""

    exit_code = 3


class DataError(NmtError):
    """A corpus, prepared data or a text input that cannot be used."""

    exit_code = 4


class ModelError(NmtError):
    """A model directory or a checkpoint that cannot be read or written."""

    exit_code = 5


class DeviceError(NmtError):
    """No such device, or its memory is exhausted."""

    exit_code = 6


class TrainingError(NmtError):
    """Training diverged: losses or gradients that are not finite."""

    exit_code = 7


class ScoreError(NmtError):
    """A score below the bound of `--fail-under`."""

    exit_code = 8


EXIT_INTERRUPTED = 130
EXIT_PREEMPTED = 75
EXIT_CLOSED_PIPE = 141
