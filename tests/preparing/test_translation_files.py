"""TMX, XLIFF and PO as sources of a corpus."""

from __future__ import annotations

import bz2
import gzip
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

from nmt_cli.errors import DataError
from nmt_cli.preparing.chunks import Chunk
from nmt_cli.preparing.corpus import LocatedCorpus
from nmt_cli.preparing.corpus_loading import corpus_from_files
from nmt_cli.preparing.inputs import fetch_inputs
from nmt_cli.preparing.sources.base import Split
from nmt_cli.preparing.sources.tmx_xliff import XliffSource
from tests.preparing.corpus_files import Pairs, invented_pairs, memory_below, read_chunks, refusal, run, silent

HEAD = '<?xml version="1.0" encoding="{}"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4"><header/><body>\n'
CODES = ("en", "de")


def tmx(units: Iterable[Sequence[tuple[str, str]]], *, encoding: str = "UTF-8") -> str:
    """A translation memory; each unit is a list of (language, content of <seg>)."""
    variants = ("".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in unit) for unit in units)
    return HEAD.format(encoding) + "".join(f"<tu>{unit}</tu>\n" for unit in variants) + "</body></tmx>\n"


def tmx_of(pairs: Pairs, codes: tuple[str, str] = CODES) -> str:
    return tmx([list(zip(codes, map(escape, pair), strict=True)) for pair in pairs])


def located(file: Path, languages: str = "en-de", *overrides: str) -> LocatedCorpus:
    files: dict[Split, list[str]] = {"train": [str(file)], "valid": [str(file)]}
    return corpus_from_files(files, languages=languages, name="x", overrides=list(overrides))


def read(file: Path, text: str | bytes, languages: str = "en-de") -> list[Chunk]:
    """The chunks of a file with this text, as training text."""
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_chunks(fetch_inputs(located(file, languages), progress=silent).sources["train"]))


def pairs_of(chunks: Iterable[Chunk]) -> list[tuple[str, str]]:
    """The pairs that have a translation."""
    return [
        pair
        for chunk in chunks
        for index, pair in enumerate(zip(chunk.src, chunk.tgt, strict=True))
        if index not in chunk.untranslated
    ]


def error_of(file: Path, text: str | bytes, languages: str = "en-de") -> DataError:
    return refusal(lambda: read(file, text, languages))


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16", "ISO-8859-1", "GB18030"])
def test_a_translation_memory_gives_the_text_of_its_units_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    pairs = [("R & D < 3", "F & E <\xa03"), ("caf\xe9", "Caf\xe9 gro\xdf"), *invented_pairs(200, seed=2)]
    text = tmx_of(pairs).replace("UTF-8", encoding)
    chunks = read(tmp_path / "a.tmx", text.encode(encoding))
    segments = [str(one.text) for one in ElementTree.fromstring(tmx_of(pairs).split('dtd">\n')[1]).iter("seg")]
    assert [text for pair in pairs_of(chunks) for text in pair] == segments
    assert chunks[0].where(1) == "a.tmx:5"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('Press <bpt i="1">&lt;b&gt;</bpt>Save<ept i="1">&lt;/b&gt;</ept> now', "Press Save now"),
        ("a <hi type='x'>bold</hi> word", "a bold word"),
        ("one<ph type='lb'/>two", "one two"),
        ("one<ph>&lt;br/&gt;</ph> two<it pos='begin'>x</it>", "one two"),
        ("one<ph>&lt;br/&gt;</ph>two<it pos='begin'>\\n</it>three<ph>\n</ph>four", "one two three four"),
        ("one<ept i='1'>&lt;/w:p&gt;</ept><bpt i='2'>&lt;p class='a'&gt;</bpt>two", "one two"),
        ("<bpt i='1'>&lt;b&gt;</bpt>S<ept i='1'>&lt;/b&gt;</ept>ave<ph>&lt;pic/&gt;\\new</ph>s", "Saves"),
        ("Go <ph>&lt;img alt='<sub>a red <bpt i='1'>x</bpt>dog</sub>'&gt;</ph>.", "Go a red dog ."),
        ("<![CDATA[1 < 2]]> &amp; &#228;&nbsp;b", "1 < 2 & \xe4\xa0b"),
        ("  two\n   lines\t ", "two lines"),
    ],
)
def test_inline_tags_keep_the_text_that_is_translated_and_lose_their_code(
    tmp_path: Path, content: str, text: str
) -> None:
    (chunk,) = read(tmp_path / "a.tmx", tmx([[("en", content), ("de", content)]]))
    assert (chunk.src, chunk.tgt) == ([text], [text])


