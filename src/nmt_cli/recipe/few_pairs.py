"""The warning of too few pairs to train from random weights, and what to do instead."""

from __future__ import annotations

import shlex

from nmt_cli.languages import short_code
from nmt_cli.recipe.loading import packaged_names
from nmt_cli.recipe.schema import LanguagePair

_FEWEST_PAIRS = 50_000  # docs/how-to/little-text.md has the evidence


def few_pairs_warning(
    corpus: str, *, num_pairs: int, pair: LanguagePair | None, prepare: str | None = None
) -> tuple[str, str] | None:
    """The warning of a training from random weights on too few pairs, and a command to fine-tune; None if they suffice.

    `pair` is None if there are several directions. `prepare` is the command that prepared the text, if it is known. A
    packaged corpus is small on purpose: its sentences are simple.
    """
    if num_pairs >= _FEWEST_PAIRS or corpus in packaged_names(kind="corpus"):
        return None
    problem = (
        f"{num_pairs:,} training pairs are too few to learn a language from random weights: with fewer than some "
        f"{_FEWEST_PAIRS:,}, BLEU is mostly below 10. Fine-tune a public model"
    )
    if pair is None:
        problem, model = f"{problem} of many languages:", "facebook/m2m100_418M"
    else:
        problem += ", if https://huggingface.co/Helsinki-NLP has one:"
        model = f"Helsinki-NLP/opus-mt-{short_code(pair.source)}-{short_code(pair.target)}"
    output = shlex.quote(f"data/{corpus}-tuned")
    return problem, f"{prepare or 'nmt prepare ...'} --set tokenizer.taken_from={model} -o {output}"
