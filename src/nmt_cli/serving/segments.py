"""A text as the sentences to translate and the whitespace between them, which is kept as it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nmt_cli.decoding.sentences import split_sentences
from nmt_cli.decoding.splitting import split_line

_LINE_BREAK = re.compile(r"(\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])")
# Characters that mean nothing in a sentence; the model is given a space.
_CONTROL = {code: " " for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r"}


@dataclass(frozen=True, slots=True)
class Segmented:
    """The sentences of a text; `gaps` has the whitespace before the first, between each two, and after the last."""

    sentences: list[str]
    gaps: list[str]

    def join(self, translations: Sequence[str]) -> str:
        """The text with each sentence replaced by its translation."""
        parts = [self.gaps[0]]
        for translation, gap in zip(translations, self.gaps[1:], strict=True):
            parts += [translation, gap]
        return "".join(parts)


def segment(text: str, *, fits: Callable[[str], bool], by_sentence: bool) -> Segmented:
    """`text` cut at its line breaks, where `by_sentence` after each sentence, and further where a part does not fit."""
    sentences: list[str] = []
    gaps = [""]
    for part in _LINE_BREAK.split(text):
        line = part.translate(_CONTROL) if not part.isspace() else part
        if not line.strip():
            gaps[-1] += part
            continue
        for piece in _pieces(line, fits, by_sentence=by_sentence):
            sentence = piece.strip()
            before, _, after = piece.partition(sentence) if sentence else (piece, "", "")
            gaps[-1] += before
            if sentence:
                sentences.append(sentence)
                gaps.append(after)
    return Segmented(sentences, gaps)


def _pieces(line: str, fits: Callable[[str], bool], *, by_sentence: bool) -> list[str]:
    pieces = []
    for sentence in split_sentences(line) if by_sentence else [line]:
        is_short = fits(sentence.strip())
        pieces += [sentence] if is_short else split_line(sentence, fits=lambda text: fits(text.strip()))
    return pieces
