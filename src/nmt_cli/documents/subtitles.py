"""Subtitles, SRT and WebVTT: the text of a cue is a block, or one for each speaker and paragraph."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise

import regex

from nmt_cli.documents.marked_text import Mark, MarkedText
from nmt_cli.documents.markup import parse_markup
from nmt_cli.documents.markup_tokens import MarkupRules
from nmt_cli.documents.parts import Block, Part
from nmt_cli.tokenization.split_text import WIDE

_END = r"(?:\r\n?|\n|\Z)"
_TIMES = r"[ \t]*(?:\d+:)?\d+:\d+[,.]\d+[ \t]*-->[^\r\n]*"
_BLANK = r"[^\S\r\n]*+"
# A line of text, before the next cue, which may have a number.
_LINE = rf"(?!(?:[ \t]*\d+[ \t]*{_END})?{_TIMES}){_BLANK}\S[^\r\n]*{_END}"
# Times and text. In WebVTT it ends before a blank line: notes and styles may follow.
_CUE_OF_SRT = re.compile(rf"(?<![^\r\n]){_TIMES}{_END}(?P<text>(?:(?:{_BLANK}(?:\r\n?|\n))*+{_LINE})+)")
_CUE_OF_WEBVTT = re.compile(rf"(?<![^\r\n]){_TIMES}{_END}(?P<text>(?:{_LINE})+)")
_CODE_OR_TAG = r"(?:[ \t]|\{\\[^{}\n]*\}|<[^<>\n]*>)"
_DASH = re.compile(rf"{_CODE_OR_TAG}*+[-‐–—][ \t]*")
_VOICE = r"<v[ \t.]"
# In capitals: JOHN SMITH (off):
_NAME = r"\p{Lu}[\p{Lu}\p{M}\d .'’&#-]*+(?:\([^()\n]*\) *)?:(?!\S)"
_SPEAKER = re.compile(rf"{_CODE_OR_TAG}*?(?:[-‐–—]|{_VOICE})")
_NAMED_SPEAKER = regex.compile(rf"{_CODE_OR_TAG}*?{_NAME}")
# A text in capitals may go on with a word and a colon.
_ENDS = re.compile(r"[.!?…\"”’»)\]>♪-]\s*\Z")
# A line may end at a space and, in Chinese and Japanese, between characters, some of which begin no line.
_LINE_BREAK = re.compile(rf" |(?<=[{WIDE}])(?=\w)(?![ーぁぃぅぇぉっゃゅょァィゥェォッャュョ々])")
_NO_BLOCKS = frozenset[str]()


def subtitle_parts(text: str, *, has_references: bool) -> list[Part]:
    """The cues of a file. `has_references` says that & and < are written as &amp; and &lt;, as in WebVTT."""
    rules = MarkupRules("html" if has_references else "plain", blocks=_NO_BLOCKS)
    parts: list[Part] = []
    position = 0
    for match in (_CUE_OF_WEBVTT if has_references else _CUE_OF_SRT).finditer(text):
        parts.append(text[position : match.start("text")])
        for speech in _speeches(match["text"]):
            dash = _DASH.match(speech)
            start = dash.end() if dash else 0
            parts.append(speech[:start])
            content = speech[start:].rstrip()
            for part in parse_markup(content, rules).parts:
                parts.append(part if isinstance(part, str) else _in_lines(part, content))
            parts.append(speech[start + len(content) :])
        position = match.end()
    return [*parts, text[position:]]


def _speeches(text: str) -> list[str]:
    """The paragraphs of a cue, which speakers divide."""
    lines = [part for line in text.splitlines(keepends=True) for part in re.split(f"(?<=.)(?={_VOICE})", line)]
    speeches = lines[:1]
    for before, line in pairwise(lines):
        is_named = _ENDS.search(before) and _NAMED_SPEAKER.match(line)
        if not before.strip() or _SPEAKER.match(line) or is_named:
            speeches.append(line)
        else:
            speeches[-1] += line
    return speeches


def _in_lines(block: Block, content: str) -> Block:
    """The block with as many lines as it had, of similar length."""
    line_end = next((end for end in ("\r\n", "\r") if end in content), "\n")
    return Block(block.text, partial(_write_in_lines, block, content.count(line_end) + 1, line_end))


def _write_in_lines(block: Block, num_lines: int, line_end: str, translation: MarkedText) -> str:
    text, marks = translation.text, list(translation.marks)
    breaks: set[int] = set()
    for number in range(1, num_lines):
        middle = round(len(text) * number / num_lines)
        places = {match.start() for match in _LINE_BREAK.finditer(text)} - breaks
        if not places:
            break
        place = min(places, key=lambda one: (abs(one - middle), one))
        breaks.add(place)
        if text[place] == " ":
            text = f"{text[:place]}\n{text[place + 1 :]}"
        else:
            around = [index for index, mark in enumerate(marks) if mark.start < place < mark.end]
            marks.append(Mark(place, place, "\n", parent=max(around, default=-1)))
    return block.write(MarkedText(text, tuple(marks))).replace("\n", line_end)
