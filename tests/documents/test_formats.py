"""Documents of text: each comes back with its text translated and all else as it was; bad ones are refused."""

from __future__ import annotations

import html
import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import polib
import pytest
from lxml import etree
from markdown_it import MarkdownIt

from nmt_cli.api import Translator
from nmt_cli.documents.formats import COMMAND_LINE_LIMITS, Limits, read_document
from nmt_cli.documents.marked_text import MarkedText
from nmt_cli.errors import DataError, UsageError
from nmt_cli.recipe.schema import LanguagePair
from nmt_cli.tokenization.pieces import Range
from tests.decoding.trained import HELD_OUT
from tests.forks import Forked, run_forked
from tests.waiting import wait_until

EN_DE = LanguagePair(source="en", target="de")
SENTENCES = [source for source, _ in HELD_OUT]


def upper(content: bytes | str, name: str, *, column: str | None = None) -> str:
    """The document with its text in capitals, but for what is kept."""
    content = content.encode() if isinstance(content, str) else content
    document = read_document(content, name, languages=EN_DE, limits=COMMAND_LINE_LIMITS, column=column)
    blocks = [replace(block, text=_upper(block)) for block in document.blocks]
    return document.write(blocks).decode()


def _upper(block: MarkedText) -> str:
    return "".join(
        character if any(start <= index < end for start, end in block.kept) else character.upper()
        for index, character in enumerate(block.text)
    )


# The text of a reader is in guillemets.
DOCUMENTS = {
    "a.html": """\
<!DOCTYPE html>
<title>«one»</title>
<p class=a>«two» <b>«three»</b>&nbsp;«four»<br>«five»
<script>x()</script><img src=a alt=b> «six»
<p>«one» <a title="5" tall" href=http://x.y/>«two»</a> <i id="x"" title='Bob's'>«three»</i>, <%= user > 1 %> «four»
<p>«one» <ruby>«two»<rp>(</rp><rt>reading</rt><rp>)</rp>«three»<rt>second</ruby> «four»
<p>«five» <code>{n, plural, one {# dog} other {# dogs}}</code>
""",
    "a.xml": """\
<?xml version="1.0"?>
<r>
 <s id="x">«one» <b>«two»</b> &amp; &own;</s>
 <t><![CDATA[«three» & <i>«four»</i>]]></t>
 <string translatable="false">five</string>
 <item>@string/a</item><item>?android:attr/b</item><item>«five @string/a»</item>
</r>
""",
    "a.txt": "«one» <b class=x>«two»</b>\r\n\r\n  «if a <b and c> d» \r\n42\r\n",
    "a.md": """\
---
title: x
---
# «one» *«two»*

- «three» [«four»](a_b.md "t")
- [ ] «five»\x20\x20
  «six» `code` <https://example.org/>[^1]

```sh
code
```

    code

> «one two»

«three» $$ a \\\\ b $$ «four»
$$
a \\
+ b
$$

> $$
> a = b
> $$
> <p>«one»</p>
> <b>«two»</b> «three»

| «three» | **«four»** |
| --- | :-: |
| «five»<br>«six» `<br>` | 6 |
| «six» \\| «seven» | [gallery ids="1,2"] «eight» :smile: [«sic»] 10:30:45 |

<div>«seven»</div>

[«eight»][label] «my_name 2 * 3» <b>«x»</b>

[label]: /u "title"
[^1]: «a note»
[^2]: «One.»

    «two»

> [!NOTE]
> «one»

::: warning
«two»
:::

:::tip «three»
- «four»
:::

!!! note inline "«five»"
    «six»

    - «seven»

??? quote

    «eight»
    ```
    !!! code
    ```

=== "«one»"

    «two»

«three»
: «four»

    «five»

«six»
[TOC]
{: .lead}

[[home page]] «seven» [[page|«eight»]] ![[a.png]] [b]«one»[/b]
""",
    "a.srt": """\
1
00:00:01,000 --> 00:00:02,000
{\\an8}<i>«one two»
«three»</i> «four»

2
00:00:03,000 --> 00:00:04,000
- «five»
- «six»

«seven»
 \t
«eight»
«nine»

3
00:00:05,000 --> 00:00:06,000

«ten»


""",
    "a.vtt": """\
WEBVTT

NOTE one

STYLE
::cue { color: red }

id
00:01.000 --> 00:02.000 align:start
<v Ann>«two» &amp; <00:01.500>«three»
""",
}


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_all_but_the_text_stays(name: str, line_end: str) -> None:
    template = re.sub("\r?\n", line_end, DOCUMENTS[name])
    expected = re.sub("«(.*?)»", lambda text: text[1].upper(), template)
    assert upper(re.sub("[«»]", "", template), name) == expected