def test_languages_match_loosely_and_the_log_says_which_were_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    units = [[("fr-FR", "un"), ("en-US", "one"), ("DE_at", "eins")], [("en-GB", "two"), ("DE_at", "zwei")]]
    chunks = read(tmp_path / "a.tmx", tmx([*units, [("EN", "three"), ("en-US", "tree"), ("DE_at", "drei")]]))
    assert pairs_of(chunks) == [("one", "eins"), ("two", "zwei"), ("three", "drei")]
    assert caplog.messages == ["a.tmx: en is en-US (1 pairs) and en-GB (1 pairs) and EN (1 pairs), de is DE_at"]
    caplog.clear()
    fetched = fetch_inputs(located(tmp_path / "a.tmx", "en-de", "limit=9"), progress=silent)
    assert caplog.messages == []  # the text was counted
    (pairs,) = fetched.sources["train"]
    reading = pairs.read()
    next(reading)
    del reading  # as a limit ends it
    assert caplog.messages == ["a.tmx: en is en-US (1 pairs) and en-GB (1 pairs) and EN (1 pairs), de is DE_at"]


def test_units_without_one_of_the_languages_are_counted_with_their_lines(tmp_path: Path) -> None:
    pairs = invented_pairs(300, seed=3)
    units = [[("en", src), ("de", tgt)] for src, tgt in pairs]
    units[7] = units[7][:1]
    units[9] = [("fr", "un"), ("es", "uno")]
    units[11] = [("en", "one"), ("de", " \n ")]
    (tmp_path / "a.tmx").write_text(tmx(units))
    (tmp_path / "v.tmx").write_text(tmx(units[:20]))
    files: dict[Split, list[str]] = {"train": [str(tmp_path / "a.tmx")], "valid": [str(tmp_path / "v.tmx")]}
    overrides = ["tokenizer.vocab_size=400", "cleaning.max_length_ratio=null"]
    corpus = corpus_from_files(files, languages="en-de", name="x", overrides=overrides)
    report = run(corpus, tmp_path / "data", num_workers=2).report
    dropped = report["cleaning"]["dropped"]["no translation"]
    assert dropped["count"] == 3
    assert [one["where"] for one in dropped["examples"]] == ["a.tmx:11", "a.tmx:13", "a.tmx:15"]
    assert report["pairs"] == {"train": 297, "valid": 17}
    assert "A unit or a row of CSV lacks one of the two texts" in (tmp_path / "data" / "report.html").read_text()


def test_xml_with_a_mark_or_wide_letters_is_read_though_its_header_says_otherwise(tmp_path: Path) -> None:
    text, pairs = tmx([[("en", "“it”"), ("de", "„Übel“")]]), [("“it”", "„Übel“")]
    for encoding in ("utf-16", "utf-16-le"):
        assert pairs_of(read(tmp_path / "a.tmx", text.encode(encoding))) == pairs


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        (tmx([[("en", "R&D"), ("de", "b")]]), "is not well-formed XML", 4),
        (tmx([[("en", "“it”"), ("de", "b")]]).encode("windows-1252"), "is not well-formed XML", 4),
        (tmx([[("en", "a"), ("de", "b")]])[:-30], "is not well-formed XML", 4),
        (HEAD.format("UTF-8") + "<a>" * 100_000, "is not well-formed XML", 4),
        ("<html></html>", "is no TMX file: its root is <html>", 1),
        ("en\tde\n", "is not well-formed XML", 1),
    ],
)
def test_what_is_not_tmx_is_answered_with_its_line(tmp_path: Path, text: str | bytes, message: str, line: int) -> None:
    error = error_of(tmp_path / "a.tmx", text)
    assert error.message.startswith(f"a.tmx {message}")
    assert error.where == f"{tmp_path / 'a.tmx'}:{line}"


