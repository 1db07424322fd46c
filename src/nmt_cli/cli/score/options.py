"""The options of `nmt score`: metrics, bounds and texts, and which options go together."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from itertools import chain, product, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from nmt_cli.errors import DataError, ScoreError, UsageError
from nmt_cli.languages import parse_languages
from nmt_cli.text_encoding import STDIN

if TYPE_CHECKING:
    from nmt_cli.scoring.metrics import MetricName
    from nmt_cli.scoring.texts import ScoredText, System


MODEL_OPTIONS = ("--tokens", "--alignments", "--batch-tokens", "--precision")
"""The options that need `--model`."""
_STDIN = "-"

logger = logging.getLogger(__name__)


def parse_metrics(texts: Sequence[str]) -> list[MetricName]:
    """The metrics of all `-m`, each once; paper-bleu adds sacreBLEU's BLEU for comparison."""
    from nmt_cli.scoring.metrics import parse_metric

    names = [parse_metric(name, where="-m") for text in texts for name in text.split(",")]
    if "paper-bleu" in names and "bleu" not in names:
        names.insert(names.index("paper-bleu") + 1, "bleu")
    return list(dict.fromkeys(names))


def parse_bounds(texts: Sequence[str], metrics: Sequence[MetricName]) -> dict[MetricName, float]:
    """The lowest scores allowed, by metric. TER takes no bound, because a lower TER is better."""
    from nmt_cli.scoring.metrics import TITLES, lower_is_better, parse_metric

    bounds: dict[MetricName, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        where = f"--fail-under {text}"
        if not equals:
            message = f"--fail-under takes METRIC=BOUND, not {text!r}"
            raise UsageError(message, where=where, hint="for example --fail-under BLEU=25")
        metric = parse_metric(name, where=where)
        if lower_is_better(metric):
            message = f"a lower {TITLES[metric]} is a better one, so --fail-under cannot bound it"
            hint = "bound BLEU or chrF2 instead, for example --fail-under BLEU=25"
            raise UsageError(message, where=where, hint=hint)
        if metric not in metrics:
            message = f"--fail-under bounds {TITLES[metric]}, but -m does not ask for it"
            raise UsageError(message, where=where, hint=f"write -m {','.join([*metrics, metric])}")
        try:
            bounds[metric] = float(value)
        except ValueError:
            hint = f"for example --fail-under {TITLES[metric]}=25"
            raise UsageError(f"the bound {value!r} is not a number", where=where, hint=hint) from None
    return bounds


def check_bounds(systems: Mapping[str, Mapping[MetricName, float]], bounds: Mapping[MetricName, float]) -> None:
    """Raise ScoreError if a score does not reach its bound. `systems` has the scores of each system by its name."""
    from nmt_cli.scoring.metrics import TITLES

    for (system, values), (metric, bound) in product(systems.items(), bounds.items()):
        title, value = TITLES[metric], values[metric]
        if not value >= bound:  # `value < bound` would let NaN pass, which COMET may give
            of_system = f" of {system}" if len(systems) > 1 else ""
            message = f"{title}{of_system} is {value:.4f}, below the bound of {bound:g}"
            hint = "find out what made the translation worse, or lower the bound"
            raise ScoreError(message, where=f"--fail-under {title}={bound:g}", hint=hint)


@dataclass(frozen=True, slots=True)
class ScoreFiles:
    """The files as the user names them; `-` is stdin. A test set of sacreBLEU's stands for references and source.

    `systems` and `baselines` have the files of each system by its name.
    """

    references: Sequence[str]
    systems: Mapping[str, Sequence[str]]
    baselines: Mapping[str, Sequence[str]]
    source: str | None
    test_set: str | None
    languages: str | None

    @property
    def hypotheses(self) -> list[str]:
        """The files of all systems."""
        return [*chain(*self.systems.values())]


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts, all of as many lines; `test_set` is a name of sacreBLEU's, `languages` a pair such as en-de."""

    references: list[ScoredText]
    systems: list[System]
    baselines: list[System]
    source: ScoredText | None
    test_set: str | None
    languages: str | None

    @property
    def target_language(self) -> str | None:
        """The code of the language translated into, as it was given: PT_br for en-PT_br."""
        return None if self.languages is None else self.languages.partition("-")[2]

    @property
    def num_lines(self) -> int:
        """The number of lines, which all texts have."""
        return len(self.references[0].lines)

    def as_json(self) -> dict[str, object]:
        """The files of the texts, with their SHA-256."""
        described: dict[str, object] = {"lines": self.num_lines}
        if len(self.systems) == 1 and len(self.systems[0].runs) == 1:
            described["hypothesis"] = file_and_hash(self.systems[0].runs[0])
        described["references"] = [file_and_hash(text) for text in self.references]
        if self.source is not None:
            described["source"] = file_and_hash(self.source)
        if self.test_set is not None:
            described["test_set"] = {"name": self.test_set, "languages": self.languages}
        return described


def file_and_hash(text: ScoredText) -> dict[str, str]:
    """A text's file and the SHA-256 of its bytes."""
    return {"file": text.name, "sha256": text.sha256}


def parse_systems(texts: Sequence[str], *, are_one: bool) -> dict[str, list[str]]:
    """The files of each system by its name, of FILE, NAME=FILE and patterns such as 'NAME=out/seed-*.de'.

    A pattern names runs of one system, and so does a name that comes again. Without a name, each text is a system that
    has the text as its name, or all are runs of one system if `are_one`. DataError if no file matches a pattern,
    UsageError if a file comes twice in one system.
    """
    named = [_name_and_files(text) for text in texts]
    texts = [STDIN if text == _STDIN else text for text in texts]
    nameless = _common_name([text for text, (name, _) in zip(texts, named, strict=True) if name is None])
    systems: dict[str, list[str]] = {}
    for text, (name, files) in zip(texts, named, strict=True):
        runs = systems.setdefault(name or (nameless if are_one else text), [])
        for file in files:
            if file != _STDIN and Path(file).resolve() in [Path(run).resolve() for run in runs]:
                message = f"{file} is given twice, but a run counts once"
                raise UsageError(message, where=text, hint="give each file once, and patterns that share no file")
            runs.append(file)
    return systems


def _common_name(texts: Sequence[str]) -> str:
    """A name for all of some texts: their common beginning and end, such as seed-*.de, or else all of them."""
    beginning = _common_beginning(texts)
    end = _common_beginning([text[len(beginning) :][::-1] for text in texts])[::-1]
    return f"{beginning}*{end}" if len(texts) > 1 and (beginning or end) else ", ".join(texts)


def _common_beginning(texts: Sequence[str]) -> str:
    places = zip(*texts, strict=False)
    return "".join(letters[0] for letters in takewhile(lambda letters: len({*letters}) == 1, places))


def _name_and_files(text: str) -> tuple[str | None, list[str]]:
    """The name before `=`, if there is one, and the files; a file that is there is never a pattern."""
    if text == _STDIN or Path(text).exists():
        return None, [text]
    name, equals, pattern = text.partition("=")
    if not equals or not name or "/" in name:
        name, pattern = "", text
    files = [pattern]
    if not Path(pattern).exists() and any(sign in pattern for sign in "*?["):
        files = sorted(glob(pattern))
        if not files:
            raise DataError(f"no file matches {pattern}", where=text, hint=f"ls {Path(pattern).parent}")
    return name or None, files


def read_texts(files: ScoreFiles) -> Texts:
    """The texts; UsageError if the arguments do not go together, DataError if the texts do not."""
    from nmt_cli.scoring.texts import System, check_hypothesis, check_reference, check_same_number_of_lines, read_text

    _check_stdin(files)
    _warn_of_runs_among_references(files)
    languages, source_name, reference_names = files.languages, files.source, files.references
    if languages is not None:
        parse_languages(languages)
    if files.test_set is not None:
        from nmt_cli.testsets import find_test_set

        test_set = find_test_set(files.test_set, languages, error=UsageError, name_where="-t", languages_where="-l")
        source_name, reference_names = source_name or str(test_set.source), [str(file) for file in test_set.references]

    def read(*paths: str) -> list[ScoredText]:
        return [read_text(path, stdin=sys.stdin) for path in paths]

    systems = [System(name, read(*runs)) for name, runs in files.systems.items()]
    baselines = [System(name, read(*runs)) for name, runs in files.baselines.items()]
    sources = [] if source_name is None else read(source_name)
    references = read(*reference_names)
    for system in (*systems, *baselines):
        for text in system.runs:
            check_hypothesis(text, references=references)
    for text in (*references[1:], *sources):
        check_same_number_of_lines(text, references[0])
    for reference in references:
        check_reference(reference)
    return Texts(references, systems, baselines, sources[0] if sources else None, files.test_set, languages)


def check_test_set_or_reference(files: ScoreFiles) -> None:
    """Raise UsageError if both a test set and a reference are given, or neither."""
    if files.test_set is not None and files.references:
        message = f"-t {files.test_set} brings its own references, but {files.references[0]} is given as well"
        raise UsageError(message, where="-t", hint="leave out one of them; the translation is -i HYP")
    if files.test_set is None and not files.references:
        hint = "nmt score REF -i HYP, or nmt score -t wmt14/full -l en-de -i HYP; see nmt score --help"
        raise UsageError("REF is missing", where="nmt score", hint=hint)


def check_options(given: Mapping[str, object], metrics: Sequence[MetricName]) -> None:
    """Raise UsageError for an option without the one that it belongs to. `given` has the values of options by name."""
    from nmt_cli.scoring.metrics import TOKENIZERS

    if (tokenizer := given["--tokenize"]) is not None and tokenizer not in TOKENIZERS:
        message, hint = f"sacreBLEU has no tokenizer {tokenizer!r}", f"take one of {', '.join(TOKENIZERS)}"
        raise UsageError(message, where="--tokenize", hint=hint)
    refuse_given(given, MODEL_OPTIONS, reason="needs --model")
    if "bleu" not in metrics:
        refuse_given(given, ["--tokenize", "--lowercase"], reason="needs -m bleu")
    if "paper-bleu" not in metrics:
        refuse_given(given, ["--keep-quotes"], reason="needs -m paper-bleu")
    if "comet" not in metrics:
        refuse_given(given, ["--comet-model", "--device"], reason="needs -m comet")
    if not given["--baseline"]:
        refuse_given(given, ["--paired"], reason="needs --baseline")


def refuse_given(given: Mapping[str, object], options: Iterable[str], *, reason: str) -> None:
    """Raise UsageError if one of the options is given; the reason names the other option, such as "needs --model"."""
    for option in options:
        if given[option] is not None and given[option] is not False and given[option] != []:
            raise UsageError(f"{option} {reason}", where=option, hint=f"leave {option} out")


def check_needs(files: ScoreFiles, metrics: Sequence[MetricName]) -> None:
    """Raise UsageError if a metric needs a language or a text that is not given."""
    from nmt_cli.scoring.metrics import MOSES_METRICS

    for name in MOSES_METRICS:
        if name in metrics and files.languages is None:
            hint = "add the languages, source first: -l en-de"
            raise UsageError(f"{name} needs to know the target language", where=f"-m {name}", hint=hint)
    if "comet" in metrics and files.source is None and files.test_set is None:
        hint = "add the source with -s SRC, or name a test set with -t"
        raise UsageError("comet needs the source text", where="-m comet", hint=hint)


def _warn_of_runs_among_references(files: ScoreFiles) -> None:
    """Warn of a reference that is named like a translation: the shell has resolved `-i seed-*.de` without quotes."""
    patterns = {re.sub(r"\d+", "*", file): file for file in files.hypotheses}
    for reference in files.references:
        pattern = re.sub(r"\d+", "*", reference)
        if patterns.get(pattern, reference) != reference:
            message = "%s is a reference here, and %s a translation: a pattern of runs needs quotes, such as -i '%s'"
            logger.warning(message, reference, patterns[pattern], pattern)
            return


def _check_stdin(files: ScoreFiles) -> None:
    """Raise UsageError if several texts are to come from stdin, or one from a terminal."""
    baselines = [*chain(*files.baselines.values())]
    roles = {"hypothesis": files.hypotheses, "baseline": baselines, "reference": files.references}
    roles["source"] = [] if files.source is None else [files.source]
    from_stdin = [role for role, texts in roles.items() for text in texts if text == _STDIN]
    if len(from_stdin) > 1:
        message = f"stdin can hold one text, but {' and '.join(from_stdin)} are to come from it"
        raise UsageError(message, where=_STDIN, hint="give the others as files; the hypothesis is -i HYP")
    if from_stdin and sys.stdin.isatty():
        message = f"the {from_stdin[0]} is to come from stdin, but stdin is a terminal"
        hint = "give the translation with -i HYP, or pipe: nmt decode < input.txt | nmt score REF"
        raise UsageError(message, where="stdin", hint=hint)