@pytest.mark.parametrize("name", ["a.txt", "a.po", "a.xlf"])
def test_the_branches_of_a_plural_are_texts(name: str) -> None:
    file = {
        "a.txt": "%s",
        "a.po": 'msgid "x"\nmsgstr "y"\n\n#, fuzzy\nmsgid "%s"\nmsgstr "%s"\n',
        "a.xlf": '<xliff><file target-language="de"><unit><segment state="translated">'
        "<source>%s</source><target>%s</target></segment></unit></file></xliff>",
    }[name]
    for before, after in (
        (
            "{n, plural,\n =0 {no <b>dogs</b>}\n other {# dogs}}!",
            "{n, plural,\n =0 {NO <b>DOGS</b>}\n other {# DOGS}}!",
        ),
        (
            "Case #5: {who, select, she {she has} other {they have}} {n, plural, one {# dog} other {# dogs}}.",
            "{who, select, she {{n, plural, one {CASE '#'5: SHE HAS # DOG.} other {CASE '#'5: SHE HAS # DOGS.}}}"
            " other {{n, plural, one {CASE '#'5: THEY HAVE # DOG.} other {CASE '#'5: THEY HAVE # DOGS.}}}}",
        ),
    ):
        if name == "a.po":
            before, after = before.replace("\n", "\\n"), after.replace("\n", "\\n")
        source = file.replace("%s", before, 1)
        assert upper(source.replace("%s", ""), name) == (source.replace("%s", after) if "%s" in source else after)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("before", ["", "{}\n", "\n", "\n{}\n", "\n \t\n{} \n"])
@pytest.mark.parametrize(
    ("name", "start"), [("a.srt", "00:00:0{},500 --> 00:00:0{},900"), ("a.vtt", "00:0{}.500 --> 00:0{}.900")]
)
def test_a_cue_ends_where_the_next_one_begins(name: str, start: str, before: str, line_end: str) -> None:
    texts = ["«one\n7\ntwo»\n", "3\n", "", "<i>«three»</i>\n42\n", "- «four»\n- «five»"]
    cues = [f"{before.format(number)}{start.format(number, number)}\n{text}" for number, text in enumerate(texts, 1)]
    template = re.sub("\n", line_end, "WEBVTT\n\n" * (name == "a.vtt") + "".join(cues).lstrip("\n"))
    expected = re.sub("(?s)«(.*?)»", lambda text: text[1].upper(), template)
    assert upper(re.sub("[«»]", "", template), name) == expected


@pytest.mark.parametrize(
    ("cue", "speeches"),
    [
        ("{\\an8}- Hello.\n<i>- There.</i>\n", ["Hello.", "There."]),
        (
            "JOHN: One\ntwo: three.\n<i>DR. ÉVA (off): Four at\n10:30.</i>",
            ["JOHN: One two: three.", "DR. ÉVA (off): Four at 10:30."],
        ),
        ("WE SAW\nTHE SIGN: STOP.\nANN: One.", ["WE SAW THE SIGN: STOP.", "ANN: One."]),
        ("<v Ann>One\ntwo.\n<v.loud Bob>Three.", ["One two.", "Three."]),
        ("<v Ann>One.</v> <v Bob>Two\nthree.</v>", ["One.", "Two three."]),
        ("One.\n\nTwo.\n \n3\n", ["One.", "Two."]),
    ],
)
def test_each_speech_of_a_cue_is_a_text_of_its_own(cue: str, speeches: list[str]) -> None:
    name, header = ("a.vtt", "WEBVTT\n\n") if "<v" in cue else ("a.srt", "1\n")
    file = f"{header}00:00:01,000 --> 00:00:02,000\n{cue}"
    document = read_document(file.encode(), name, languages=EN_DE, limits=COMMAND_LINE_LIMITS)
    assert [block.text for block in document.blocks] == speeches


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("你好，旧的世界。再见", "你好，旧的\n世界。再见"),
        ("古いラーメンです", "古いラー\nメンです"),
        ("alt neu", "alt\nneu"),
        ("alt", "alt"),
    ],
)
def test_a_cue_has_as_many_lines_as_before_in_any_script(text: str, lines: str) -> None:
    cue = "1\n00:00:01,000 --> 00:00:02,000\n<i>{}</i>\n"
    document = read_document(cue.format("one\ntwo").encode(), "a.srt", languages=EN_DE, limits=COMMAND_LINE_LIMITS)
    (block,) = document.blocks
    translation = replace(block, text=text, marks=(replace(block.marks[0], end=len(text)),))
    assert document.write([translation]).decode() == cue.format(lines)


