"""BLEU as in "Attention Is All You Need": Moses' tokens, hyphenated compounds split for German, multi-bleu.

tensor2tensor's get_ende_bleu.sh, without Perl: what it names is replace-unicode-punctuation.perl (hypothesis only),
tokenizer.perl -l, the split of compounds on both sides, and multi-bleu.perl, all of mosesdecoder.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from sacrebleu.metrics.bleu import BLEU, BLEUSignature

logger = logging.getLogger(__name__)

# The bytes around the hyphen are consumed, as in the script: a-b-c is split at the first hyphen only, a-ö-c at both.
_COMPOUND = re.compile(rb"(\S)-(\S)")
# sacremoses leaves a final full stop at a number or an abbreviation, where tokenizer.perl splits it off.
_FINAL_STOP = re.compile(r"(?<=[^\s.])\.$")
_SPLITS_COMPOUNDS = frozenset({"de"})


class PaperText:
    """Raw text in the tokens that the paper's BLEU counts, for one target language."""

    def __init__(self, language: str) -> None:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
        from sacremoses.corpus import NonbreakingPrefixes

        if language not in NonbreakingPrefixes().available_langs:
            logger.warning("Moses knows no abbreviations of the language %r; it takes those of English", language)
        self.language = language
        self._tokenizer = MosesTokenizer(lang=language)
        self._punctuation = MosesPunctNormalizer()
        self._splits_compounds = language in _SPLITS_COMPOUNDS

    def hypotheses(self, systems: Sequence[Sequence[str]]) -> list[list[str]]:
        """The tokens of the hypotheses of each system."""
        return [[self.hypothesis(line) for line in lines] for lines in systems]

    def hypothesis(self, line: str) -> str:
        """The tokens of a hypothesis, with spaces between them; unicode punctuation becomes ASCII first."""
        return self.reference(self._punctuation.replace_unicode_punct(line))

    def reference(self, line: str) -> str:
        """The tokens of a reference, with spaces between them."""
        tokens = self._tokenizer.tokenize(line.strip(), return_str=True, escape=True)
        tokens = _FINAL_STOP.sub(" .", tokens)
        if not self._splits_compounds:
            return tokens
        return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", tokens.encode()).decode()


class _PaperSignature(BLEUSignature):
    """sacreBLEU's fields, and how the text was changed beforehand."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        self.update("compounds", args["compounds"])
        self.update("punct", "ascii-hyp")
        self.update("moses", f"sacremoses-{version('sacremoses')}")


class PaperBleu(BLEU):
    """multi-bleu.perl over texts in the tokens of `PaperText`: sacreBLEU's BLEU without tokenisation and smoothing."""

    _SIGNATURE_TYPE = _PaperSignature

    def __init__(self, language: str, *, references: Sequence[Sequence[str]]) -> None:
        super().__init__(tokenize="none", smooth_method="none", force=True, references=references)
        self.tokenizer_signature = f"moses-{language}"
        self.compounds = "split" if language in _SPLITS_COMPOUNDS else "whole"


def comparable(languages: str) -> str:
    """The published figures with which paper-BLEU compares for a language pair, and those for sacreBLEU's BLEU."""
    figures = {"en-de": "27.3 (base) and 28.4 (big)", "en-fr": "38.1 (base) and 41.8 (big)"}.get(languages.lower())
    papers = f"the paper's {figures} on newstest2014 and " if figures else ""
    return (
        f"paper-BLEU compares with {papers}other multi-bleu scores of such tokens; BLEU compares with other papers' "
        "sacreBLEU scores of the same signature; never one with the other"
    )
