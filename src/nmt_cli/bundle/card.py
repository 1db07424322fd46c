"""The model card: README.md of a model directory, in Markdown with the front matter that model hubs read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from nmt_cli.bundle.config import BundleConfig, Measurement
from nmt_cli.bundle.run import Run
from nmt_cli.recipe.schema import Recipe

_MOST_ROWS = 12
_BARS = "▁▂▃▄▅▆▇█"
# The section about nmt's own commands, which a copy of the model for another program does without.
_USE_HEADING = "## Use"


def render(run: Run, *, config: BundleConfig, num_parameters: int, commands: Sequence[Sequence[str]]) -> str:
    """The card of a model that was made of `run`; `commands` are those that made it, each as a list of arguments."""
    source, target = config.languages.source, config.languages.target
    sections = [
        f"# {config.recipe.name}: {source} to {target}",
        _introduction(config, num_parameters),
        use(),
        "## How it was made\n\n" + _making(run, config, commands),
        "## Model\n\n" + _architecture(config.recipe),
        "## Data\n\n" + _data(run, config),
        "## Training\n\n" + _training(run),
        "## Scores\n\n" + _scores(config),
        "## Limits\n\n" + _limits(run, config),
    ]
    return join_front_matter(_front_matter(run, config), "\n\n".join(sections) + "\n")


def sparkline(values: Sequence[float]) -> str:
    """One bar a value, the lowest value the lowest bar."""
    low, high = min(values), max(values)
    steps = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * steps)] for value in values)


def use() -> str:
    """The section of a card on how nmt uses the model; only there are commands that need the model directory."""
    return f"""{_USE_HEADING}

Raw text in, raw text out, a sentence a line: the tokenizer is part of the model. Lines too long for it are split at
the ends of sentences. `MODEL` is this folder.

```console
$ nmt decode -m MODEL < input.txt > output.txt
$ nmt decode -m MODEL < test.src | nmt score test.ref
```

