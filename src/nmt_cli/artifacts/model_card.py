"""The model card: README.md of a model directory, in Markdown with the front matter that model hubs read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from nmt_cli.artifacts.model_directory import SavedModelConfig
from nmt_cli.artifacts.run import Run
from nmt_cli.recipe.directions import Directions
from nmt_cli.templates.render import render


def render_card(run: Run, *, config: SavedModelConfig, num_parameters: int, commands: Sequence[Sequence[str]]) -> str:
    """The card of a model that was made of `run`; `commands` made the model, each as a list of arguments."""
    summary = run.record.data_summary
    splits = summary.get("splits") or {}
    numbers = splits.get("train", {}).get("by_direction") or []
    sizes = [f"{pair} {number:,}" for pair, number in zip(config.languages.pairs, numbers, strict=bool(numbers))]
    inherited = {} if run.record.init_from is None else run.record.init_from.inherited
    body = render(
        "model_card.md",
        run=run,
        config=config,
        num_parameters=num_parameters,
        commands=[shlex.join(command) for command in commands],
        corpus=_corpus(summary),
        splits=splits,
        sizes=sizes,
        directions=config.validation[-1].by_direction if config.validation else {},
        files=[entry for entry in summary.get("inputs", []) if entry.get("sha256")],
        scores=[result.bleu for result in config.validation if result.bleu is not None],
        base_model=names_at_head(inherited, "base_model"),
        licence=names_at_head(inherited, "license"),
        signatures=sorted({result.signature for result in config.validation if result.signature}),
    )
    front = front_matter(config.languages) | inherited | {"tags": ["translation", "transformer"]}
    if repositories := _hub_repositories(summary):
        front["datasets"] = repositories
    return with_front_matter(front, body)


def without_usage_section(card: str) -> str:
    """A card without its section on how nmt uses the model, which needs the model directory."""
    return re.sub(r"^## Use\n.*?(?=^## |\Z)", "", card, count=1, flags=re.MULTILINE | re.DOTALL)


def read_card(directory: Path) -> tuple[dict[str, Any], str]:
    """The values at the head of the card in a directory, and the rest; no values if the head is not YAML.

    Both are empty if there is no card.
    """
    file = directory / "README.md"
    card = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    parts = card.split("---\n", 2)
    if len(parts) < 3 or parts[0]:
        return {}, card
    try:
        values = yaml.safe_load(parts[1])
    except yaml.YAMLError:
        values = None
    return values if isinstance(values, dict) else {}, parts[2].lstrip("\n")


def inherited_values(models: Iterable[Path]) -> dict[str, Any]:
    """What the cards of these models name as licence and base model, for the head of the card of a model made of them.

    Several different ones are a list.
    """
    heads, inherited = [read_card(model)[0] for model in models], dict[str, Any]()
    for key in ("license", "license_name", "license_link", "base_model"):
        listed = [value if isinstance(value, list) else [value] for head in heads if (value := head.get(key))]
        if named := [*dict.fromkeys(str(name) for names in listed for name in names)]:
            inherited[key] = named[0] if len(named) == 1 else named
    return inherited


def names_at_head(values: Mapping[str, Any], key: Literal["license", "base_model"]) -> str | None:
    """The licence or base model among `inherited_values`, with commas between several; None if there is none."""
    names = values.get(key)
    return ", ".join(names) if isinstance(names, list) else names


def with_front_matter(values: Mapping[str, Any], body: str) -> str:
    """A card of the values at its head and the rest."""
    return f"---\n{yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)}---\n\n{body}"


def licence_text(licence: str) -> str:
    """The name of a licence, and whether it forbids commercial use, as NLLB's cc-by-nc-4.0 does."""
    return f"{licence}: for non-commercial use only" if re.search(r"\bnc\b", licence.lower()) else licence


def front_matter(languages: Directions) -> dict[str, Any]:
    """Languages, library and task, as the head of a model card on the hub names them."""
    codes = [*dict.fromkeys([*languages.sources, *languages.targets])]
    return {"language": codes, "library_name": "nmt-cli", "pipeline_tag": "translation"}


def _corpus(summary: Mapping[str, Any]) -> dict[str, Any]:
    corpus = summary.get("corpus")
    return {"description": "", "licence": "", **(corpus if isinstance(corpus, dict) else {})}


def _hub_repositories(summary: Mapping[str, Any]) -> list[str]:
    """The data sets of a hub that the corpus is made of; folders on this machine are left out."""
    sources = [source for split in ("train", "valid", "test") for source in _corpus(summary).get(split) or []]
    names = [source["repository"] for source in sources if source.get("kind") == "hub"]
    return list(dict.fromkeys(name for name in names if not name.startswith((".", "/"))))