def test_a_file_without_the_language_is_answered_with_those_that_it_has(tmp_path: Path) -> None:
    units = [[("en-US", "one"), ("fr", "un")], [("en-US", "two"), ("fr", "deux")], [("en-US", "three")]]
    error = error_of(tmp_path / "a.tmx", tmx(units))
    assert error.message == "no unit of a.tmx has a translation in en and de; it has en-US (3), fr (2)"
    assert error.hint == "name two languages that it has with -l, or export it again with its translations"
    assert pairs_of(read(tmp_path / "a.tmx", tmx(units), "en-fr")) == [("one", "un"), ("two", "deux")]
    assert error_of(tmp_path / "a.tmx", tmx([])).message == "a.tmx has no units"


def test_a_language_in_another_script_is_another_language(tmp_path: Path) -> None:
    text = tmx([[("en", "one"), ("zh-TW", "a")]])
    assert error_of(tmp_path / "a.tmx", text, "en-zh").message.endswith("; it has en (1), zh-TW (1)")
    assert pairs_of(read(tmp_path / "a.tmx", text, "en-zh_TW")) == [("one", "a")]


def laughs(kind: str) -> str:
    """An entity that would be a billion words, in the DTD of the file or in an attribute of it."""
    entities = "".join(f'<!ENTITY {kind}a{n} "{f"&a{n - 1};" * 10 if n else "lol"}">\n' for n in range(10))
    head = HEAD.format("UTF-8").replace(' SYSTEM "tmx14.dtd"', f" [\n{entities}]")
    return f'{head}<tu><tuv xml:lang="&a9;"><seg>&a9;</seg></tuv></tu></body></tmx>'


@pytest.mark.parametrize("kind", ["", "% "])
def test_entity_bombs_are_refused_before_they_grow(tmp_path: Path, kind: str) -> None:
    with memory_below(50):
        error = error_of(tmp_path / "a.tmx", laughs(kind))
    assert "declares an entity" in error.message
    assert error.where == f"{tmp_path / 'a.tmx'}:3"


def test_a_dtd_or_entity_outside_of_the_file_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    head = HEAD.format("UTF-8").replace('"tmx14.dtd"', f'"{tmp_path / "secret"}"')
    body = '<tu><tuv xml:lang="en"><seg>a&secret;</seg></tuv><tuv xml:lang="de"><seg>b</seg></tuv></tu></body></tmx>'
    assert pairs_of(read(tmp_path / "a.tmx", head + body)) == [("a&secret;", "b")]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress])
def test_compressed_xml_is_read_whatever_its_name(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    for encoding in ("utf-8", "utf-16"):
        assert pairs_of(read(tmp_path / "a.tmx", compress(tmx_of([("a", "ä")]).encode(encoding)))) == [("a", "ä")]


@pytest.mark.parametrize("begin", ['<tu><tuv xml:lang="en"><seg>', "<!-- "])
def test_a_text_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path, begin: str) -> None:
    head = gzip.compress((HEAD.format("UTF-8") + begin).encode())
    (tmp_path / "a.tmx.gz").write_bytes(head + 300 * gzip.compress(b"word " * 200_000))  # 300 MB
    corpus = located(tmp_path / "a.tmx.gz")
    with memory_below(100):
        error = refusal(lambda: list(read_chunks(fetch_inputs(corpus, progress=silent).sources["train"])))
    assert error.message.startswith("a unit, tag or comment of a.tmx.gz has more than")
    assert error.where in (f"{tmp_path / 'a.tmx.gz'}:1", f"{tmp_path / 'a.tmx.gz'}:4")
    assert error.hint == "give units with one sentence per language"


