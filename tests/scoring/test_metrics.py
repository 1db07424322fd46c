"""Scores against sacreBLEU's own command, the official ones of WMT22, those of Moses' scripts, and by hand."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmt_cli.errors import UsageError
from nmt_cli.scoring.metrics import TITLES, EvaluationSet, MetricName, ScoreReport, bleu, score_corpus
from nmt_cli.scoring.moses_bleu import MosesBleuTokenizer, PaperTokenizer
from nmt_cli.scoring.significance import SystemScore, score_and_compare
from nmt_cli.scoring.texts import ScoredText, System
from tests.forks import run_forked
from tests.scoring.shell import columns, nmt, run

_HYPOTHESES = ["Der Hund schläft im Garten .", "Zwei Frauen gehen nach Hause.", "Ein Mann liest ein Buch."]
_REFERENCES = ["Der Hund schläft im Garten.", "Zwei Frauen gehen heim.", "Ein Mann liest das Buch."]


def scored(
    hypotheses: list[str],
    references: list[list[str]],
    *metrics: MetricName,
    language: str | None = None,
) -> list[ScoreReport]:
    return score_corpus(hypotheses, EvaluationSet(references, target_language=language), metrics=metrics)


def with_intervals(hypotheses: list[str], references: list[str], *metrics: MetricName) -> list[SystemScore]:
    systems = [System("x", [ScoredText("x", hypotheses, sha256="")])]
    evaluation_set = EvaluationSet([references], target_language="de")
    results = score_and_compare(systems, [], evaluation_set, metrics=metrics, confidence=True, test="bs")
    return [score for result in results for score in result.systems]


def sacrebleu(folder: Path, hypotheses: list[str], references: list[str], *options: str) -> str:
    """The output of sacreBLEU's own command, with four digits."""
    for name, lines in (("hyp", hypotheses), ("ref", references)):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "hyp", "--width", "4", *options]
    done = run_forked(command, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_scores_confidence_and_signature_are_those_of_sacrebleu_s_command(tmp_path: Path) -> None:
    options = "-m bleu chrf ter --confidence --chrf-word-order 2 --format text"
    output = sacrebleu(tmp_path, _HYPOTHESES, _REFERENCES, *options.split())
    reports = with_intervals(_HYPOTHESES, _REFERENCES, "bleu", "chrf++", "ter")
    for report, line in zip(reports, output.split("\n"), strict=True):
        line = line.strip()
        assert line.startswith(f"{TITLES[report.metric]}|{report.signature} = {report.value:.4f} (")
        assert f"± {report.confidence:.4f})" in line


def test_bleu_of_one_sentence_is_what_the_formula_gives() -> None:
    # 5 of 6 unigrams, 4 of 5 bigrams, 3 of 4 trigrams, 2 of 3 4-grams; as long as the reference: no brevity penalty.
    report = bleu(["a b c d e f"], ["a b c d e g"], target_language=None)
    assert report.value == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    shorter = bleu(["a b c d"], ["a b c d e"], target_language=None)
    assert shorter.value == pytest.approx(100 * math.exp(1 - 5 / 4))


def test_the_confidence_of_identical_lines_is_zero() -> None:
    reports = with_intervals(["a b c d e"] * 20, ["a b c d x"] * 20, "bleu", "chrf", "ter")
    assert [report.confidence for report in reports] == [0.0, 0.0, 0.0]
    assert all("|bs:1000|seed:12345|" in report.signature for report in reports)


def test_carriage_returns_change_no_score() -> None:
    plain = scored(_HYPOTHESES, [_REFERENCES], "bleu", "chrf", "ter")
    with_returns = scored([f"{line}\r" for line in _HYPOTHESES], [_REFERENCES], "bleu", "chrf", "ter")
    assert len(plain) == 3
    assert plain == with_returns


_SENTENCES = {
    "de": ["Der Hund schläft heute im Garten.", "Zwei Frauen gehen am Abend nach Hause."],
    "vi": ["Hôm nay trời rất đẹp và mát mẻ.", "Tôi đang đọc một cuốn sách mới."],
    "ru": ["Сегодня вечером мы идём в кино.", "Собака спит в старом саду."],
    "el": ["Σήμερα το βράδυ πάμε στον κινηματογράφο.", "Ο σκύλος κοιμάται στον παλιό κήπο."],
    "ar": ["الكلب ينام اليوم في الحديقة القديمة.", "قرأت أختي كتابا جديدا عن البحر."],
    "iw": ["הכלב ישן היום בגינה הישנה שלנו.", "אחותי קראה ספר חדש על הים."],
    "hi": ["कुत्ता आज पुराने बगीचे में सो रहा है।", "मेरी बहन ने समुद्र पर एक नई किताब पढ़ी।"],
    "ko": ["개가 오늘 오래된 정원에서 자고 있다.", "누나는 바다에 관한 새 책을 읽었다."],
    "zh": ["那只老狗今天在花园里睡觉。", "我姐姐读了一本关于大海的新书。"],
    "zh-TW": ["那隻老狗今天在花園裡睡覺。", "我姐姐讀了一本關於大海的新書。"],
    "yue": ["隻老狗今日喺花園瞓覺。", "我家姐睇咗一本講大海嘅新書。"],
    "jpn": ["年老いた犬は今日、庭で眠っている。", "姉は海についての新しい本を読んだ。"],
    "th": ["วันนี้หมาแก่นอนหลับอยู่ในสวน", "พี่สาวของฉันอ่านหนังสือเล่มใหม่เกี่ยวกับทะเล"],
    "lo": ["ມື້ນີ້ໝາແກ່ນອນຢູ່ໃນສວນ", "ເອື້ອຍຂອງຂ້ອຍອ່ານປຶ້ມໃໝ່ກ່ຽວກັບທະເລ"],
    "khm_Khmr": ["ថ្ងៃនេះឆ្កែចាស់ដេកនៅក្នុងសួន", "បងស្រីខ្ញុំអានសៀវភៅថ្មីអំពីសមុទ្រ"],
    "my": ["ခွေးအိုသည်ယနေ့ဥယျာဉ်ထဲတွင်အိပ်နေသည်။", "ကျွန်မအစ်မသည်ပင်လယ်အကြောင်းစာအုပ်သစ်ဖတ်ခဲ့သည်။"],
    "bo": ["དེ་རིང་ཁྱི་རྒན་ལྡུམ་རའི་ནང་གཉིད་འདུག", "ངའི་ཨ་ཅེས་རྒྱ་མཚོའི་སྐོར་གྱི་དེབ་གསར་པ་ཞིག་བཀླགས་སོང་།"],
}


@pytest.mark.parametrize("language", _SENTENCES)
def test_a_copy_is_perfect_and_a_changed_text_is_compared_in_parts(language: str) -> None:
    first, second = _SENTENCES[language]
    copy = scored([first, second], [[first, second]], "bleu", "chrf", "ter", language=language)
    assert [round(report.value, 6) for report in copy] == [100, 100, 0]
    half = len(first) // 2
    changed = scored([first[:half] + first[half + 1 :], second], [[first, second]], "bleu", "ter", language=language)
    assert 50 < changed[0].value < 100
    assert 0 < changed[1].value < 25


@pytest.mark.parametrize(
    ("language", "tokens", "ter"),
    [
        ("de", "13a", "tok:tercom|norm:no|punct:yes|asian:no"),
        ("ko-KR", "char|ko-mecab", "tok:tercom|norm:no|punct:yes|asian:no"),
        ("zh_Latn", "13a", "tok:tercom|norm:no|punct:yes|asian:no"),
        ("lzh", "zh", "tok:tercom|norm:yes|punct:yes|asian:yes"),
        ("ja", "char|ja-mecab", "tok:tercom|norm:yes|punct:yes|asian:yes"),
        ("dzo", "char", "tok:grapheme|norm:no|punct:yes|asian:no"),
        ("jv-Java", "char", "tok:grapheme|norm:no|punct:yes|asian:no"),
    ],
)
def test_signatures_say_the_tokens_of_the_language(language: str, tokens: str, ter: str) -> None:
    bleu_report, ter_report = scored(["a"], [["a"]], "bleu", "ter", language=language)
    assert re.search(rf"\|tok:({tokens})\|", bleu_report.signature)
    assert f"|{ter}|" in ter_report.signature


@pytest.mark.parametrize(
    ("language", "options", "added"),
    [
        ("zh", [], "-l en-zh"),
        ("yue", ["-m", "ter"], "-l en-zh"),
        ("jpn", ["-m", "bleu"], "-l en-ja"),
        ("th", [], "-l en-th"),
        ("khm_Khmr", [], "-l en-km"),
        ("zh", ["-l", "en-cn", "-m", "bleu,ter"], "-l en-zh"),
        ("zh", ["-m", "bleu", "--tokenize", "char"], None),
        ("zh", ["-m", "chrf"], None),
        ("zh", ["-l", "en-zh"], None),
        ("ko", [], None),
        ("hi", [], None),
    ],
)
@pytest.mark.usefixtures("folder")
def test_text_without_spaces_is_told_to_name_its_language(
    caplog: pytest.LogCaptureFixture, language: str, options: list[str], added: str | None
) -> None:
    Path("ref").write_text("\n".join(_SENTENCES[language]) + "\n", encoding="utf-8")
    run("ref", "-i", "ref", *options)
    assert (added in caplog.text) if added else caplog.text == ""


def test_a_blank_reference_beside_another_is_a_missing_one(folder: Path) -> None:
    second = ["Der Hund schläft im Park.", " ", ""]
    texts: list[list[Any]] = [[*_REFERENCES], [second[0], None, None]]
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())):
        (report,) = scored(_HYPOTHESES, [_REFERENCES, second], cast(MetricName, name))
        assert report.value == metric.corpus_score(_HYPOTHESES, texts).score
        assert report.signature.startswith("nrefs:var|")
    (folder / "ref2").write_text("\n".join(second) + "\n", encoding="utf-8")
    rows = run("ref", "ref2", "-i", "hyp", "-m", "ter", "--sentence").splitlines()[1:]
    alone = run("ref", "-i", "hyp", "-m", "ter", "--sentence").splitlines()[1:]
    assert [row.split("\t")[1] for row in rows[1:]] == [row.split("\t")[1] for row in alone[1:]]


