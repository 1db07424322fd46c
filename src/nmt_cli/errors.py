"""Errors that a user can cause and mend; each family has its own exit code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_FEWEST_LETTERS = 3  # of the beginning of a word, so that it says which


class NmtError(Exception):
    """A mistake that the user can mend: what happened, where, and what to type next.

    `hint` is the fix. `where` is a file, a line or a key. `setting` is the setting at fault by its name in Python, with
    its value if that matters: "beam" or "to: huggingface". Messages and hints write a setting like that in backticks,
    and the command line shows it as a flag, `str` as an argument of Python. `cli/` and the server report
    errors. Other code catches `NmtError` only to add to it, or to pass it to another process.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str, where: str | None = None, setting: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where
        self.setting = setting

    def __str__(self) -> str:
        """The message, the place and the fix, with settings as Python spells them: beam=4."""
        lines = [self.message, self.where and f"at: {self.where}", f"fix: {self.hint}"]
        return _in_python("\n".join(line for line in lines if line))

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (type(self), self.message), vars(self)


def _in_python(text: str) -> str:
    """A text in which `name` and `name: value` are replaced by name and name=value."""

    def typed(setting: re.Match[str]) -> str:
        name, value = setting.groups()
        if value is None:
            return str(name)
        is_number = re.fullmatch(r"-?[0-9.]+(e-?[0-9]+)?", value) is not None
        return f"{name}={value}" if is_number else f'{name}="{value}"'

    return re.sub(r"`([a-z_]+)(?:: ([^`]+))?`", typed, text)


def _restored(kind: type[NmtError], message: str) -> NmtError:
    """An error that another process raised; its other fields follow."""
    return kind.__new__(kind, message)


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
    """Training diverged, stalled, or lost a rank."""

    exit_code = 7


class ScoreError(NmtError):
    """A score below the bound of `--fail-under`."""

    exit_code = 8


def nearest_word(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` is a slip of the keyboard from, or the only one that it begins; None if none is near.

    Three quarters of the letters agree, in order: a word that shares less has another meaning.
    """
    spelt = {one.lower().lstrip("-").replace("_", "-"): one for one in known}
    wanted = word.lower().lstrip("-").replace("_", "-")
    near = difflib.get_close_matches(wanted, spelt, n=1, cutoff=0.75)
    begun = [one for one in spelt if len(wanted) >= _FEWEST_LETTERS and one.startswith(wanted)]
    return spelt[near[0]] if near else spelt[begun[0]] if len(begun) == 1 else None


EXIT_INTERRUPTED = 130
EXIT_PREEMPTED = 75
EXIT_CLOSED_PIPE = 141