XLIFF_1 = """\
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file source-language="en-US" target-language="de-DE" original="a" datatype="html"><body>
<trans-unit id="1"><source>Save <g id="1">all</g><x id="2"/><x id="3" equiv-text="&lt;br/&gt;"/>now</source>
<target>Alle<x id="2" equiv-text="&lt;b&gt;"/>s <g id="1">jetzt</g><x id="3" ctype="x-p"/>sichern</target>
<alt-trans><source>Save it</source><target>Sichern</target></alt-trans></trans-unit>
<trans-unit id="2"><source>Open</source></trans-unit>
<trans-unit id="3"><source>Close</source><seg-source>Close it</seg-source><target>Schlie\xdfen</target></trans-unit>
<trans-unit id="4"><source>Quit</source><target/></trans-unit>
</body></file></xliff>
"""
XLIFF_2 = """\
<xliff version="2.0" srcLang="en" trgLang="de" xmlns="urn:oasis:names:tc:xliff:document:2.0"
 xmlns:mtc="urn:oasis:names:tc:xliff:matches:2.0"><file id="f"><unit id="u">
<mtc:matches><mtc:match ref="#1"><source>wrong</source><target>falsch</target></mtc:match></mtc:matches>
<originalData><data id="d">&lt;b&gt;</data></originalData>
<segment><source>A <pc id="1">red</pc> <mrk id="m">dog</mrk>.<ph id="2" subType="xlf:lb"/>Sit!</source>
<target>Ein <pc id="1">roter</pc> Hund. Sitz!</target></segment>
<ignorable><source> </source><target> </target></ignorable>
<segment><source>No target</source></segment>
</unit></file></xliff>
"""


@pytest.mark.parametrize("name", ["a.xlf", "a.xliff"])
def test_xliff_gives_the_sources_and_targets_of_its_units(tmp_path: Path, name: str) -> None:
    (chunk,) = read(tmp_path / name, XLIFF_1)
    assert pairs_of([chunk]) == [("Save all now", "Alles jetzt sichern"), ("Close", "Schlie\xdfen")]
    assert [chunk.where(index) for index in chunk.untranslated] == [f"{name}:6", f"{name}:8"]
    (chunk,) = read(tmp_path / name, XLIFF_2)
    assert pairs_of([chunk]) == [("A red dog. Sit!", "Ein roter Hund. Sitz!")]
    assert [chunk.src[index] for index in chunk.untranslated] == ["No target"]
    assert pairs_of(read(tmp_path / name, XLIFF_2, "de-en")) == [("Ein roter Hund. Sitz!", "A red dog. Sit!")]
    unnamed = XLIFF_1.replace(' target-language="de-DE"', "")
    assert pairs_of(read(tmp_path / name, unnamed))[1] == ("Close", "Schlie\xdfen")


@pytest.mark.parametrize("text", [XLIFF_1, XLIFF_2, tmx([[("en", "a <ph>code</ph>b"), ("de", "c")]])])
def test_elements_with_the_prefix_of_their_namespace_are_read_alike(tmp_path: Path, text: str) -> None:
    file = tmp_path / ("a.tmx" if "<tmx" in text else "a.xlf")
    plain = pairs_of(read(file, text))
    namespace = 'xmlns:y="urn:other" xmlns:x='
    prefixed = re.sub(r"<(/?)(?=[\w-]+[ />])", r"<\1x:", text).replace("xmlns=", namespace)
    prefixed = prefixed.replace("<x:tmx", f'<x:tmx {namespace}"urn:tmx"')
    assert ElementTree.fromstring(prefixed.partition('dtd">\n')[2] or prefixed).tag.startswith("{urn:")
    assert pairs_of(read(file, prefixed)) == plain
    other = "<y:seg>not a text</y:seg><y:target>not a target</y:target>"
    assert pairs_of(read(file, re.sub("(<x:(tu|trans-unit|segment)[ >])", rf"{other}\1", prefixed))) == plain


