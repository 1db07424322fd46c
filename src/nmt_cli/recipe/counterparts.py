"""The answer to a key of another toolkit: the settings of nmt that stand for the key, with its value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

NEXT_LINE = "\n       "  # of a hint: below the line that can be pasted

_BATCH_TOKENS_KEYS = ("max_tokens", "mini_batch_words")
_ACCUMULATION_KEYS = ("update_freq", "accum_count", "optimizer_delay")
_NUM_GPUS_KEYS = ("distributed_world_size", "world_size", "num_gpus", "nproc_per_node")
BATCH_KEYS = (*_BATCH_TOKENS_KEYS, "batch_size", "batch_type", *_ACCUMULATION_KEYS)
"""The keys that give the tokens of an update together: see `batch_tokens_of`."""
Conversion = Literal["same value", "clipping", "sampling", "by hand", "data", "left out", "none"]
"""How a key of a whole configuration is converted: to the same value, or by the rules for gradient clipping and for
sampled pieces; by hand if toolkits differ in its meaning. A key is not converted if it belongs to the data, if it can
be left out, or if nmt has none."""


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The settings of nmt that stand for some keys of other toolkits, and a note.

    Examples of a setting, of a value of the key, and of the setting with the value:

        training.updates={VALUE}            100              training.updates=100
        model.norm=pre|post                 True or False    model.norm=pre or model.norm=post
        training.optimizer.beta1={FIRST}    "(0.9, 0.98)"    training.optimizer.beta1=0.9

    `format_value` writes the value that replaces {VALUE}, and {SECOND} is the second number. An N without braces stays.
    `note_for_zero` is the whole answer to a value of zero.
    """

    keys: tuple[str, ...]
    settings: tuple[str, ...]
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
            settings = [re.sub(r"(?<=warmup_updates: )\d+", str(warmup_updates), setting) for setting in settings]
        return Answer(settings, self.note.replace("{VALUE}", as_typed(value)))

    def settings_for(self, value: Any) -> list[str]:
        """The settings with the value; N stands for a value that cannot be typed."""
        return [self._with_value(setting, value) for setting in self.settings]

    def _with_value(self, setting: str, value: Any) -> str:
        word = str(value).lower()
        if choice := re.search(r"=(\w+)\|(\w+)$", setting):
            chosen = choice[2] if word == "false" else choice[1]
            if isinstance(value, str) and word in choice.groups():
                chosen = word
            return f"{setting[: choice.start()]}={chosen}"
        numbers = re.findall(r"\d*\.?\d+(?:e-?\d+)?", word)
        first, second = numbers[:2] if len(numbers) > 1 else ("N", "N")
        return (
            setting.replace("{VALUE}", self.format_value(value)).replace("{FIRST}", first).replace("{SECOND}", second)
        )


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
        lines, places = [], []
        for setting in self.settings:
            key, _, value = setting.partition("=")
            above, _, last = key.rpartition(".")
            lines.append(value.strip("{}") if key == section else f"{last}: {value}")  # the section itself, or a key
            if key != section and above != section:
                places.append(f"its place is below {above}:" if above else "its place is the top of the file")
        return self._lines(" and ".join(lines), *dict.fromkeys(places), self.note)

    def _lines(self, settings: str, *notes: str) -> str:
        return NEXT_LINE.join(filter(None, (f"here it is {settings}" if settings else "", *notes)))


def counterpart_of(key: str, known: Sequence[Counterpart]) -> Counterpart | None:
    """The counterpart of the key of another toolkit; None if the key is unknown."""
    return next((counterpart for counterpart in known if plain_key(key) in counterpart.keys), None)


@dataclass(frozen=True, slots=True)
class BatchTokens:
    """The tokens of a whole update, the factors of this product in words, and whether the GPUs are among them."""

    tokens: int
    factors: str
    are_gpus_known: bool

    @property
    def answer(self) -> Answer:
        """The setting, with the factors as a note."""
        note = f"tokens of a whole update: {self.factors}"
        note += "" if self.are_gpus_known else "; multiply by the number of GPUs that it was for"
        return Answer([f"training.batch_tokens={self.tokens}"], note)


def batch_tokens_of(values: Mapping[str, Any]) -> BatchTokens | None:
    """The tokens of a batch, times the batches of an update, times the GPUs; None if no key gives the first factor."""
    given = {plain_key(key): value for key, value in values.items()}
    sizes = [*_BATCH_TOKENS_KEYS, "batch_size"] if given.get("batch_type") == "tokens" else _BATCH_TOKENS_KEYS
    product, factors = 1, []
    for keys in (sizes, _ACCUMULATION_KEYS, _NUM_GPUS_KEYS):
        for key in [key for key in given if key in keys]:
            number = re.fullmatch(r"\[?(\d+)\]?", str(given[key]))
            if number is None:
                return None
            product *= int(number[1])
            factors.append(f"{key} {number[1]}")
    if not given.keys() & set(sizes) or not product:
        return None
    return BatchTokens(product, " * ".join(factors), bool(given.keys() & set(_NUM_GPUS_KEYS)))


def as_flag(setting: str) -> str:
    """`--set key=value`, quoted for a shell."""
    key, _, value = setting.partition("=")
    return f"--set {key}='{value}'" if re.search(r"[^\w./+-]", value) else f"--set {setting}"


def is_zero(value: Any) -> bool:
    """True if a value, as a number or as text, is zero."""
    return re.fullmatch(r"0*\.?0*", str(value)) is not None and str(value) != ""


def as_typed(value: Any) -> str:
    """A number, a plain word or a path as it can be typed; N for any other value."""
    text = str(value)
    is_plain = value is not None and not isinstance(value, bool) and re.fullmatch(r"[\w./+-]+", text)
    return text if is_plain else "N"


def plain_key(key: object) -> str:
    """The key in small letters, with underscores."""
    return str(key).lower().replace("-", "_")