def test_tags_of_webvtt_may_have_classes() -> None:
    cue = b"WEBVTT\n\n00:01.000 --> 00:02.000\n<v.loud Ann>Hi <c.red.big>there</c></v>\n"
    (block,) = read_document(cue, "a.vtt", languages=EN_DE, limits=COMMAND_LINE_LIMITS).blocks
    assert [block.text[mark.start : mark.end] for mark in block.marks] == ["Hi there", "there"]


@pytest.mark.parametrize("beginning", ["5. ", "- ", "* ", "+ ", "# ", "### ", "> ", ">"])
def test_a_translation_begins_no_block_that_its_source_does_not(beginning: str) -> None:
    document = read_document(b"> *May* 5, 2024\n", "a.md", languages=EN_DE, limits=COMMAND_LINE_LIMITS)
    translation = replace(document.blocks[0], text=f"{beginning}Mai", marks=())
    escaped = "5\\. " if beginning == "5. " else f"\\{beginning}"
    assert document.write([translation]).decode() == f"> {escaped}Mai\n"
    assert upper("1\\. one\n", "a.md") == "1\\. ONE\n"


def test_a_paragraph_of_markdown_is_one_block() -> None:
    text = "> one\n> *two\n> three*\n\nSee [the page].\n\n[the page]: /u\n"
    assert upper(text, "a.md") == "> ONE *TWO THREE*\n\nSEE [THE PAGE][the page].\n\n[the page]: /u\n"


def test_characters_that_markdown_escapes_are_part_of_the_text() -> None:
    text = "| one \\| two |\n| --- |\n\nIt\\'s my\\_name, 2 \\* \\$3.\n"
    blocks = read_document(text.encode(), "a.md", languages=EN_DE, limits=COMMAND_LINE_LIMITS).blocks
    assert [block.text for block in blocks] == ["one | two", "It's my_name, 2 * $3."]
    assert upper(text, "a.md") == text.upper().replace("\\'", "'")


@pytest.mark.parametrize(
    ("source", "text", "emphasis", "expected"),
    [
        ("**Note:** go", "注意：请", (0, 3), "<strong>注意：</strong>请"),
        ("a _very_ b", "这非常好", (1, 3), "这<em>非常</em>好"),
        ("a **very** b", "这非常好", (1, 3), "这<strong>非常</strong>好"),
        ("a ***very*** b", "sogut", (2, 2), "so<em><strong></strong></em>gut"),
        ("b 2*(a+b)*c", "b 2(A+B)C", (3, 8), "b 2*(A+B)*C"),
    ],
)
def test_emphasis_is_seen_beside_letters(source: str, text: str, emphasis: Range, expected: str) -> None:
    document = read_document(source.encode(), "a.md", languages=EN_DE, limits=COMMAND_LINE_LIMITS)
    (block,) = document.blocks
    mark = replace(block.marks[0], start=emphasis[0], end=emphasis[1])
    written = document.write([replace(block, text=text, marks=(mark,))]).decode()
    assert MarkdownIt("commonmark").render(written).strip() == f"<p>{expected}</p>"


def test_brackets_that_are_no_link_are_part_of_the_text() -> None:
    text = "Use x[i] of [one] by @bot[bot].\n\n[one]: /u\n"
    document = read_document(text.encode(), "a.md", languages=EN_DE, limits=COMMAND_LINE_LIMITS)
    assert [block.text for block in document.blocks] == ["Use x[i] of one by @bot[bot]."]
    assert upper(text, "a.md") == "USE X[I] OF [ONE][one] BY @BOT[BOT].\n\n[one]: /u\n"


@pytest.mark.parametrize("name", ["a.md", "a.txt"])
def test_references_outside_of_markup_are_the_characters_that_they_stand_for(name: str) -> None:
    text = "&nbsp;It&#8217;s caf&eacute; &amp; 10&nbsp;km &foo;\n"
    (block,) = read_document(text.encode(), name, languages=EN_DE, limits=COMMAND_LINE_LIMITS).blocks
    assert block.text == "It’s café & 10\xa0km"
    assert upper(text, name) == "&nbsp;IT’S CAFÉ &amp; 10\xa0KM &foo;\n"


def test_a_footnote_or_a_definition_is_the_text_beside_its_mark() -> None:
    text = b"[^1]: One\n    two.\n\nTerm\n: Three\n  four.\n"
    blocks = read_document(text, "a.md", languages=EN_DE, limits=COMMAND_LINE_LIMITS).blocks
    assert [block.text for block in blocks] == ["One two.", "Term", "Three four."]