```python
from nmt_cli import Translator

translator = Translator.from_pretrained("MODEL")
print(translator.translate(["A sentence."])[0].text)
```"""


def without_use(card: str) -> str:
    """The card of a model without the section on how nmt uses it."""
    return re.sub(rf"^{_USE_HEADING}\n.*?(?=^## |\Z)", "", card, count=1, flags=re.MULTILINE | re.DOTALL)


def split_front_matter(card: str) -> tuple[dict[str, Any], str]:
    """The values at the head of a card, none where they are no YAML, and the rest."""
    parts = card.split("---\n", 2)
    if len(parts) < 3 or parts[0]:
        return {}, card
    try:
        values = yaml.safe_load(parts[1])
    except yaml.YAMLError:
        values = None
    return values if isinstance(values, dict) else {}, parts[2].lstrip("\n")


def join_front_matter(values: Mapping[str, Any], body: str) -> str:
    """A card of the values at its head and the rest."""
    return f"---\n{yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)}---\n\n{body}"


def _front_matter(run: Run, config: BundleConfig) -> dict[str, Any]:
    values: dict[str, Any] = {
        "language": [config.languages.source, config.languages.target],
        "library_name": "nmt-cli",
        "pipeline_tag": "translation",
        "tags": ["translation", "transformer"],
    }
    if repositories := [entry["repository"] for entry in _hub_sources(run.record.data_summary)]:
        values["datasets"] = list(dict.fromkeys(repositories))
    measured = config.validation[0] if len(config.updates) == 1 and config.validation else None
    if measured is not None and measured.bleu is not None:
        values["metrics"] = ["bleu"]
        result = {
            "task": {"type": "translation"},
            "dataset": {"name": f"{run.record.corpus}, validation", "type": run.record.corpus},
            "metrics": [{"type": "bleu", "value": round(measured.bleu, 2), "name": measured.signature or "sacreBLEU"}],
        }
        values["model-index"] = [{"name": config.recipe.name, "results": [result]}]
    return values


def _introduction(config: BundleConfig, num_parameters: int) -> str:
    description = f"\n\n{config.recipe.description}" if config.recipe.description else ""
    return (
        f"A Transformer (Vaswani et al. 2017) with {num_parameters / 1e6:,.1f} million parameters that translates"
        f" `{config.languages.source}` into `{config.languages.target}`; trained with nmt"
        f" {config.nmt_version}.{description}"
    )


def _making(run: Run, config: BundleConfig, commands: Sequence[Sequence[str]]) -> str:
    lines = "\n".join(f"$ {shlex.join(command)}" for command in commands)
    updates = config.updates
    if len(updates) == 1:
        made_of = f"The weights are those after update {updates[0]:,}"
    else:
        listed = ", ".join(f"{update:,}" for update in updates)
        made_of = f"The weights are the mean of {len(updates)} checkpoints, after updates {listed}"
    finished = f" and ended {run.record.finished}" if run.record.finished else ""
    return f"```console\n{lines}\n```\n\n{made_of}. Training began {run.record.started}{finished}."


def _architecture(recipe: Recipe) -> str:
    model, training = recipe.model, recipe.training
    rows = [
        ("layers, encoder and decoder", f"{model.encoder_layers} and {model.decoder_layers}"),
        ("d_model, d_ff", f"{model.d_model:,} and {model.d_ff:,}"),
        ("heads, d_k, d_v", f"{model.heads}, {model.d_k}, {model.d_v}"),
        ("norm, activation, positions", f"{model.norm} {model.norm_type}, {model.activation}, {model.positions}"),
        ("dropout, label smoothing", f"{model.dropout}, {training.label_smoothing}"),
        ("tokens an update", f"{training.batch_tokens:,}"),
        ("updates in the recipe", f"{training.updates:,}"),
        ("optimizer, schedule", f"{training.optimizer.name}, {training.schedule.name}"),
        ("seed", str(training.seed)),
        ("search", f"beam {recipe.decoding.beam}, length penalty {recipe.decoding.length_penalty}"),
    ]
    return _table(("setting", "value"), rows) + "\n\nThe whole recipe, every value written out, is in `config.yaml`."


def _data(run: Run, config: BundleConfig) -> str:
    summary = run.record.data_summary
    vocabulary = config.vocabulary
    if vocabulary.shared:
        pieces = f"SentencePiece, {vocabulary.source:,} pieces for both languages"
    else:
        pieces = f"SentencePiece, {vocabulary.source:,} pieces for the source and {vocabulary.target:,} for the target"
    parts = [f"Corpus `{run.record.corpus}`. {_corpus(summary).get('description', '')}".strip()]
    if splits := summary.get("splits"):
        rows = [
            (name, *(f"{counts[key]:,}" for key in ("pairs", "source_tokens", "target_tokens")))
            for name, counts in splits.items()
        ]
        parts.append(_table(("split", "pairs", "source pieces", "target pieces"), rows, num_text=1))
    parts.append(f"Vocabulary: {pieces}.")
    if inputs := [entry for entry in summary.get("inputs", []) if entry.get("sha256")]:
        rows = [(entry["split"], f"`{entry['name']}`", f"`{entry['sha256'][:16]}`") for entry in inputs]
        parts.append(_table(("split", "file", "SHA-256 begins"), rows))
    return "\n\n".join(parts)


def _training(run: Run) -> str:
    measured = run.validations()
    if not measured:
        return "Nothing was measured on the validation set."
    shown = _thinned(measured)
    rows = [(f"{one.update:,}", f"{one.loss:.4f}", _number(one.perplexity, 2), _number(one.bleu, 2)) for one in shown]
    table = _table(("update", "validation loss", "perplexity", "BLEU"), rows, num_text=0)
    with_bleu = [one.bleu for one in measured if one.bleu is not None]
    name, values = ("BLEU", with_bleu) if with_bleu else ("loss", [one.loss for one in measured])
    curve = sparkline(values[:: -(-len(values) // 60)])
    return f"{table}\n\nValidation {name} over the run: `{curve}` ({min(values):.2f} to {max(values):.2f})."


def _scores(config: BundleConfig) -> str:
    with_bleu = [(one.update, one.bleu) for one in config.validation if one.bleu is not None]
    signatures = sorted({one.signature for one in config.validation if one.signature})
    signature = f"\n\nSignature: {', '.join(f'`{text}`' for text in signatures)}" if signatures else ""
    if not with_bleu:
        return "No BLEU was measured in training."
    values = [bleu for _, bleu in with_bleu]
    part = config.recipe.validation.max_sentences
    what = "BLEU on the validation set" + (f", on its first {part:,} sentences" if part is not None else "")
    if len(config.updates) == 1:
        return f"{what}: {values[0]:.2f}.{signature}"
    return (
        f"{what}, of the checkpoints that were averaged: {min(values):.2f} to {max(values):.2f}."
        f" The average itself was not scored in training.{signature}"
    )


def _limits(run: Run, config: BundleConfig) -> str:
    licence = _corpus(run.record.data_summary).get("licence") or "not stated"
    return "\n".join(
        [
            f"- Licence of the data: {licence}.",
            f"- It knows texts like those of the corpus `{run.record.corpus}`; expect worse translations of others.",
            "- Sentences are translated one by one, without their context.",
            *_longest(config),
            f"- A side holds at most {config.recipe.model.max_positions:,} pieces.",
            "- Like any such model it may leave out, add or invert content. Have important translations checked.",
        ]
    )


def _longest(config: BundleConfig) -> list[str]:
    if config.longest_source is None:
        return []
    what = f"The longest source sentence in its training has {config.longest_source:,} pieces"
    return [f"- {what}; expect worse translations of longer ones."]


def _thinned(measured: Sequence[Measurement]) -> list[Measurement]:
    """At most a dozen, evenly over the run, with the last and the best."""
    every = -(-len(measured) // (_MOST_ROWS - 2))
    best = max(measured, key=lambda one: (one.bleu if one.bleu is not None else -1.0, -one.loss))
    kept = {one.update for one in measured[every - 1 :: every]} | {measured[-1].update, best.update}
    return [one for one in measured if one.update in kept]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, num_text: int | None = None) -> str:
    """A Markdown table; the columns after the first `num_text` are numbers and stand right."""
    num_text = len(header) if num_text is None else num_text
    rule = ["---" if column < num_text else "---:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def _number(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"


def _corpus(summary: dict[str, Any]) -> dict[str, Any]:
    corpus = summary.get("corpus")
    return corpus if isinstance(corpus, dict) else {}


def _hub_sources(summary: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for split in ("train", "valid", "test"):
        for entry in _corpus(summary).get(split) or []:
            if entry.get("kind") == "hub" and not entry["repository"].startswith((".", "/")):
                yield entry
