"""The pictures of the page in docs/images, of a server whose model was trained on Multi30k; it needs Chromium.

nmt serve -m runs/multi30k & PYTHONPATH=. python docs/pictures.py http://127.0.0.1:8000
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.browser import Browser

IMAGES = Path(__file__).parent / "images"
TEXT = "A man in a red shirt is riding a bicycle.\nTwo dogs are playing in the snow."
MARKED = "<p>A man in a <b>red shirt</b> is riding a bicycle.</p>\n<p>Two <i>dogs</i> are playing in the snow.</p>"
STREET = "A man in a red shirt is riding a bicycle down the street."


def main(url: str) -> None:
    """Make all pictures."""
    with TemporaryDirectory() as folder:
        browser = Browser(Path(folder) / "profile")
        try:
            browser.size(1120, 800)
            _translate(browser, url, TEXT)
            _point(browser, "roten", click=False)
            browser.until("document.querySelectorAll('#figure line').length > 0")
            _save(browser, "page-light.png")
            browser.size(1120, 840)
            browser.run("$('options').open = true; $('markup').click(); $('terms').focus()")
            browser.type("bicycle = Rad\ndogs = Hunde")
            _translate(browser, url, MARKED)
            browser.until("$('target').textContent.includes('Rad')")
            _save(browser, "page-terms.png")
            browser.size(1120, 480)
            browser.run("$('options').open = false; $('markup').click(); $('terms').value = ''; $('clear').click()")
            file = Path(folder) / "page.html"
            file.write_text(MARKED)
            _drop(browser, file)
            browser.until("document.querySelector('#status a') !== null")
            _save(browser, "page-file.png")
            browser.size(390, 844, is_phone=True)
            browser.prefer("dark")
            _translate(browser, url, STREET)
            _point(browser, "entlang", click=True)
            browser.until("!$('choices').hidden && document.querySelector('#choices li').textContent[0] !== '…'")
            _save(browser, "page-phone-dark.png")
        finally:
            browser.close()


def _translate(browser: Browser, url: str, text: str) -> None:
    """Open the page if it is not there, and replace the text in it."""
    if browser.run("location.href") == "about:blank":
        browser.open(url)
        browser.until("$('into').options.length > 0")
        browser.run("$('from').value = 'en'; $('from').onchange()")
    browser.run("$('clear').disabled || $('clear').click()")
    browser.run("$('source').focus()")
    browser.type(text)
    browser.until("$('target').textContent && !document.querySelector('#target.waiting')")


def _point(browser: Browser, word: str, *, click: bool) -> None:
    """Point at a word of the translation."""
    words = "[...document.querySelectorAll('#target .word')]"
    browser.run(f"{words}.find(one => one.textContent.startsWith('{word}')).id = 'pointed'")
    browser.point("#pointed", click=click)


def _drop(browser: Browser, file: Path) -> None:
    """Drop a file on the page."""
    data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        browser.send("Input.dispatchDragEvent", type=kind, x=300, y=250, data=data)


def _save(browser: Browser, name: str) -> None:
    browser.run("scrollTo(0, 0)")
    picture = browser.send("Page.captureScreenshot", format="png")["data"]
    (IMAGES / name).write_bytes(base64.b64decode(picture))


if __name__ == "__main__":
    main(sys.argv[1])