CSV = 'id,text,note\r\n1,"one, ""two""",x\r\n2,three <b>four</b>,"y\nz"\r\n3,"five\nsix",\r\n'


def test_a_row_with_too_many_cells_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert upper(CSV, "a.csv", column="text")
    assert not caplog.messages
    upper('id,text\r\n1,"one,\r\ntwo"\r\n2,three, four\r\n', "a.csv", column="text")
    assert "a.csv: line 4 has more cells" in caplog.text


def test_a_column_of_a_table_is_translated() -> None:
    after = 'id,text,note\r\n1,"ONE, ""TWO""",x\r\n2,THREE <b>FOUR</b>,"y\nz"\r\n3,"FIVE\nSIX",\r\n'
    assert upper(CSV, "a.csv", column="text") == after
    assert upper('1\tone "two"\n2\t"three\tfour"\n', "a.tsv", column="2") == '1\tONE "TWO"\n2\t"THREE FOUR"\n'
    assert upper("text\none\n", "a.csv") == "text\nONE\n"
    # As Excel writes it.
    assert upper("sep=|\r\nid|text\r\n1|one, two\r\n", "a.csv", column="text") == "sep=|\r\nid|text\r\n1|ONE, TWO\r\n"
    # A translation with a comma needs quotes.
    document = read_document(b"text;n\none;1\n", "a.csv", languages=EN_DE, limits=COMMAND_LINE_LIMITS, column="text")
    assert document.write([replace(document.blocks[0], text="eins; zwei")]) == b'text;n\n"eins; zwei";1\n'
    with pytest.raises(DataError, match="has the columns id, text, note, and no texts"):
        upper(CSV, "a.csv", column="texts")
    with pytest.raises(DataError, match="has the columns id, text, note"):
        upper(CSV, "a.csv")


PO = """# My program
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\\n"

#: main.c:3
#, c-format
msgid "%s <b>{0}</b> & \\"{1}\\""
msgstr ""

msgid ""
"{2}\\n"
"{3}\\n"
msgstr ""

msgid "{4}"
msgid_plural "%d {5}"
msgstr[0] ""
msgstr[1] ""

#, fuzzy
msgid "done"
msgstr "fertig"

#~ msgid "old"
#~ msgstr ""
"""


def test_files_of_python_have_columns_by_number_and_keep_their_kind(tmp_path: Path, translator: Translator) -> None:
    (tmp_path / "a.csv").write_text(f"1,{SENTENCES[0]}\n")
    translator.translate_file(tmp_path / "a.csv", tmp_path / "b.csv", column=2)
    (translation,) = translator.translate(SENTENCES[:1])
    assert (tmp_path / "b.csv").read_text() == f"1,{translation.text}\n"
    for name in ("b.docx", "b.tsv", "b.txt", "a.csv"):
        with pytest.raises(UsageError):
            translator.translate_file(tmp_path / "a.csv", tmp_path / name, column=2)
    assert (tmp_path / "a.csv").read_text() == f"1,{SENTENCES[0]}\n"
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "b.csv"}


