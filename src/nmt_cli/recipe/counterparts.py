"""The settings of nmt that stand for the keys of other toolkits, with the values of these keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NEXT_LINE = "\n       "  # of a hint: what cannot be pasted stands below what can

_BATCH_TOKENS_KEYS = ("max_tokens", "mini_batch_words")
_ACCUMULATION_KEYS = ("update_freq", "accum_count", "optimizer_delay")
_NUM_GPUS_KEYS = ("distributed_world_size", "world_size", "num_gpus", "nproc_per_node")


@dataclass(frozen=True, slots=True)
class Counterpart:
    """Settings of ours in place of some keys of other toolkits, and a note. Without settings, the note says it all.

    Examples of `settings`, of a value, and of the settings with the value:

        ("training.updates={N}",)              100            training.updates=100, as `convert` writes the value
        ("model.norm=pre|post",)               True           model.norm=pre; for False, model.norm=post
        ("beta1={FIRST}", "beta2={SECOND}")    "(0.9, 0.98)"  beta1=0.9 and beta2=0.98

    For a value of zero, `note_for_zero` is the answer.
    """

    keys: tuple[str, ...]
    settings: tuple[str, ...]
    note: str
    note_for_zero: str | None
    convert: Callable[[Any], str]

    def answer(self, value: Any, *, warmup_updates: int | None) -> Answer:
        """The answer to one of the keys with its value; a schedule gets the `warmup_updates`, or keeps the default."""
        if self.note_for_zero is not None and is_zero(value):
            return Answer([], self.note_for_zero)
        settings = self.settings_for(value)
        if warmup_updates is not None:
            settings = [re.sub(r"(?<=warmup_updates: )\d+", str(warmup_updates), setting) for setting in settings]
        return Answer(settings, self.note.replace("{N}", as_typed(value)))

    def begins(self, *beginnings: str) -> bool:
        """True if the settings begin with one of these: a section, or a whole key."""
        return any(setting.startswith(beginnings) for setting in self.settings[:1])

    def settings_for(self, value: Any) -> list[str]:
        """The settings with the value."""
        word = str(value).lower()

        def one_of_two(found: re.Match[str]) -> str:
            if isinstance(value, str) and word in found.groups():
                return f"={word}"
            return f"={found[2] if word == 'false' else found[1]}"

        pair = re.findall(r"\d*\.?\d+(?:e-?\d+)?", word)
        first, second = pair[:2] if len(pair) > 1 else ("N", "N")
        amounts = {"{N}": self.convert(value), "{FIRST}": first, "{SECOND}": second}
        settings = [re.sub(r"=(\w+)\|(\w+)$", one_of_two, setting) for setting in self.settings]
        return [re.sub(r"\{[A-Z]+\}", lambda found: amounts[found[0]], setting) for setting in settings]


@dataclass(frozen=True, slots=True)
class Answer:
    """The counterpart of a key: settings here, `key=value`, all of one section, and a sentence. Either may be empty."""

    settings: Sequence[str]
    note: str

    def as_flags(self) -> str:
        """The settings, each behind --set, and the sentence on a line of its own."""
        return self._lines(" ".join(map(as_flag, self.settings)), self.note)

    def as_yaml(self, section: str) -> str:
        """The lines of YAML that belong into `section`, and what remains to be said on lines of their own."""
        keys, lines = [setting.partition("=")[0] for setting in self.settings], []
        for setting in self.settings:
            key, _, value = setting.partition("=")
            lines += [value.strip("{}")] if key == section else [f"{key.rpartition('.')[2]}: {value}"]
        above = {key.rpartition(".")[0] for key in keys if key != section} - {section}
        places = [f"its place is below {name}:" if name else "its place is the top of the file" for name in above]
        return self._lines(" and ".join(lines), *places, self.note)

    def _lines(self, settings: str, *notes: str) -> str:
        return NEXT_LINE.join(filter(None, (f"here it is {settings}" if settings else "", *notes)))


def counterpart_of(key: str, known: Sequence[Counterpart]) -> Counterpart | None:
    """The counterpart of the key of another toolkit; None if the key is unknown."""
    return next((counterpart for counterpart in known if plain_key(key) in counterpart.keys), None)


@dataclass(frozen=True, slots=True)
class BatchTokens:
    """The tokens of a whole update, the factors of this product in words, and whether the number of GPUs is one."""

    tokens: int
    factors: str
    are_gpus_known: bool

    @property
    def answer(self) -> Answer:
        """The setting, with its factors."""
        note = f"tokens of a whole update: {self.factors}"
        note += "" if self.are_gpus_known else "; multiply by the number of GPUs that it was for"
        return Answer([f"training.batch_tokens={self.tokens}"], note)


def batch_tokens_of(values: Mapping[str, Any]) -> BatchTokens | None:
    """The product of the tokens of a batch, of the batches of an update and of the GPUs; None if `values` lack it."""
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
