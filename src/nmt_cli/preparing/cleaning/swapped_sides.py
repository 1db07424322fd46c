"""Swapped sides: training or validation text whose source is in the target's language.

A model trains on such text without complaint, and translates in the wrong direction. Two signs tell: the trigrams of
the two texts differ, or py3langid identifies the other language. If in doubt, the check is silent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec

from nmt_cli.languages import language_identifier, short_code
from nmt_cli.preparing.sources.base import CorpusLanguages, Pairs

_MIN_PAIRS = 50  # smaller texts get no warning
_MAX_PAIRS = 1_000
# The comparison of two texts by the trigrams of their characters.
_ORDER = 3
_MAX_CHARACTERS = 200  # of a side
_MIN_SWAPPED = 0.75
_MIN_TOLD_APART = 0.9
# The identification of languages, of several short sentences together.
_PAIRS_IDENTIFIED = 250
_PAIRS_AT_ONCE = 5


def warning_of_swapped_sides(train: Pairs, valid: Pairs, languages: CorpusLanguages) -> str | None:
    """The warning if the sides of the training or of the validation text seem swapped, or None.

    The two texts are compared by the character trigrams of their sides. If py3langid is installed, each text is also
    compared with its languages. Texts whose sides are hard to tell apart pass, and small samples pass as well.
    """
    if min(len(train), len(valid)) < _MIN_PAIRS:
        return None
    share_swapped = _share_swapped_in_training(train[:_MAX_PAIRS], valid[:_MAX_PAIRS])
    is_swapped = {
        name: _is_identified_as_swapped(pairs, languages)
        for name, pairs in (("training", train), ("validation", valid))
    }
    pair = f"{languages.source}-{languages.target}"
    fix = "give its two files, columns or keys in the other order"
    if all(is_swapped.values()):
        return (
            f"the languages seem to be given in the wrong order: they are {pair}, and the source side of the training "
            f"and validation text is identified as {languages.target}, the target side as {languages.source}"
        )
    for name, other in (("training", "validation"), ("validation", "training")):
        if is_swapped[name]:
            return (
                f"the two sides of the {name} text seem to be swapped: its source side is identified as "
                f"{languages.target} and its target side as {languages.source}, unlike the {other} text; {fix}"
            )
    if share_swapped is not None and share_swapped >= _MIN_SWAPPED:
        return (
            f"the two sides of the training text seem to be swapped, or the two of the validation text: in "
            f"{share_swapped:.0%} of {min(len(train), _MAX_PAIRS):,} training pairs the source is more like the "
            f"validation text's target, and the target like its source; if it is the training text, {fix}"
        )
    return None


def _share_swapped_in_training(train: Pairs, valid: Pairs) -> float | None:
    """The share of training pairs that look more like swapped validation pairs, or None if the sides look alike.

    The sides look alike if trigrams of one half of the validation pairs do not tell the sides of the other half apart.
    """
    halves = [valid[0::2], valid[1::2]]
    mistaken = [_share_swapped(halves[own], like_source=_likeness(halves[1 - own])) for own in (0, 1)]
    if max(mistaken) > 1 - _MIN_TOLD_APART:
        return None
    return _share_swapped(train, like_source=_likeness(valid))


def _share_swapped(pairs: Pairs, *, like_source: Callable[[str], float]) -> float:
    return sum(like_source(src) < like_source(tgt) for src, tgt in pairs) / len(pairs)


def _likeness(pairs: Pairs) -> Callable[[str], float]:
    """A measure of how much more a text is like the source side of these pairs than like their target side.

    It is the mean of the log-odds of the text's trigrams, with one added to each count.
    """
    src_counts, tgt_counts = (Counter(gram for pair in pairs for gram in _trigrams(pair[side])) for side in (0, 1))
    seen = src_counts.keys() | tgt_counts.keys()
    src_total, tgt_total = (counts.total() + len(seen) + 1 for counts in (src_counts, tgt_counts))
    odds_of_unseen = math.log(tgt_total / src_total)
    odds = {gram: math.log((src_counts[gram] + 1) / (tgt_counts[gram] + 1)) + odds_of_unseen for gram in seen}

    def like_source(text: str) -> float:
        grams = _trigrams(text)
        return sum(odds.get(gram, odds_of_unseen) for gram in grams) / len(grams)

    return like_source


def _trigrams(text: str) -> list[str]:
    padded = f" {text[:_MAX_CHARACTERS].lower()}  "
    return [padded[start : start + _ORDER] for start in range(len(padded) - _ORDER + 1)]


def _is_identified_as_swapped(pairs: Pairs, languages: CorpusLanguages) -> bool:
    """True if most of the text is identified as the other side's language; False if nothing identifies it."""
    if find_spec("py3langid") is None:
        return False
    identifier = language_identifier(where=None)
    codes = tuple(map(short_code, languages.codes))
    if codes[0] == codes[1] or not {*codes} <= {*identifier.labels}:
        return False
    pairs = pairs[:_PAIRS_IDENTIFIED]
    groups = [pairs[start : start + _PAIRS_AT_ONCE] for start in range(0, len(pairs), _PAIRS_AT_ONCE)]
    is_swapped = [
        tuple(identifier.classify(" ".join(pair[side] for pair in group))[0] for side in (1, 0)) == codes
        for group in groups
    ]
    return sum(is_swapped) > len(groups) / 2
