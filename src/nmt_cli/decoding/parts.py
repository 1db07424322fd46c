"""Long lines as parts that are translated one by one: sentences, and cut further where one is too long."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nmt_cli.decoding.sentences import split_sentences
from nmt_cli.decoding.splitting import split_line
from nmt_cli.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# The longest source sentence in training, where a model does not say what it was: nearly all of any corpus are shorter.
_USUAL_PIECES = 128


class LineParts:
    """Finds the parts of lines, and tells of lines that have several.

    `longest_trained` is the pieces, EOS not counted, of the longest source sentence in training; None where it is not
    known, as of imported models.
    """

    def __init__(self, tokenizer: Tokenizer, *, longest_trained: int | None) -> None:
        self._tokenizer = tokenizer
        self._usual = longest_trained or _USUAL_PIECES
        self._reason = "no line in training had" if longest_trained else "lines in training have seldom"
        self._has_told = False

    def find(self, text: str, row: Sequence[int], *, number: int, longest: int, has_prefix: bool) -> list[str]:
        """The parts of line `number`, in order; none where it is blank. `row` has its pieces.

        What is longer than the longest sentence in training is split after each sentence: of two in one part, a model
        that was trained on single ones leaves out much. It is not where it has a prefix, of which nobody knows where in
        the line it ends. A sentence of more than `longest` pieces is cut to parts as long as those in training.
        """
        usual = min(longest, self._usual)
        parts = [text] if text else []
        if len(row) > usual and not has_prefix:
            parts = split_sentences(text)
        if len(row) > longest:
            parts = [cut for part in parts for cut in self._cuts(part, longest=longest, usual=usual)]
        if len(row) > longest and len(parts) > 1:
            logger.warning(
                "line %d has %s pieces, and this model takes %s at once: it is translated in %d parts",
                number,
                f"{len(row):,}",
                f"{longest:,}",
                len(parts),
            )
        elif len(parts) > 1 and not self._has_told:
            logger.info(
                "line %d has %s pieces, and %s more than %s: it is split at sentence ends, as all such lines are",
                number,
                f"{len(row):,}",
                self._reason,
                f"{usual:,}",
            )
            self._has_told = True
        return parts

    def _cuts(self, text: str, *, longest: int, usual: int) -> list[str]:
        if self._size(text) <= longest:
            return [text]
        return [part for part in split_line(text, fits=lambda part: self._size(part) <= usual) if part.strip()]

    def _size(self, text: str) -> int:
        return len(self._tokenizer.encode([text.strip()])[0])
