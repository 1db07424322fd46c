"""The keys that words of the demo grammar carry until a sentence is complete: words with a common key are aligned.

A key is a private character behind a word. A word may have several keys, such as `im`, which is `in` and `dem`.
"""

import re
from collections.abc import Sequence
from itertools import cycle

_KEY = re.compile("[\ue000-\uf8ff]")
_FREE_KEYS = cycle(map(chr, range(0xE000, 0xF900)))  # far more than a sentence has
# The German word of each English word where the order or the number of words differs.
_GERMAN_WORDS = {"two days ago": (1, 2, 0), "in the evening": (0, 0, 1)}


def new_key() -> str:
    """A key that no word of the same sentence has."""
    return next(_FREE_KEYS)


def with_key(text: str, keys: str) -> str:
    """The text with these keys behind each word."""
    return re.sub(r"\S+", lambda word: word[0] + keys, text)


def keys_of(text: str) -> str:
    """The keys in a text."""
    return "".join(_KEY.findall(text))


def without_keys(text: str) -> str:
    """The text alone."""
    return _KEY.sub("", text)


def with_keys(english: Sequence[str], german: Sequence[str]) -> tuple[list[str], list[str]]:
    """The forms of a phrase, with keys: word i has that of word i, and the last German word those of all that follow.

    So `the old kitchen chair` is aligned to `der alte Küchenstuhl`. Forms that have keys already keep them.
    """
    if keys_of(english[0] + german[0]):
        return list(english), list(german)
    keys = [new_key() for _ in german[0].split()] or [""]
    order = _GERMAN_WORDS.get(english[0])

    def keyed(form: str, of_word: Sequence[int] | None) -> str:
        words = form.split(" ")
        return " ".join(
            with_key(word, keys[of_word[index] if of_word else min(index, len(keys) - 1)])
            for index, word in enumerate(words)
        )

    return [keyed(form, order) for form in english], [keyed(form, None) for form in german]


def pharaoh(english: str, german: str) -> str:
    """The pairs of words with a common key, such as 0-0 1-2."""
    keys = [set(keys_of(word)) for word in german.split()]
    return " ".join(
        f"{source}-{target}"
        for source, word in enumerate(english.split())
        for target, of_target in enumerate(keys)
        if of_target & set(keys_of(word))
    )
