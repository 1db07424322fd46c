"""Errors that a user can cause and mend; each family has its own exit code."""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

# Exit codes of commands that end without an NmtError; 75 asks a scheduler to start the command again.
EXIT_INTERRUPTED = 130
EXIT_PREEMPTED = 75
EXIT_CLOSED_PIPE = 141
# A setting in a message, with or without a value: `beam` or `beam: 4`.
_SETTING = re.compile(r"`([a-z_]+)(?:: ([^`]+))?`")
_MIN_PREFIX_LETTERS = 3  # the first two letters of a word fit too many other words
_MIN_SIMILARITY = 0.75  # with fewer common letters, the words have different meanings


class NmtError(Exception):
    """A mistake that the user can mend: what happened, where, and what to type next.

    `hint` is the fix. `where` is a file, a line or a key. `setting` is the setting at fault, such as "beam", or
    "to: huggingface" if only this value is at fault.

    Messages and hints write a setting as `beam: 4`. The command line shows it as a flag, --beam 4, and `str` as an
    argument of Python, beam=4.

    `cli/` and the server report errors. Other code catches `NmtError` only to add to it, or to pass it to another
    process.
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
        lines = [self.message, f"at: {self.where}" if self.where else "", f"fix: {self.hint}"]
        return spell_settings("\n".join(filter(None, lines)), _as_argument)

    def __reduce__(self) -> tuple[object, ...]:
        return Exception.__new__, (type(self), self.message), vars(self)


def import_package(package: str, *, extra: str) -> Any:
    """The module of a package that an extra has; UsageError if it is not installed, or cannot be imported."""
    try:
        return import_module(package)
    except ImportError as error:
        message, hint = f"the package {package} cannot be imported: {first_line(error)}", f"pip install -U {package}"
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            message = f"the package {package} is not installed"
            hint = f'pip install "nmt-cli[{extra}]", or pip install {package}'
        raise UsageError(message, where=package, hint=hint) from None


def spell_settings(text: str, spell: Callable[[str, str | None], str]) -> str:
    """The text with each setting in backticks spelt from its name and, in `to: huggingface`, its value."""
    return _SETTING.sub(lambda setting: spell(setting[1], setting[2]), text)


def _as_argument(name: str, value: str | None) -> str:
    """An argument of Python: to="huggingface", or from_="en"."""
    name += "_" * keyword.iskeyword(name)
    if value is None:
        return name
    is_number = re.fullmatch(r"-?[0-9.]+(e-?[0-9]+)?", value) is not None
    return f"{name}={value}" if is_number else f'{name}="{value}"'


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


class OutOfMemory(DeviceError):
    """The memory of a device does not hold a micro-batch of a training."""


class TrainingError(NmtError):
    """Training diverged, stalled, or lost a rank."""

    exit_code = 7


class ScoreError(NmtError):
    """A score below the bound of `--fail-under`."""

    exit_code = 8


def nearest_word(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant: a similar word, or the only word that begins with `word`; else None.

    Case, leading dashes, and the difference between - and _ do not count.
    """
    by_spelling = {_normalize(known_word): known_word for known_word in known}
    spelling = _normalize(word)
    if similar := difflib.get_close_matches(spelling, by_spelling, n=1, cutoff=_MIN_SIMILARITY):
        return by_spelling[similar[0]]
    longer = [known_spelling for known_spelling in by_spelling if known_spelling.startswith(spelling)]
    return by_spelling[longer[0]] if len(longer) == 1 and len(spelling) >= _MIN_PREFIX_LETTERS else None


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return str(error).strip().partition("\n")[0]


def _normalize(word: str) -> str:
    return word.lower().lstrip("-").replace("_", "-")