def test_a_document_without_text_is_told(
    tmp_path: Path, model: Path, translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    for name, target, text in (
        ("a.srt", "b.srt", "1\n00:00:01,000 -> 00:00:02,000\nHello.\n"),
        ("a.pot", "b.po", 'msgid "one"\nmsgstr "eins"\n'),
        ("a.htm", "b.html", "<p>42</p>"),
    ):
        (tmp_path / name).write_text(text)
        translator.translate_file(tmp_path / name, tmp_path / target)
        assert (tmp_path / target).read_text() == text
        assert f"{name} has no text to translate" in caplog.text
    assert "a.srt has no text to translate" in run(tmp_path, model, "a.srt").stderr


def test_the_messages_of_a_program_are_filled_in(tmp_path: Path, translator: Translator) -> None:
    (tmp_path / "my.pot").write_text(PO.format(*SENTENCES))
    translator.translate_file(tmp_path / "my.pot", tmp_path / "de.po")
    before, after = polib.pofile(str(tmp_path / "my.pot")), polib.pofile(str(tmp_path / "de.po"))
    assert [entry.msgid for entry in before] == [entry.msgid for entry in after]
    first, lines, plural, done = (entry for entry in after if not entry.obsolete)
    assert first.msgstr.startswith("%s <b>")
    assert first.msgstr.count("</b>") == 1
    texts = [translation.text for translation in translator.translate(SENTENCES[2:5])]
    assert lines.msgstr == f"{texts[0]}\n{texts[1]}\n"
    assert plural.msgstr_plural[0] == texts[2]
    assert "%d" in plural.msgstr_plural[1]
    assert (done.msgstr, done.fuzzy) == ("fertig", True)
    assert first.flags == ["fuzzy", "c-format"]
    assert lines.fuzzy
    assert plural.fuzzy
    changed = {*(tmp_path / "de.po").read_text().splitlines()} - {*PO.format(*SENTENCES).splitlines()}
    assert all(line.startswith(("msgstr", '"', "#, fuzzy")) for line in changed)


def test_the_only_plural_form_translates_the_plural() -> None:
    text = (
        'msgid "{} dog"\nmsgid_plural "{} dogs"\nmsgstr[0] ""\n\nmsgid "{} cat"\nmsgid_plural "{} cats"\nmsgstr[0] ""\n'
    )
    assert re.findall(r'msgstr\[0\] "(.*)"', upper(text, "a.po")) == ["{} DOGS", "{} CATS"]


def test_messages_keep_the_ends_of_their_lines() -> None:
    text = 'msgid ""\r\n"one\\n"\r\n"two\\n"\r\nmsgstr '
    assert upper(f'{text}""\r\n', "a.po") == f'#, fuzzy\r\n{text}""\r\n"ONE\\n"\r\n"TWO\\n"\r\n'


XLIFF = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
 <file source-language="en-US" original="a" datatype="html">
  <body>
   <trans-unit id="1">
    <source>one <g id="1">two</g> <x id="2"/>&amp; three</source>{target}
    <alt-trans><source>x</source><target>y</target></alt-trans>
   </trans-unit>
   <trans-unit id="2">
    <source>four <bpt id="1">&lt;b></bpt>five<ept id="1">&lt;/b></ept></source><target state="new"/>
   </trans-unit>
   <trans-unit id="3"><source>six</source><target state="translated">sechs</target></trans-unit>
   <trans-unit id="4" translate="no"><source>seven</source></trans-unit>
   <trans-unit id="5">
    <source>eight <![CDATA[<b>nine</b> & ten]]></source><target><![CDATA[{cdata}]]></target>
   </trans-unit>
  </body>
 </file>
</xliff>
"""


def test_translations_stand_beside_their_source() -> None:
    review = ' state="needs-review-translation"'
    target = f'\n    <target{review}>ONE <g id="1">TWO</g> <x id="2"/>&amp; THREE</target>'
    after = XLIFF.format(target=target, cdata="acht").replace("<file ", '<file target-language="de" ')
    five = 'FOUR <bpt id="1">&lt;b></bpt>FIVE<ept id="1">&lt;/b></ept>'
    after = after.replace('<target state="new"/>', f"<target{review}>{five}</target>")
    assert upper(XLIFF.format(target="", cdata="acht"), "a.xlf") == after
    nine = f"<target{review}>EIGHT <![CDATA[<b>NINE</b> & TEN]]></target>"
    assert upper(XLIFF.format(target="", cdata=" "), "a.xlf") == after.replace(
        "<target><![CDATA[acht]]></target>", nine
    )
    broken = XLIFF.format(target="", cdata="").replace('<x id="2"/>&amp;', "<ph>&lt;br/></ph>").encode()
    blocks = read_document(broken, "a.xlf", languages=EN_DE, limits=COMMAND_LINE_LIMITS).blocks
    assert [block.text for block in blocks][:2] == ["one two", "three"]
    segment = '<segment{} id="s"><source>one <pc id="1">two</pc><ph id="2"/></source>{}</segment>'
    second = '<xliff version="2.0" srcLang="en"{}><file id="f"><unit id="u">{}</unit></file></xliff>'
    target = '<target>ONE <pc id="1">TWO</pc><ph id="2"/></target>'
    after = second.format("", segment.format(' state="translated"', target)).replace("<xliff ", '<xliff trgLang="de" ')
    for state in ("", ' state="initial" subState="x:y"'):
        assert upper(second.format("", segment.format(state, "")), "a.xliff") == after
    unit = '<tu>\n  <tuv xml:lang="en-GB">\n   <seg>one <ph x="1">{{1}}</ph></seg>\n  </tuv>{}\n </tu>'
    memory = '<tmx version="1.4"><header srclang="en"/><body>\n ' + unit + "\n</body></tmx>"
    added = '\n  <tuv xml:lang="de">\n   <seg>ONE <ph x="1">{1}</ph></seg>\n  </tuv>'
    assert upper(memory.format(""), "a.tmx") == memory.format("X").replace("X", added)
    with pytest.raises(DataError, match=r"has no text in en, .* its languages are fr"):
        upper(memory.format("").replace("en-GB", "fr"), "a.tmx")


def test_a_segment_without_a_translation_stands_beside_others() -> None:
    segment = '<mrk mtype="seg" mid="{}">{}</mrk>'
    texts = [segment.format(number, text) for number, text in enumerate(("One.", "Two.", "3", "Four."), 1)]
    unit = (
        "<trans-unit{}><source>One. Two. 3 Four.</source><seg-source>{}</seg-source><target{}>{}</target></trans-unit>"
    )
    file = "<xliff><file target-language='de'><body>{}</body></file></xliff>"
    before = [segment.format(1, "Eins."), '<mrk mtype="seg" mid="2"/>', texts[2], texts[3]]
    after = [before[0], segment.format(2, "TWO."), texts[2], segment.format(4, "FOUR.")]
    review = ' state="needs-review-translation"'
    for places in ("{}{}{}{}", "<g>{} {}</g> {} {}"):
        old = file.format(unit.format("", places.format(*texts), "", places.format(*before)))
        new = file.format(unit.format("", places.format(*texts), review, places.format(*after)))
        assert upper(old, "a.sdlxliff") == new
        for finished in (old.replace("<trans-unit>", '<trans-unit approved="yes">'), new):
            assert upper(finished, "a.sdlxliff") == finished


@pytest.mark.parametrize("approval", ['approved="yes"', 'm:confirmed="1"', 'm:locked="true"', 'mq:status="Proofread"'])
def test_an_approved_translation_that_equals_its_source_stays(approval: str) -> None:
    unit = '<trans-unit id="1" {}><source>Download Manager</source><target>Download Manager</target></trans-unit>'
    file = f"<xliff><file><body>{unit}</body></file></xliff>"
    assert upper(file.format(approval), "a.mxliff") == file.format(approval)
    assert "DOWNLOAD MANAGER" in upper(file.format('approved="no" m:confirmed="0" m:locked="false"'), "a.mxliff")
    untranslated = file.format(approval).replace("<target>Download Manager", "<target>")
    assert 'approved="yes"' not in upper(untranslated, "a.mxliff")


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("a.html", '<meta charset="iso-8859-1"><p>caf\xe9 \u20ac', "cp1252"),
        ("a.xml", '<?xml version="1.0" encoding="ISO-8859-2"?><r>\u0159e\u010d</r>', "iso8859-2"),
        ("a.xml", '<?xml version="1.0" encoding="UTF-16"?><r>one</r>', "utf-16"),
        ("a.txt", 'one <meta charset="latin-1"> caf\xe9 "Content-Type: text/plain; charset=latin-1"', "utf-8"),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\ncaf\xe9\n", "utf-8-sig"),
        ("a.po", 'msgid ""\nmsgstr "Content-Type: text/plain; charset=utf-8\\n"\n', "utf-8"),
        ("a.html", "<meta charset=Shift_JIS><p>①", "cp932"),
        ("a.html", "<meta charset=windows-31j><p>①", "cp932"),
        ("a.html", "<meta charset=x-sjis><p>①", "cp932"),
        ("a.html", "<meta charset=euc-kr><p>똠", "cp949"),
        ("a.html", "<meta charset=windows-949><p>똠", "cp949"),
        ("a.html", "<meta charset=Big5><p>嘅", "big5hkscs"),
        ("a.html", "<meta charset=x-gbk><p>丂", "gb18030"),
        ("a.html", "<meta charset=TIS-620><p>ก…", "cp874"),
        ("a.html", "<meta charset=windows-874><p>ก…", "cp874"),
        ("a.html", "<meta charset=iso-8859-8-i><p>א", "iso8859-8"),
    ],
)
def test_a_file_keeps_its_encoding(name: str, text: str, encoding: str) -> None:
    content = text.encode(encoding)
    document = read_document(content, name, languages=EN_DE, limits=COMMAND_LINE_LIMITS)
    assert document.write(document.blocks) == content
    assert all(block.text in text for block in document.blocks)


def test_what_an_encoding_lacks_is_a_reference_in_markup() -> None:
    document = read_document(b"<meta charset=latin1><p>one", "a.html", languages=EN_DE, limits=COMMAND_LINE_LIMITS)
    assert (
        document.write([replace(document.blocks[0], text="\u0159e\u010d")]) == b"<meta charset=latin1><p>&#345;e&#269;"
    )


@pytest.mark.parametrize("encoding", ["ISO-8859-1", "US-ASCII", "GB2312", "UTF-8", "CHARSET"])
@pytest.mark.parametrize("text", ["„één“ – 5 €", "“一”——…"])
def test_other_programs_read_the_text_of_an_encoding_that_lacks_it(encoding: str, text: str) -> None:
    if encoding != "CHARSET":
        page = f'<?xml version="1.0" encoding="{encoding}"?><r>one</r>'.encode()
        document = read_document(page, "a.xml", languages=EN_DE, limits=COMMAND_LINE_LIMITS)
        assert etree.fromstring(document.write([replace(document.blocks[0], text=text)])).text == text
    messages = f'msgid ""\nmsgstr "Content-Type: text/plain; charset={encoding}\\n"\n\nmsgid "one"\nmsgstr ""\n'
    document = read_document(messages.encode(), "a.po", languages=EN_DE, limits=COMMAND_LINE_LIMITS)
    written = polib.pofile(document.write([replace(document.blocks[0], text=text)]).decode())
    assert (written[0].msgstr, written.metadata["Content-Type"]) == (text, "text/plain; charset=UTF-8")


def test_only_a_file_of_utf8_is_taken_for_windows_1252() -> None:
    for declaration, hint in ((b"", "if it is Windows-1252"), (b"<meta charset=euc-kr>", "convert the file to UTF-8")):
        with pytest.raises(DataError, match=r"line 1 of a.html is not") as refused:
            read_document(declaration + b"<p>\xff", "a.html", languages=EN_DE, limits=COMMAND_LINE_LIMITS)
        assert refused.value.hint.startswith(hint)


def zipped(entries: Mapping[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in entries.items():
            opened.writestr(name, content)
    return written.getvalue()


SMALL = Limits(max_bytes=100_000, max_entries=20, max_unpacked_bytes=1_000_000)
BODY = b"<w:document><w:body><w:p><w:r><w:t>one</w:t></w:r></w:p></w:body></w:document>"
BAD: dict[str, tuple[str, bytes, str]] = {
    "a zip bomb": ("a.docx", zipped({"word/document.xml": b" " * 2_000_000}), "too large: its files have 2,000,000"),
    "many files": ("a.docx", zipped({f"{number}": b"" for number in range(30)}), "too large: it has 30 files"),
    "a large file": ("a.txt", b"a" * 200_000, "too large: it has 200,000 bytes"),
    "no zip": ("a.docx", b"PK\3\4 and no more", "cannot be opened"),
    "a cut zip": ("a.docx", zipped({"word/document.xml": BODY * 99})[:-40], "cannot be opened"),
    "an empty zip": ("a.odt", b"", "cannot be opened"),
    "another ending": ("a.odt", zipped({"word/document.xml": BODY}), "has no content.xml"),
    "a document as text": ("a.html", zipped({"word/document.xml": BODY}), "is a document, not text"),
    "no ending": ("a.pdf", b"%PDF-1.4", "no ending of a document"),
    "bytes": ("a.md", b"one\0\1\2\3two", "not text"),
    "another encoding": ("a.txt", "one\ncaf\xe9\n".encode("latin-1"), "line 2 of a.txt is not UTF-8"),
    "no XLIFF": ("a.xlf", b"<html></html>", "is no XLIFF file"),
    "PO of another language": ("a.po", b'msgid ""\nmsgstr ""\n"Language: fr\\n"\n', "is to be translated into fr"),
    "XLIFF of other languages": ("a.xlf", b'<xliff><file source-language="ja"/></xliff>', "translated from ja"),
    "a column that is not there": ("a.csv", b"a,b\n1,2\n", "has the columns a, b"),
    "no PO": ("a.po", b"one\n", "is not PO"),
    "a column of a page": ("a.html", b"", "has no columns"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_in_a_sentence(case: str) -> None:
    name, content, message = BAD[case]
    with pytest.raises(DataError, match=message) as refused:
        read_document(content, name, languages=EN_DE, limits=SMALL, column="x" if "column" in case else None)
    assert refused.value.hint


@pytest.mark.parametrize("name", ["a.html", "a.xml", "a.xlf", "a.tmx", "a.md"])
def test_deep_and_broken_markup_is_read_in_a_moment(name: str) -> None:
    root = {"a.xlf": "xliff", "a.tmx": "tmx"}.get(name, "r")
    unit = '<tu><tuv xml:lang="en"><seg>one</seg></tuv></tu>'
    deep = f"<{root}>{'<g>' * 10_000}one{'</g>' * 10_000}{'<b>' * 10_000}{unit}{'<' * 10_000}</{root}>"
    deep += "\n" + ": " * 3000 + "two\n" if name == "a.md" else ""
    bomb = '<!DOCTYPE r [<!ENTITY a "one"><!ENTITY b "&a;&a;">]>' + deep.replace("one", "one &b;&b;", 1)
    found = html.unescape(upper(bomb, name)).lower()
    assert found.replace('<tuv xml:lang="de"><seg>one</seg></tuv>', "") == bomb.lower()


COMMAND = [sys.executable, "-m", "nmt_cli", "decode", "--device", "cpu", "--threads", "1"]


def run(folder: Path, model: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked([*COMMAND, "-m", str(model), *arguments], cwd=folder)


@pytest.mark.slow
def test_a_killed_translation_of_a_document_continues(tmp_path: Path, model: Path) -> None:
    # A little more than the blocks that are translated together.
    lines = [f"<p>{sentence.replace(' ', ' <b>', 1)}</b></p>" for sentence in (SENTENCES * 3)[:1100]]
    (tmp_path / "page.html").write_text("\n".join(lines), encoding="utf-8")
    options = ("page.html", "--beam", "1", "-o")
    assert run(tmp_path, model, *options, "whole.html").returncode == 0
    process = Forked[bytes]([*COMMAND, "-m", str(model), *options, "seite.html"], cwd=tmp_path)
    partial = tmp_path / "seite.html.partial"
    wait_until(lambda: partial.exists() and partial.stat().st_size, process=process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    rows = [json.loads(row) for row in partial.read_text(encoding="utf-8").splitlines()]
    assert 0 < len(rows) < len(lines)
    continued = run(tmp_path, model, *options, "seite.html")
    assert continued.returncode == 0
    assert f"has {len(rows):,} lines: going on after them" in continued.stderr
    assert (tmp_path / "seite.html").read_bytes() == (tmp_path / "whole.html").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "seite.html", "whole.html"]


def test_the_command_takes_a_file_by_its_ending(tmp_path: Path, model: Path) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES[:3]))
    (tmp_path / "table.csv").write_text("id,text\n1,Today the dog sees a house.\n")
    by_option = run(tmp_path, model, "-i", "lines.txt")
    assert run(tmp_path, model, "lines.txt").stdout == by_option.stdout
    (tmp_path / "tags.txt").write_text("Today the <b>dog</b> sees a house.\n\n")
    assert re.fullmatch(r"Heute .*<b>.*Hund</b>.*\n\n", run(tmp_path, model, "tags.txt").stdout)
    (tmp_path / "page.txt").write_text("<!DOCTYPE html>\n<p>one")
    table = run(tmp_path, model, "table.csv", "--column", "text")
    assert table.stdout.startswith("id,text\n1,Heute ")
    (tmp_path / "terms.tsv").write_text(f"house\t{'Haus' * 200}\n")
    lacking = run(tmp_path, model, "table.csv", "--column", "text", "--terms", "terms.tsv")
    assert "the text 'Today the dog sees a house.' lacks the translation of 'house'" in lacking.stderr
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "old.html").write_bytes(b"<p>caf\xe9")
    iconv = "iconv -f WINDOWS-1252 -t UTF-8"
    refusals = {
        ("table.csv",): "fix:   say which one to translate: --column text",
        ("table.csv", "--column", "txt"): "fix:   say which one to translate: --column text",
        ("table.csv", "-i", "lines.txt"): "fix:   give one: a document or text as FILE, or text with -i FILE",
        ("table.csv", "--format", "jsonl"): "fix:   leave --format out, or give lines of text with -i",
        ("table.csv", "--nbest", "2"): "fix:   leave --nbest out, or give lines of text with -i",
        ("table.csv", "--errors", "replace"): "fix:   leave --errors out, or give lines of text with -i",
        ("missing.html",): "fix:   check the path",
        ("in/old.html",): f"fix:   if it is Windows-1252: {iconv} in/old.html > in/utf8-old.html",
        ("table.csv", "-o", "table.docx"): "fix:   write it to translated.csv",
        ("lines.txt", "-o", "lines.md"): "fix:   write it to translated.txt",
        ("-i", "table.csv"): "fix:   give it as a document, with its ending: nmt decode table.csv -o NEW",
        ("page.txt",): "fix:   give it as a document, with its ending: nmt decode FILE -o NEW",
        ("-i", "lines.txt", "--column", "1"): "fix:   give a CSV or TSV file without -i: nmt decode FILE --column NAME",
    }
    for arguments, fix in refusals.items():
        refused = run(tmp_path, model, *arguments)
        assert refused.returncode in (2, 4)
        assert refused.stderr.splitlines()[-1] == fix