@pytest.mark.parametrize("tokenizer", ["intl", "zh"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_tokenizers_and_case_are_those_of_sacrebleu_s_command(folder: Path, tokenizer: str, lowercase: bool) -> None:
    options = ["--tokenize", tokenizer, *(["--lowercase"] if lowercase else [])]
    theirs = json.loads(sacrebleu(folder, _HYPOTHESES, _REFERENCES, "-m", "bleu", "--format", "json", *options))
    ours = json.loads(run("ref", "-i", "hyp", "-m", "bleu", "--json", *options))["scores"]["BLEU"]
    assert f"{ours['score']:.4f}" == f"{theirs['score']:.4f}"
    assert ours["signature"] == theirs["signature"]
    assert f"|case:{'lc' if lowercase else 'mixed'}|eff:no|tok:{tokenizer}|" in ours["signature"]


def test_a_named_tokenizer_that_is_not_installed_is_answered_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ko_mecab.MeCab", None)
    evaluation_set = EvaluationSet([["a"]], tokenize="ko-mecab")
    with pytest.raises(UsageError) as caught:
        score_corpus(["a"], evaluation_set, metrics=["bleu"])
    assert caught.value.message == "BLEU needs a tokenizer for the language 'ko' that is not installed"
    assert (caught.value.setting, caught.value.hint) == ("tokenize: ko-mecab", "pip install 'sacrebleu[ko]'")


@pytest.mark.usefixtures("folder")
def test_a_tokenizer_whose_model_cannot_be_fetched_names_the_folder(tmp_path: Path) -> None:
    # Nothing listens at that port.
    proxies = {"https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    process = nmt("ref", "-i", "hyp", "--tokenize", "flores200", SACREBLEU=str(tmp_path / "mine"), **proxies)
    models = tmp_path / "mine" / "models"
    assert process.returncode == 4
    assert process.stderr.startswith(f"error: the model of the tokenizer flores200 is not in {models}, and cannot be ")
    assert f"fix:   check the network and $https_proxy, or copy the folder {models} from a " in process.stderr


def test_a_confidence_interval_of_chrf_survives_resamples_without_a_match() -> None:
    hypotheses, references = ["xyz", "a cat", "qqq"], ["abc", "a cat", "fgh"]
    (report,) = with_intervals(hypotheses, references, "chrf")
    assert report.confidence is not None
    assert 0 < report.confidence < 100


def reference_tokens(language: str, line: str) -> str:
    """The tokens of the paper's BLEU."""
    return PaperTokenizer(language, keep_quotes=False).tokenize(line, is_reference=True)


def test_compounds_are_split_for_german_alone_and_as_the_script_does() -> None:
    assert reference_tokens("de", "Chat-Fenster") == "Chat ##AT##-##AT## Fenster"
    # The substitution takes both neighbours with it, so that the second hyphen of a-b-c stays; but it works on bytes.
    assert reference_tokens("de", "a-b-c") == "a ##AT##-##AT## b-c"
    assert reference_tokens("de", "A-Ö-B") == "A ##AT##-##AT## Ö ##AT##-##AT## B"
    assert reference_tokens("fr", "grand-père") == "grand-père"


def test_unicode_punctuation_becomes_ascii_in_the_hypothesis_alone() -> None:
    text = PaperTokenizer("de", keep_quotes=True)
    assert text.tokenize("“Ja”，sagt er。", is_reference=False) == "&quot; Ja &quot; , sagt er ."
    assert text.tokenize("“Ja”", is_reference=True) == "“ Ja ”"


def test_quotes_of_a_german_reference_become_ascii_as_the_authors_had_them() -> None:
    assert reference_tokens("de", "„Ja“, sagt er.") == "&quot; Ja &quot; , sagt er ."
    # There is no evidence for other languages.
    assert reference_tokens("fr", "„Ja“") == "„ Ja “"
    # The hypothesis is what the script makes of it, and the script leaves the lower quote.
    assert PaperTokenizer("de", keep_quotes=False).tokenize("„Ja“", is_reference=False) == "„ Ja &quot;"


def test_a_reference_without_such_quotes_has_the_same_paper_bleu_either_way(shared_data: Path) -> None:
    reference = str(shared_data / "newstest" / "newstest2013.de")
    arguments = [reference, "-i", reference, "-m", "paper-bleu", "-l", "en-de"]
    ascii, kept = (columns(run(*arguments, *more))[0] for more in ([], ["--keep-quotes"]))
    assert ascii[1] == kept[1] == "100.00"
    assert "|punct:ascii-hyp|quotes:ascii-ref|moses:" in ascii[2]
    assert "|punct:ascii-hyp|moses:" in kept[2]


@pytest.mark.parametrize("line", ["Er wurde 28.", "Das sagt Bart. ", "Teil A."])
def test_a_final_full_stop_stands_apart_whatever_is_before_it(line: str) -> None:
    assert reference_tokens("de", line) == f"{line.strip()[:-1]} ."


def test_chinese_in_a_german_line_stays_together_as_in_moses() -> None:
    # As tokenizer.perl prints it.
    line, tokens = "田郷明 sagt: カタカナ, 한국어.", "田郷明 sagt : カタカナ , 한국어 ."
    assert MosesBleuTokenizer("de").tokenize(line, is_reference=True) == tokens
    assert MosesBleuTokenizer("zh").tokenize("你好，世界。", is_reference=True) == "你好 ， 世界 。"
    assert MosesBleuTokenizer("hi").tokenize("नमस्ते", is_reference=True) == "नमस ् ते"


def test_moses_bleu_is_what_perl_s_scripts_give_for_lower_cased_text(shared_data: Path) -> None:
    folder = shared_data / "wmt22-en-de"
    arguments = [str(folder / "ref.A.de"), "-i", str(folder / "hyp.PROMT.de"), "-m", "moses-bleu", "-l", "en-de"]
    found = json.loads(run(*arguments, "--json"))["scores"]["moses-BLEU"]
    # tokenizer.perl -l de, lowercase.perl, multi-bleu.perl
    printed = "BLEU = 36.89, 66.8/42.5/29.9/21.8 (BP=1.000, ratio=1.003, hyp_len=39403, ref_len=39271)"
    assert f"BLEU = {found['score']:.2f}, {found['details']}" == printed
    assert found["signature"].startswith("nrefs:1|case:lc|eff:no|tok:moses-de|smooth:none|moses:sacremoses-")


def test_without_a_match_of_four_words_it_is_zero_like_multi_bleu() -> None:
    report, bleu = with_intervals(["a b c d e f"], ["a b c x y z"], "paper-bleu", "bleu")
    assert (report.value, report.metric) == (0, "paper-bleu")
    assert bleu.value > 0
    assert "|bs:1000|seed:12345|" in report.signature


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t"))


def lines_of(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").removesuffix("\n").split("\n")


@pytest.mark.parametrize(
    "system",
    [pytest.param("OpenNMT", marks=pytest.mark.slow), pytest.param("PROMT", marks=pytest.mark.slow), "Online-W"],
)
def test_every_official_score_of_wmt22_to_nine_digits(shared_data: Path, system: str) -> None:
    folder = shared_data / "wmt22-en-de"
    rows = rows_of(folder / "official-scores.tsv")
    official = {row["metric"]: float(row["score"]) for row in rows if row["system"] == system}
    assert len(official) == 6
    references = {"A": ["ref.A.de"], "B": ["ref.B.de"], "all": ["ref.A.de", "ref.B.de"]}
    found: dict[str, float] = {}
    for which, names in references.items():
        files = [str(folder / name) for name in names]
        scores = json.loads(run(*files, "-i", str(folder / f"hyp.{system}.de"), "-m", "bleu,chrf", "--json"))["scores"]
        found |= {f"bleu-{which}": scores["BLEU"]["score"], f"chrf-{which}": scores["chrF2"]["score"]}
        assert scores["BLEU"]["signature"].startswith(f"nrefs:{len(names)}|case:mixed|eff:no|tok:13a|smooth:exp|")
    assert found == pytest.approx(official, abs=1e-9)


@pytest.mark.parametrize(
    ("tokens", "text", "language"),
    [
        ("wmt22.hyp.OpenNMT.tok.de", "wmt22-en-de/hyp.OpenNMT.de", "de"),
        ("wmt22.hyp.PROMT.tok.de", "wmt22-en-de/hyp.PROMT.de", "de"),
        ("wmt22.ref.A.tok.de", "wmt22-en-de/ref.A.de", "de"),
        ("newstest2013.hyp.tok.fr", "moses-reference/newstest2013.hyp.fr", "fr"),
        ("newstest2013.ref.tok.fr", "newstest/newstest2013.fr", "fr"),
    ],
)
def test_tokens_are_those_of_moses_in_every_line(shared_data: Path, tokens: str, text: str, language: str) -> None:
    paper = PaperTokenizer(language, keep_quotes=True)
    raw, expected = lines_of(shared_data / text), lines_of(shared_data / "moses-reference" / tokens)
    assert len(raw) == len(expected)
    assert [paper.tokenize(line, is_reference=".ref." in tokens) for line in raw] == expected


@pytest.mark.parametrize("place", range(3))
def test_paper_bleu_is_what_multi_bleu_prints(shared_data: Path, place: int) -> None:
    row = rows_of(shared_data / "moses-reference" / "expected.tsv")[place]
    reference, hypothesis = (str(shared_data / row[side]) for side in ("reference", "hypothesis"))
    output = run(reference, "-i", hypothesis, "-l", row["pair"], "-m", "paper-bleu", "--keep-quotes", "--json")
    scores = json.loads(output)["scores"]
    assert list(scores) == ["paper-BLEU", "BLEU"]
    paper = scores["paper-BLEU"]
    assert f"BLEU = {paper['score']:.2f}, {paper['details']}" == row["multi-bleu"]


def test_paper_bleu_says_with_which_figures_it_compares(shared_data: Path) -> None:
    folder = shared_data / "wmt22-en-de"
    process = nmt(str(folder / "ref.A.de"), "-i", str(folder / "hyp.PROMT.de"), "-m", "paper-bleu", "-l", "en-de")
    lines = [line.split("\t") for line in process.stdout.splitlines()]
    assert [line[:2] for line in lines] == [["paper-BLEU", "36.38"], ["BLEU", "36.12"]]
    assert lines[0][2].startswith("nrefs:1|case:mixed|eff:no|tok:moses-de|smooth:none|compounds:split|punct:ascii-hyp|")
    assert process.stderr == (
        "compare paper-BLEU with the paper's 27.3 (base) and 28.4 (big) on newstest2014 and other multi-bleu scores "
        "of such tokens; compare BLEU with sacreBLEU scores of the same signature; "
        "do not compare the two with each other\n"
    )