SDLXLIFF = """\
<xliff xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0" xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2">
<file original="a.docx" datatype="x-sdlfilterframework2" source-language="en-US" target-language="de-DE">
<header><reference><internal-file form="base64">UEsDBA==</internal-file></reference></header><body><group>
<trans-unit id="0"><source>One. Two. Three. Four.</source>
<seg-source><g id="5"><mrk mtype="seg" mid="1">One.</mrk> <mrk mtype="seg" mid="2">Two.</mrk></g>
<mrk mtype="seg" mid="3">Three.</mrk> <mrk mtype="seg" mid="4">Four.</mrk></seg-source>
<target><mrk mtype="seg" mid="2">Z<x id="7"/>wei<mrk mtype="x-sdl-deleted"> Hunde</mrk>.</mrk>
<g id="5"><mrk mtype="seg" mid="1">Eins.</mrk></g><mrk mtype="seg" mid="3"/> <mrk mtype="seg" mid="4">4.</mrk></target>
<sdl:seg-defs><sdl:seg id="1" conf="Translated"/><sdl:seg id="2" conf="ApprovedSignOff"/><sdl:seg id="3"/>
<sdl:seg id="4" conf="Draft"/></sdl:seg-defs></trans-unit></group></body></file></xliff>
"""


def test_a_segmented_unit_of_xliff_gives_a_pair_for_each_segment_that_is_translated(tmp_path: Path) -> None:
    (chunk,) = read(tmp_path / "a.sdlxliff", SDLXLIFF)
    assert pairs_of([chunk]) == [("One.", "Eins."), ("Two.", "Zwei.")]
    assert [chunk.src[index] for index in sorted(chunk.untranslated)] == ["Three.", "Four."]
    unsegmented = re.sub("<target>.*</target>", "<target>Eins. Zwei.</target>", SDLXLIFF, flags=re.DOTALL)
    assert pairs_of(read(tmp_path / "a.sdlxliff", unsegmented)) == [("One. Two. Three. Four.", "Eins. Zwei.")]


@pytest.mark.parametrize(
    ("unit", "target", "is_finished"),
    [
        ("", 'state="new"', False),
        ("", 'state="needs-translation"', False),
        ("", 'state="translated"', True),
        ('approved="no"', 'state="signed-off"', True),
        ('m:status="Pretranslated"', "", False),
        ('m:status="ManuallyConfirmed"', "", True),
        ('m:confirmed="0"', "", False),
        ('m:confirmed="1"', "", True),
    ],
)
def test_translations_of_xliff_that_are_not_finished_are_left_out_and_counted(
    tmp_path: Path, unit: str, target: str, is_finished: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    body = (
        f"<trans-unit id='1' {unit}><source>One</source><target {target}>Eins</target></trans-unit>"
        "<trans-unit id='2'><source>Two</source><target>Zwei</target></trans-unit>"
    )
    text = f'<xliff xmlns:m="urn:m"><file source-language="en" target-language="de"><body>{body}</body></file></xliff>'
    (chunk,) = read(tmp_path / "a.mqxliff", text)
    assert pairs_of([chunk]) == [("One", "Eins"), ("Two", "Zwei")][0 if is_finished else 1 :]
    assert ["1 translations are left out" in message for message in caplog.messages] == [True] * (not is_finished)
    kept = XliffSource(kind="xliff", file=str(tmp_path / "a.mqxliff"), keep_unfinished=True)
    sources = list(kept.fetch(located(tmp_path / "a.mqxliff").context(kept), progress=silent))
    assert len(pairs_of(read_chunks(sources))) == 2


def test_xliff_without_targets_is_refused(tmp_path: Path) -> None:
    error = error_of(tmp_path / "a.xlf", XLIFF_1.replace("target>", "note>").replace("<target/>", ""))
    assert error.message == "no unit of a.xlf has a translation in en and de; it has en-US (4)"


def test_po_in_another_language_is_answered_with_that_language(tmp_path: Path) -> None:
    error = error_of(tmp_path / "a.po", PO.replace("Language: de", "Language: fr_CA"))
    assert error.message == "no unit of a.po has a translation in en and de; it has fr_CA (6)"
    assert len(pairs_of(read(tmp_path / "a.po", PO.replace("Language: de", "Language: fr_CA"), "en-fr"))) == 5


PO = r"""# translators
msgid ""
msgstr ""
"Project-Id-Version: x\n"
"Language: de\n"
"Content-Type: text/plain; charset=UTF-8\n"

#: a.c:3
msgid "Open \"%s\"\n"
msgstr "„%s“ öffnen\n"

#, fuzzy
#| msgid "Old"
msgid "New"
msgstr "Alt"

msgctxt "menu"
msgid ""
"Save "
"all\tfiles"
msgstr ""
"Alle Dateien\n"
"sichern"

msgid "%d dog"
msgid_plural "%d dogs"
msgstr[0] "%d Hund"
msgstr[1] "%d Hunde"

msgid "Todo"
msgstr ""

#~ msgid "Gone"
#~ msgstr "Weg"
msgid "End"
msgstr "Ende"
"""
PO_PAIRS = [
    ('Open "%s"', "„%s“ öffnen"),
    ("Save all files", "Alle Dateien sichern"),
    ("%d dog", "%d Hund"),
    ("%d dogs", "%d Hunde"),
    ("End", "Ende"),
]


def test_po_gives_its_messages_and_leaves_out_the_fuzzy_and_the_untranslated(tmp_path: Path) -> None:
    (chunk,) = read(tmp_path / "a.po", PO)
    assert pairs_of([chunk]) == PO_PAIRS
    assert [(chunk.src[index], chunk.where(index)) for index in sorted(chunk.untranslated)] == [
        ("New", "a.po:12"),
        ("Todo", "a.po:30"),
    ]
    assert pairs_of(read(tmp_path / "a.po", PO, "de-en")) == [(tgt, src) for src, tgt in PO_PAIRS]
    latin = PO.replace("UTF-8", "ISO-8859-1").replace("„", "").replace("“", "").encode("latin-1")
    assert pairs_of(read(tmp_path / "latin.po", latin))[0][1] == "%s öffnen"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.xlf", XLIFF_2.replace("<segment>", '<segment state="initial">')),
        ("a.po", PO.replace("\n\n", "\n\n#, fuzzy\n").replace('msgid "End"', '#, fuzzy\nmsgid "End"')),
        ("a.tmx", tmx_of([("a", "b")]).replace("<tu>", '<tu><prop type="x-ConfirmationLevel">Draft</prop>')),
    ],
)
def test_a_file_of_which_nothing_is_finished_is_answered_with_the_key_that_keeps_it(
    tmp_path: Path, name: str, text: str
) -> None:
    assert "keep_unfinished: true" in error_of(tmp_path / name, text).hint


