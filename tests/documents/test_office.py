"""Office files of other programs' libraries come back translated, open there, and differ in their text alone."""

from __future__ import annotations

import io
import re
import time
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import docx
import pytest
from docx.document import Document as WordDocument
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree
from odf.draw import Frame, TextBox
from odf.opendocument import OpenDocumentText, load
from odf.style import Style, TextProperties
from odf.teletype import extractText
from odf.text import A, H, LineBreak, List, ListItem, Note, NoteBody, NoteCitation, P, Span, Tab
from pptx import Presentation
from pptx.util import Inches

from nmt_cli.api import Translator
from nmt_cli.documents.encoding import Encoding
from nmt_cli.documents.formats import COMMAND_LINE_LIMITS, TextDocument, read_document
from nmt_cli.documents.office import WORD, office_parts
from nmt_cli.tokenization.pieces import Range
from tests.documents.test_formats import BODY, EN_DE, SENTENCES, zipped
from tests.documents.test_markup import reordered


def plain(translator: Translator, *texts: str) -> list[str]:
    return [translation.text for translation in translator.translate(texts, copy_symbols=True)]


def entries(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def without_text(xml: bytes) -> list[str]:
    """The tags of a document, apart from those of runs, which may be divided anew."""
    tags = re.findall(rb"<[^<>]+>", xml)
    return [tag.decode() for tag in tags if not re.match(rb"</?w:(?:r|t|rPr)\b", tag)]


def word_document(path: Path) -> WordDocument:
    """A document with what Word writes: headings, runs of a word, styles, a table, a header, tabs and breaks."""
    document = docx.Document()
    document.add_heading(SENTENCES[0], 1)
    paragraph = document.add_paragraph()
    first, rest = SENTENCES[1].split(" ", 1)
    for piece in (first[:2], first[2:]):  # as after an edit
        paragraph.add_run(piece)
    paragraph.add_run(" ")
    run = paragraph.add_run(rest.split(" ", 1)[0])
    run.bold = True
    paragraph.add_run(f" {rest.split(' ', 1)[1]}")
    lines = document.add_paragraph(SENTENCES[2])
    lines.add_run("\t")
    lines.add_run(SENTENCES[3]).italic = True
    lines.add_run().add_break()
    lines.add_run(SENTENCES[4])
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = SENTENCES[5], "42"
    document.sections[0].header.paragraphs[0].text = SENTENCES[6]
    document.add_paragraph(SENTENCES[7], style="List Bullet")
    document.save(str(path))
    return document


def test_a_word_document_comes_back_translated(tmp_path: Path, translator: Translator) -> None:
    old = word_document(tmp_path / "letter.docx")
    translator.translate_file(tmp_path / "letter.docx", tmp_path / "brief.docx")
    new = docx.Document(str(tmp_path / "brief.docx"))
    expected = plain(translator, *SENTENCES[:8])
    texts = [paragraph.text for paragraph in new.paragraphs]
    assert texts == [expected[0], expected[1], f"{expected[2]}\t{expected[3]}\n{expected[4]}", expected[7]]
    assert [one.style and one.style.name for one in new.paragraphs] == [
        one.style and one.style.name for one in old.paragraphs
    ]
    cells = [cell.text for cell in new.tables[0].rows[0].cells]
    assert cells == [expected[5], "42"]
    assert new.sections[0].header.paragraphs[0].text == expected[6]
    bold = [run.text for run in new.paragraphs[1].runs if run.bold]
    assert len(bold) == 1
    assert bold[0].strip() in expected[1]
    assert [run.text for run in new.paragraphs[2].runs if run.italic] == [expected[3]]
    before, after = (entries((tmp_path / name).read_bytes()) for name in ("letter.docx", "brief.docx"))
    assert list(before) == list(after)
    for name, content in before.items():
        if name in ("word/document.xml", "word/header1.xml"):
            assert without_text(content) == without_text(after[name])
        else:
            assert content == after[name]


def word(short: str) -> str:
    """The XML of Word: [text] stands for a run of text, {text} for text in it, and the prefix w: is added."""
    short = (
        short.replace("[", "<r>{").replace("]", "}</r>").replace("{", '<t xml:space="preserve">').replace("}", "</t>")
    )
    return re.sub(r"(</?(?=[A-Za-z]+[\s/>])|\s(?=[A-Za-z]+=))", r"\1w:", short)


@pytest.mark.parametrize(
    ("paragraph", "text", "expected"),
    [
        pytest.param(
            '<r rsidR="00A1"><rPr><lang val="en-US"/></rPr>{Hel}</r><proofErr type="spellStart"/>[lo ]'
            "<r><rPr><b/></rPr>{you}</r>",
            "Hello you",
            '<r><rPr><lang val="en-US"/></rPr>{HELLO }</r><r><rPr><b/></rPr>{YOU}</r>',
            id="runs that look the same are one",
        ),
        pytest.param(
            '<hyperlink r:id="rId4"><r><rPr><rStyle val="Hyperlink"/></rPr>{a link}</r></hyperlink>'
            '<r>{, a note}<footnoteReference id="2"/>{.}</r>',
            "a link, a note.",
            '<hyperlink r:id="rId4"><r><rPr><rStyle val="Hyperlink"/></rPr>{A LINK}</r></hyperlink>'
            '[, A NOTE]<r><footnoteReference id="2"/></r>[.]',
            id="links and notes",
        ),
        pytest.param(
            '[page ]<r><fldChar fldCharType="begin"/></r><r><instrText> PAGE </instrText></r>'
            '<r><fldChar fldCharType="separate"/></r>[3]<r><fldChar fldCharType="end"/></r>'
            '<del id="1"><r><delText>gone</delText></r></del>',
            "page 3",
            '[PAGE ]<r><fldChar fldCharType="begin"/></r><r><instrText> PAGE </instrText></r>'
            '<r><fldChar fldCharType="separate"/></r>[3]<r><fldChar fldCharType="end"/></r>'
            '<del id="1"><r><delText>gone</delText></r></del>',
            id="fields and deletions",
        ),
        pytest.param(
            "[the box]<r><mc:AlternateContent><mc:Choice><txbxContent><p>[inside]</p></txbxContent></mc:Choice>"
            "</mc:AlternateContent></r>",
            "the box|inside",
            "[THE BOX]<r><mc:AlternateContent><mc:Choice><txbxContent><p>[INSIDE]</p></txbxContent></mc:Choice>"
            "</mc:AlternateContent></r>",
            id="paragraphs in a text box",
        ),
        pytest.param("<r>{two}<noBreakHyphen/>{24}</r>", "two\u201124", "[TWO\u201124]", id="hyphens"),
        pytest.param(
            "[one ]<r><rPr><b/></rPr><ruby><rubyPr/><rt>[reading]</rt><rubyBase>[two]</rubyBase></ruby></r>",
            "one two",
            "[ONE ]<r><rPr><b/></rPr><ruby><rubyPr/><rt>[reading]</rt><rubyBase>[TWO]</rubyBase></ruby></r>",
            id="readings above words",
        ),
    ],
)
def test_paragraphs_as_word_writes_them(tmp_path: Path, paragraph: str, text: str, expected: str) -> None:
    word_document(tmp_path / "x.docx")
    content = with_paragraph((tmp_path / "x.docx").read_bytes(), word(paragraph))
    document = read_document(content, "x.docx", languages=EN_DE, limits=COMMAND_LINE_LIMITS)
    assert "|".join(block.text for block in document.blocks) == text
    written = document.write([replace(block, text=block.text.upper()) for block in document.blocks])
    assert f"<w:p>{word(expected)}</w:p>" in entries(written)["word/document.xml"].decode()


def test_a_space_beside_a_long_link_does_not_look_like_it() -> None:
    link = '<hyperlink r:id="rId4"><r><rPr><rStyle val="Hyperlink"/></rPr>{%s}</r></hyperlink>'
    xml = word(f"<p>[See ]{link % 'a rather long link'}[ now]</p>")
    document = TextDocument(Encoding("utf-8"), *office_parts(xml, WORD))
    written = document.write([reordered(block, sorted) for block in document.blocks])
    assert written.decode() == word(f"<p>[SEE ]{link % 'A RATHER LONG LINK'}[ NOW]</p>")


def test_a_document_of_word_online_is_read() -> None:
    content = zipped({"word/document2.xml": BODY, "word/footnotes2.xml": BODY})
    document = read_document(content, "x.docx", languages=EN_DE, limits=COMMAND_LINE_LIMITS)
    assert [block.text for block in document.blocks] == ["one", "one"]


def test_readings_above_words_stay_in_an_open_document() -> None:
    ruby = "<text:ruby><text:ruby-base>{}</text:ruby-base><text:ruby-text>reading</text:ruby-text></text:ruby>"
    xml = f"<text:p>one {ruby} three</text:p>"
    content = zipped({"content.xml": xml.format("two").encode()})
    document = read_document(content, "x.odt", languages=EN_DE, limits=COMMAND_LINE_LIMITS)
    assert [block.text for block in document.blocks] == ["one two three"]
    written = document.write([replace(block, text=block.text.upper()) for block in document.blocks])
    assert entries(written)["content.xml"].decode() == xml.format("TWO").replace("one", "ONE").replace("three", "THREE")


def test_thousands_of_notes_are_written_in_a_moment() -> None:
    notes = [[f"<note>{number:0100}</note>"] for number in range(20_000)]
    document = TextDocument(Encoding("utf-8"), [f"\0{number}\0" for number in range(20_000)], notes)
    start = time.process_time()
    assert document.write([]).decode() == "".join(note for (note,) in notes)
    assert time.process_time() - start < 5


FIELD = (
    '<r><fldChar fldCharType="begin"/></r><r><instrText> %s </instrText></r><r><fldChar fldCharType="separate"/></r>'
    '[four]<r><fldChar fldCharType="end"/></r>'
)
PIECES = st.sampled_from(
    [
        "[one two. ]",
        "<r><rPr><b/></rPr>{three}</r>",
        "<r>{five}<tab/>{six }<br/></r>",
        '<r><footnoteReference id="2"/></r>',
        '<bookmarkStart id="0"/>',
        '<del id="1"><r><delText>gone</delText></r></del>',
        '<fldSimple instr="DATE">[May]</fldSimple>',
        "<sdt><sdtPr><alias/></sdtPr><sdtContent>[seven eight]</sdtContent></sdt>",
        FIELD % "PAGE",
        FIELD % "HYPERLINK x",
    ]
)
AROUND = st.sampled_from(
    ['<hyperlink r:id="1">%s</hyperlink>', '<ins id="1">%s</ins>', "<r><txbxContent><p>%s</p></txbxContent></r>"]
)
PARAGRAPHS = st.recursive(
    PIECES,
    lambda inner: st.lists(inner, max_size=5).map("".join) | st.builds(str.__mod__, AROUND, inner),
    max_leaves=12,
)


@given(PARAGRAPHS, st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_whatever_the_order_of_words_all_text_is_in_runs_and_no_tag_is_lost(paragraph: str, random: Random) -> None:
    xml = f'<d xmlns:w="w" xmlns:r="r">{word(f"<p>{paragraph}</p>")}</d>'
    document = TextDocument(Encoding("utf-8"), *office_parts(xml, WORD))

    def shuffled(words: list[Range]) -> list[Range]:
        return random.sample(words, len(words))

    written = document.write([reordered(block, shuffled) for block in document.blocks])
    before, after = etree.fromstring(xml), etree.fromstring(written)

    def tags(root: etree._Element) -> Counter[object]:
        runs = {f"{{w}}{name}" for name in ("r", "t", "rPr", "b")}
        return Counter((one.tag, *sorted(one.items())) for one in root.iter() if one.tag not in runs)

    assert tags(after) == tags(before)
    for one in after.iter():
        is_text = one.tag in ("{w}t", "{w}instrText", "{w}delText")
        assert is_text or not (one.text or "").strip()
        assert not (one.tail or "").strip()
        assert one.tag != "{w}t" or one.getparent().tag == "{w}r"
    kinds = [[one.get("{w}fldCharType") for one in root.iter("{w}fldChar")] for root in (before, after)]
    assert kinds[0] == kinds[1]


def with_paragraph(content: bytes, paragraph: str) -> bytes:
    """A Word document with this paragraph alone."""
    files = entries(content)
    before, _, rest = files["word/document.xml"].decode().partition("<w:body>")
    after = rest.partition("</w:body>")[2]
    files["word/document.xml"] = f"{before}<w:body><w:p>{paragraph}</w:p></w:body>{after}".encode()
    del files["word/header1.xml"]
    return zipped(files)


def test_a_presentation_comes_back_translated(tmp_path: Path, translator: Translator) -> None:
    presentation = Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text = SENTENCES[0]
    frame = slide.placeholders[1].text_frame
    frame.text = SENTENCES[1]
    paragraph = frame.add_paragraph()
    paragraph.text = f"{SENTENCES[2]}\v{SENTENCES[3]}"  # with a line break
    paragraph.level = 1
    table = slide.shapes.add_table(1, 2, Inches(1), Inches(1), Inches(4), Inches(1)).table
    table.cell(0, 0).text, table.cell(0, 1).text = SENTENCES[4], "2026"
    slide.notes_slide.notes_text_frame.text = SENTENCES[5]
    presentation.save(str(tmp_path / "talk.pptx"))
    translator.translate_file(tmp_path / "talk.pptx", tmp_path / "vortrag.pptx")
    (new,) = Presentation(str(tmp_path / "vortrag.pptx")).slides
    expected = plain(translator, *SENTENCES[:6])
    assert new.shapes.title.text == expected[0]
    assert new.placeholders[1].text == f"{expected[1]}\n{expected[2]}\v{expected[3]}"
    assert new.placeholders[1].text_frame.paragraphs[1].level == 1
    (new_table,) = [shape.table for shape in new.shapes if shape.has_table]
    assert [cell.text for cell in new_table.rows[0].cells] == [expected[4], "2026"]
    assert new.notes_slide.notes_text_frame.text == expected[5]
    before, after = (entries((tmp_path / name).read_bytes()) for name in ("talk.pptx", "vortrag.pptx"))
    changed = [name for name, content in before.items() if content != after[name]]
    assert changed == ["ppt/slides/slide1.xml", "ppt/notesSlides/notesSlide1.xml"]


def test_an_open_document_comes_back_translated(tmp_path: Path, translator: Translator) -> None:
    old = OpenDocumentText()
    bold = Style(name="Bold", family="text")
    bold.addElement(TextProperties(fontweight="bold"))
    old.automaticstyles.addElement(bold)
    old.text.addElement(H(outlinelevel=1, text=SENTENCES[0]))
    paragraph = P(text=SENTENCES[1].split(" ", 1)[0] + " ")
    paragraph.addElement(Span(stylename=bold, text=SENTENCES[1].split(" ", 1)[1][:-1]))
    paragraph.addText(".")
    note = Note(noteclass="footnote", id="ftn1")
    note.addElement(NoteCitation(text="1"))
    note.addElement(NoteBody())
    note.childNodes[1].addElement(P(text=SENTENCES[2]))
    paragraph.addElement(note)
    old.text.addElement(paragraph)
    lines = P(text=SENTENCES[3])
    lines.addElement(LineBreak())
    lines.addElement(A(href="https://example.org/", text=SENTENCES[4]))
    lines.addElement(Tab())
    lines.addText("12:30")
    old.text.addElement(lines)
    items = List()
    items.addElement(ListItem())
    items.childNodes[0].addElement(P(text=SENTENCES[5]))
    old.text.addElement(items)
    frame, box = Frame(width="4cm", height="2cm"), TextBox()
    box.addElement(P(text=SENTENCES[6]))
    frame.addElement(box)
    around = P()
    around.addElement(frame)
    old.text.addElement(around)
    old.save(str(tmp_path / "letter.odt"))
    translator.translate_file(tmp_path / "letter.odt", tmp_path / "brief.odt")
    new = load(str(tmp_path / "brief.odt"))
    expected = plain(translator, *SENTENCES[:7])
    assert extractText(new.text.getElementsByType(H)[0]) == expected[0]
    texts = [extractText(found) for found in new.text.getElementsByType(P)]
    assert texts[0] == f"{expected[1]}1{expected[2]}"
    assert texts[2:] == [f"{expected[3]}\n{expected[4]}\t12:30", expected[5], expected[6], expected[6]]
    (span,) = new.text.getElementsByType(Span)
    assert span.getAttribute("stylename") == "Bold"
    before, after = (entries((tmp_path / name).read_bytes()) for name in ("letter.odt", "brief.odt"))
    assert list(before) == list(after)
    assert [name for name, content in before.items() if content != after[name]] == ["content.xml"]
    with zipfile.ZipFile(tmp_path / "brief.odt") as archive:
        assert archive.infolist()[0].compress_type == zipfile.ZIP_STORED


CHAPTER = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops">
<head><title>{0}</title><link rel="stylesheet" href="style.css"/></head>
<body epub:type="bodymatter"><h1 id="c1">{1}</h1>
<p>{2}<a epub:type="noteref" href="#n1"/><br/>{3}</p><pre>code stays</pre></body></html>
"""
NCX = """<?xml version="1.0" encoding="UTF-8"?>
<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/" version="2005-1"><docTitle><text>{0}</text></docTitle>
<navMap><navPoint id="p1"><navLabel><text>{1}</text></navLabel><content src="c1.xhtml#c1"/></navPoint></navMap></ncx>
"""


def test_a_book_comes_back_translated(tmp_path: Path, translator: Translator) -> None:
    others = {
        "META-INF/container.xml": '<container><rootfiles><rootfile full-path="book.opf"/></rootfiles></container>',
        "book.opf": "<package><metadata><dc:title>The old sea</dc:title></metadata></package>",
        "style.css": "p { color: red }",
        "cover.jpg": "\x00\x01",
    }
    with zipfile.ZipFile(tmp_path / "book.epub", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        for name, text in others.items():
            archive.writestr(name, text)
        archive.writestr("c1.xhtml", CHAPTER.format(*SENTENCES[:4]))
        archive.writestr("toc.ncx", NCX.format(*SENTENCES[:2]))
    translator.translate_file(tmp_path / "book.epub", tmp_path / "buch.epub")
    expected = plain(translator, *SENTENCES[:4])
    after = entries((tmp_path / "buch.epub").read_bytes())
    assert after.pop("mimetype") == b"application/epub+zip"
    assert after.pop("c1.xhtml").decode() == CHAPTER.format(*expected)
    assert after.pop("toc.ncx").decode() == NCX.format(*expected[:2])
    assert after == {name: text.encode() for name, text in others.items()}
    beginning = (tmp_path / "buch.epub").read_bytes()[:58]
    assert beginning[30:] == b"mimetypeapplication/epub+zip"  # as readers look for it
