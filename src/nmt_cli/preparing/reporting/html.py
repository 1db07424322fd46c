"""HTML from plain text: whatever is not marked as HTML is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


class Html(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()


def text(value: object) -> Html:
    """A value as HTML text, also safe within a quoted attribute."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def written(sentence: str, language: str) -> Html:
    """A sentence in a language, laid out from right to left where its first letter asks for that."""
    return Html(f'<span lang="{text(language.replace("_", "-"))}" dir="auto">{text(sentence)}</span>')


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    classes: Sequence[str],
    kind: str = "",
    groups: Sequence[tuple[str, int]] = (),
) -> Html:
    """A table that scrolls where it is too wide: `classes` of its columns, and titles above several of them."""
    above = "".join(f'<th colspan="{width}" scope="colgroup">{text(title)}</th>' for title, width in groups)
    first = f"<tr>{above}</tr>" if above else ""
    titles = "".join(
        f'<th scope="col" class="{name}">{text(title)}</th>' for title, name in zip(head, classes, strict=True)
    )
    body = "\n".join(f"<tr>{''.join(map(_cell, row, classes))}</tr>" for row in rows)
    return Html(
        f'<div class="wide"><table class="{kind}"><thead>{first}<tr>{titles}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _cell(value: str, name: str) -> str:
    """A cell, which heads its row where its column has the class `row`."""
    if name == "row" and value:
        return f'<th scope="row">{text(value)}</th>'
    return f'<td class="{name}">{text(value)}</td>'