@pytest.mark.parametrize(
    ("header", "forms", "one", "many"),
    [
        (
            "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5;",
            ["لا ملفات", "ملف واحد", "ملفان", "ملفات", "ملفا", "ملف"],
            "ملف واحد",
            "ملفا",
        ),
        (
            "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);",
            ["plik", "pliki", "plików"],
            "plik",
            "plików",
        ),
        ("nplurals=1; plural=0;", ["ファイル"], "ファイル", "ファイル"),
        ("nplurals=INTEGER; plural=EXPRESSION;", ["Datei", "Dateien"], "Datei", "Dateien"),
        ("nplurals=2; plural=n/0;", ["Datei", "Dateien"], "Datei", "Dateien"),
    ],
    ids=["Arabic", "Polish", "Japanese", "template", "no number"],
)
def test_plurals_of_po_are_the_forms_of_one_and_of_many(
    tmp_path: Path, header: str, forms: list[str], one: str, many: str
) -> None:
    written = "".join(f'msgstr[{number}] "{form}"\n' for number, form in enumerate(forms))
    text = PO[: PO.index("#: a.c")].replace("Language: de", f"Plural-Forms: {header}")
    text += f'msgid "%d file"\nmsgid_plural "%d files"\n{written}'
    assert pairs_of(read(tmp_path / "a.po", text)) == [("%d file", one), ("%d files", many)]


@pytest.mark.parametrize(
    ("text", "line"), [(b"one\ttwo\n", 1), (b'msgid "a"\nmsgid "b"\n', 2), (PO.encode("cp1252"), None)]
)
def test_what_is_not_po_is_answered_with_its_line(tmp_path: Path, text: bytes, line: int | None) -> None:
    error = error_of(tmp_path / "a.po", text)
    assert error.where == f"{tmp_path / 'a.po'}" + (f":{line}" if line else "")
