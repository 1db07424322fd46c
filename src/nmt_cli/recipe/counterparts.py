"""The answer to a key of another toolkit: the settings of nmt that stand for the key, with its value.

A counterpart has a template for each setting. The value of the other toolkit's key completes the template:

    template                            value          setting
    training.updates={VALUE}            100            training.updates=100
    training.optimizer.beta1={FIRST}    (0.9, 0.98)    training.optimizer.beta1=0.9
    training.optimizer.beta2={SECOND}   (0.9, 0.98)    training.optimizer.beta2=0.98
    model.norm=pre|post                 true           model.norm=pre
    model.norm=pre|post                 false          model.norm=post
    validation.metric=loss|bleu         bleu           validation.metric=bleu
    training.batch_tokens=N             any value      training.batch_tokens=N

An N or a RATE stays, because the user has to choose the number.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

NEXT_LINE = "\n       "  # of a hint: below the line that can be pasted

_BATCH_TOKENS_KEYS = ("max_tokens", "mini_batch_words")
_ACCUMULATION_KEYS = ("update_freq", "accum_count", "optimizer_delay")
_NUM_GPUS_KEYS = ("distributed_world_size", "world_size", "num_gpus", "nproc_per_node")
BATCH_KEYS = (*_BATCH_TOKENS_KEYS, "batch_size", "batch_type", *_ACCUMULATION_KEYS)
"""The keys that give the tokens of an update together: see `batch_tokens_of`."""
Conversion = Literal[
    "same value",
    "clipping",  # the same value, unless the other toolkit clips another norm
    "sampling",  # by the rules for sampled pieces
    "by hand",  # toolkits differ in the meaning, so the user has to choose a value
    "data",  # not converted: nmt prepare takes it
    "left out",  # not converted: nmt needs no such key
    "none",  # not converted: nmt has nothing like it
]
"""How a key is converted with a whole configuration."""
_NUMBER = re.compile(r"\d*\.?\d+(?:e-?\d+)?")
_WARMUP_EXAMPLE = re.compile(r"(?<=warmup_updates: )\d+")


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The settings of nmt that stand for some keys of other toolkits, as templates, and a note.

    `format_value` writes the value that replaces {VALUE}. `note_for_zero` is the whole answer to a value of zero.
    """

    keys: tuple[str, ...]
    templates: tuple[str, ...]
    note: str
    note_for_zero: str | None
    format_value: Callable[[Any], str]
    conversion: Conversion

    def answer(self, value: Any, *, warmup_updates: int | None) -> Answer:
        """The answer to a key with this value; `warmup_updates` replaces the example in a schedule, if given."""
        if self.note_for_zero is not None and is_zero(value):
            return Answer([], self.note_for_zero)
        settings = self.settings_for(value)
        if warmup_updates is not None:
            settings = [_WARMUP_EXAMPLE.sub(str(warmup_updates), setting) for setting in settings]
        return Answer(settings, self.note.replace("{VALUE}", as_typed(value)))

    def settings_for(self, value: Any) -> list[str]:
        """The settings with the value; N stands for a value that cannot be typed."""
        numbers = _NUMBER.findall(str(value).lower())
        first, second = numbers[:2] if len(numbers) > 1 else ("N", "N")
        texts = {"{VALUE}": self.format_value(value), "{FIRST}": first, "{SECOND}": second}
        settings = []
        for template in self.templates:
            setting = _choose_word(template, value)
            for placeholder, text in texts.items():
                setting = setting.replace(placeholder, text)
            settings.append(setting)
        return settings


def _choose_word(template: str, value: Any) -> str:
    """The template with one word of `for_true|for_false`, if it ends so: by the value, or the value itself."""
    choice = re.search(r"(\w+)\|(\w+)$", template)
    if choice is None:
        return template
    word, (for_true, for_false) = str(value).lower(), choice.groups()
    if not (isinstance(value, str) and word in choice.groups()):
        word = for_false if word in ("false", "no", "off", "0") else for_true
    return template[: choice.start()] + word


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a key: settings, `key=value`, all of one section, and a note. Either may be empty."""

    settings: Sequence[str]
    note: str

    def as_flags(self) -> str:
        """The settings, each as a --set, and the note on the next line."""
        return self._lines(" ".join(map(as_flag, self.settings)), self.note)

    def as_yaml(self, section: str) -> str:
        """The settings as YAML for `section`, and on the next lines the section that they belong to, and the note."""
        lines, notes = [], []
        for setting in self.settings:
            path, _, value = setting.partition("=")
            parent, _, key = path.rpartition(".")
            if path == section:  # the setting is the whole section
                lines.append(value.strip("{}"))
                continue
            lines.append(f"{key}: {value}")
            if parent != section:
                notes.append(f"its place is below {parent}:" if parent else "its place is the top of the file")
        return self._lines(" and ".join(lines), *dict.fromkeys(notes), self.note)

    def _lines(self, settings: str, *notes: str) -> str:
        return NEXT_LINE.join(filter(None, (f"here it is {settings}" if settings else "", *notes)))


def counterpart_of(key: str, known: Sequence[Counterpart]) -> Counterpart | None:
    """The counterpart of the key of another toolkit; None if the key is unknown."""
    return next((counterpart for counterpart in known if plain_key(key) in counterpart.keys), None)


@dataclass(frozen=True, slots=True)
class BatchTokens:
    """The tokens of a whole update, and the factors of this product in words; the number of GPUs may not be known."""

    tokens: int
    factors: str
    are_gpus_known: bool

    @property
    def answer(self) -> Answer:
        """The setting, with the factors as a note."""
        note = f"tokens of a whole update: {self.factors}"
        if not self.are_gpus_known:
            note += "; multiply by the number of GPUs that it was for"
        return Answer([f"training.batch_tokens={self.tokens}"], note)


def batch_tokens_of(values: Mapping[str, Any]) -> BatchTokens | None:
    """The tokens of a batch, times the batches of an update, times the GPUs; None if no key gives the first factor."""
    given = {plain_key(key): value for key, value in values.items()}
    size_keys = [*_BATCH_TOKENS_KEYS, "batch_size"] if given.get("batch_type") == "tokens" else _BATCH_TOKENS_KEYS
    if not given.keys() & set(size_keys):
        return None
    product, factors = 1, []
    for keys in (size_keys, _ACCUMULATION_KEYS, _NUM_GPUS_KEYS):
        for key in [key for key in keys if key in given][:1]:  # the others are names of the same factor
            number = re.fullmatch(r"\[?(\d+)\]?", str(given[key]))
            if number is None or int(number[1]) == 0:
                return None
            product *= int(number[1])
            factors.append(f"{key} {number[1]}")
    return BatchTokens(product, " * ".join(factors), bool(given.keys() & set(_NUM_GPUS_KEYS)))


def as_flag(setting: str) -> str:
    """`--set key=value`, quoted for a shell."""
    key, _, value = setting.partition("=")
    return f"--set {key}={shlex.quote(value)}"


def is_zero(value: Any) -> bool:
    """True if a value, as a number or as text, is zero."""
    return re.fullmatch(r"0+\.?0*|\.0+", str(value)) is not None


def as_typed(value: Any) -> str:
    """A number, a plain word or a path as it can be typed; N for any other value."""
    text = str(value)
    is_plain = value is not None and not isinstance(value, bool) and re.fullmatch(r"[\w./+-]+", text)
    return text if is_plain else "N"


def plain_key(key: object) -> str:
    """The key in small letters, with underscores."""
    return str(key).lower().replace("-", "_")
