"""The page in headless Chromium, as people use it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nmt_cli.api import Translator
from tests.browser import Browser
from tests.serving.servers import Server
from tests.waiting import wait_until

# The page's own `$` finds an element by its id.
READY = "$('into').options.length > 0"
WORDS = "document.querySelectorAll('#target .word')"


@pytest.fixture
def page(browser: Browser, server: Server) -> Browser:
    """The page with a translation on it."""
    browser.size(1200, 900)
    browser.console.clear()
    browser.requests.clear()
    browser.open(server.url)
    browser.until(READY)
    browser.run("$('clear').disabled || $('clear').click()")
    browser.run("$('from').value = 'en'; $('from').onchange()")
    browser.run("$('source').focus()")
    browser.type("the old sea\n  stands by the house")
    browser.until(f"{WORDS}.length > 1 && !document.querySelector('#target.waiting')")
    return browser


def test_typing_translates_and_nothing_is_loaded_from_elsewhere(
    page: Browser, server: Server, translator: Translator
) -> None:
    first, second = (one.text for one in translator.translate(["the old sea", "stands by the house"]))
    assert page.run("$('target').textContent") == f"{first}\n  {second}"
    assert page.run("$('count').textContent") == "33 / 10,000"
    assert all(url.startswith((server.url, "data:")) for url in page.requests)
    assert page.console == []
    call = page.run("$('curl').textContent")
    assert call.startswith(f"curl {server.url}/v1/translate")
    assert '"source":"en","target":"de"' in call


def test_pointing_at_a_word_shows_what_it_looked_at(page: Browser) -> None:
    page.point("#target .word")
    page.until("document.querySelectorAll('#figure line').length > 0")
    marks = "[...document.querySelectorAll('#mirror span')]"
    lit = f"{marks}.filter(one => one.style.getPropertyValue('--weight')).map(one => one.textContent)"
    page.until(f"{lit}.length > 0")
    assert set(page.run(lit)) <= {"the", "old", "sea"}
    shown = page.run("[...document.querySelectorAll('#figure text')].slice(0, 4).map(one => one.textContent)")
    assert shown == ["the", "old", "sea", "end"]
    assert page.run("$('head').options.length") == 3
    page.run("$('head').value = '1'; $('head').onchange()")
    assert page.console == []


def test_a_word_is_replaced_with_the_keyboard(page: Browser) -> None:
    before = page.run("$('target').textContent")
    focused = f"document.activeElement === $('target') && [...{WORDS}].indexOf(document.querySelector('.word.current'))"
    # The translation is a single stop of the Tab key, and text without buttons.
    assert page.run("$('target').tabIndex") == 0
    assert page.run(f"[...{WORDS}].filter(one => one.tabIndex >= 0 || one.role).length") == 0
    page.run("$('target').focus()")
    assert page.run(focused) == 0
    page.press("ArrowRight")
    assert page.run("$('spoken').textContent") == before.split()[1]
    assert page.run(focused) == 1
    page.press("Enter")
    page.until("!$('choices').hidden")
    page.until("document.querySelector('#choices li').textContent[0] !== '…'")
    chosen = "document.getElementById($('choices').getAttribute('aria-activedescendant'))"
    assert page.run("document.querySelectorAll('#choices li').length") > 1
    first = page.run(f"{chosen}.firstChild.textContent")
    page.press("ArrowDown")
    second = page.run(f"{chosen}.firstChild.textContent")
    assert second != first
    page.press("Enter")
    page.until("$('choices').hidden")
    after = page.run("$('target').textContent")
    assert after != before
    assert after.split()[:2] == [before.split()[0], second]
    assert page.run(focused) == 1
    page.press("Enter")
    page.until("!$('choices').hidden")
    page.press("Escape")
    assert page.run("$('choices').hidden")
    assert page.run(focused) == 1
    assert page.console == []


def test_arrow_keys_follow_the_direction_of_the_text(page: Browser) -> None:
    page.run("$('target').dir = 'rtl'; $('target').focus()")
    at = f"[...{WORDS}].indexOf(document.querySelector('.word.current'))"
    places = []
    for key in ("ArrowLeft", "ArrowLeft", "ArrowRight", "End", "Home"):
        page.press(key)
        places.append(page.run(at))
    page.run("$('target').dir = 'auto'")
    assert places == [1, 2, 1, page.run(f"{WORDS}.length") - 1, 0]


def drag(page: Browser, first: int, last: int) -> str:
    """The text that the mouse selects from the middle of one word to the end of another."""
    boxes = page.run(
        f"[{first}, {last}].map(n => {WORDS}[n].getBoundingClientRect())"
        ".map(box => [box.x, box.x + box.width, box.y + box.height / 2])"
    )
    page.run("getSelection().removeAllRanges()")
    begin, end = {"x": boxes[0][0] + 1, "y": boxes[0][2]}, {"x": boxes[1][1] - 1, "y": boxes[1][2]}
    page.send("Input.dispatchMouseEvent", type="mousePressed", button="left", clickCount=1, **begin)
    for step in range(1, 5):
        at = {name: begin[name] + (end[name] - begin[name]) * step / 4 for name in begin}
        page.send("Input.dispatchMouseEvent", type="mouseMoved", button="left", buttons=1, **at)
    page.send("Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, **end)
    return str(page.run("getSelection().toString()"))


def test_text_of_the_translation_is_selected_from_any_word(page: Browser) -> None:
    words = page.run(f"[...{WORDS}].map(one => one.textContent)")
    assert drag(page, 0, 1) == " ".join(words[:2])
    assert drag(page, 1, 1) == words[1]
    time.sleep(0.5)
    assert page.run("$('choices').hidden")


def test_a_text_survives_a_reload_and_a_link_may_carry_one(page: Browser, server: Server) -> None:
    translation = page.run("$('target').textContent")
    page.reload()
    page.until(f"{READY} && {WORDS}.length > 1")
    shown = page.run("[$('source').value, $('from').value, $('into').value]")
    assert shown == ["the old sea\n  stands by the house", "en", "de"]
    assert page.run("$('target').textContent") == translation
    page.run("location.hash = '#de/en/am%20alten%20Meer%2Fx'")
    page.until("$('source').value === 'am alten Meer/x' && $('from').value === 'de' && $('into').value === 'en'")
    page.until(f"{WORDS}.length > 1 && !document.querySelector('#target.waiting')")
    page.run("location.hash = '#de/en/%'")
    assert page.run("$('source').value") == "am alten Meer/x"
    page.run("history.replaceState(null, '', '/')")
    assert page.console == []


def test_only_the_translation_of_the_text_can_be_copied(page: Browser) -> None:
    assert not page.run("$('copy').disabled")
    page.run("$('source').focus()")
    page.type(" or")
    assert page.run("$('copy').disabled")
    page.until("!$('copy').disabled")
    page.type("x" * 10_000)
    assert page.run("[$('copy').disabled, $('target').className]") == [True, "waiting"]


def test_a_direction_that_no_model_has_is_told(browser: Browser, strict: Server) -> None:
    browser.open(strict.url)
    browser.until(READY)
    why = "No model of this server translates from German into English"
    assert browser.run("[$('swap').title, $('swap').ariaLabel, $('swap').ariaDisabled]") == [why, why, "true"]
    browser.point("#swap", click=True)
    assert browser.run("$('status').textContent") == f"{why}."


_NAMES = "English Spanish Portuguese French Italian Romanian Dutch Danish Czech Gàidhlig Polish Slovak"
LANGUAGES = _NAMES.split()


@pytest.fixture
def many(page: Browser) -> Browser:
    """The page of a server with many source languages, of which English and German have a model."""
    names = [name for name in LANGUAGES if name != "English"]
    others = [{"code": f"x{place}", "name": name, "targets": ["de"]} for place, name in enumerate(names)]
    page.run("$('clear').click()")
    return with_languages(page, others)


def with_languages(page: Browser, languages: Sequence[Mapping[str, Any]]) -> Browser:
    """The page as if the server had a further model."""
    page.run(f"about.models.push({{languages: {json.dumps(languages)}}}); fillSources(); fillTargets()")
    return page


def test_the_targets_are_those_of_the_source(page: Browser) -> None:
    french = {"code": "fr", "name": "French", "targets": []}
    with_languages(page, [{"code": "en", "name": "English", "targets": ["fr"]}, french])
    names = "[...$('{}').options].map(one => one.text)"
    assert page.run(names.format("from")) == ["Detect", "English", "German"]
    targets = {}
    for source in ("auto", "en", "de"):
        page.run(f"$('from').value = '{source}'; $('from').onchange()")
        targets[source] = page.run(names.format("into"))
    assert targets == {"auto": ["German", "French", "English"], "en": ["German", "French"], "de": ["English"]}
    page.run("$('from').value = 'en'; fillTargets('fr')")
    why = "No model of this server translates from French into English"
    assert page.run("[$('into').value, $('swap').title]") == ["fr", why]


def test_a_long_list_of_languages_is_searched(many: Browser) -> None:
    rows = "[...document.querySelectorAll('#results li')].map(one => one.firstChild.textContent)"
    assert many.run("[$('from').options.length, $('finder').hidden]") == [len(LANGUAGES) + 2, True]
    many.point("#from", click=True)
    assert many.run("[$('finder').hidden, document.activeElement.id]") == [False, "find"]
    assert many.run(f"{rows}.length") == len(LANGUAGES) + 2
    taken = "document.getElementById($('find').getAttribute('aria-activedescendant')).firstChild.textContent"
    assert many.run(taken) == "Detect"
    assert many.run(f"{rows}.slice(1)") == sorted([*LANGUAGES, "German"], key=lambda name: name.replace("à", "a"))
    many.type("an")
    assert many.run(rows) == ["Danish", "German", "Italian", "Romanian", "Spanish"]
    many.type("i")
    assert many.run(rows) == ["Danish", "Romanian", "Spanish"]
    many.press("ArrowDown")
    many.press("ArrowDown")
    many.press("Enter")
    shown = many.run("[$('finder').hidden, $('from').selectedOptions[0].text, document.activeElement.id]")
    assert shown == [True, "Spanish", "from"]
    many.press("Enter")
    many.type("gaid")  # without the accent
    assert many.run(rows) == ["Gàidhlig"]
    many.type("x")
    assert many.run(rows) == ["No such language"]
    many.press("Enter")
    many.press("Escape")
    assert many.run("[$('finder').hidden, $('from').selectedOptions[0].text]") == [True, "Spanish"]
    many.point("#into", click=True)  # few languages: the browser's own menu
    assert many.run("$('finder').hidden")
    many.press("Escape")
    many.size(360, 740, is_phone=True)
    many.point("#from", click=True)
    many.point("#results li:nth-child(2)", click=True)
    assert many.run("[$('from').selectedOptions[0].text, document.documentElement.scrollWidth]") == ["Czech", 360]
    many.point("#from", click=True)
    many.point("#source", click=True)
    assert many.run("$('finder').hidden")
    assert many.console == []


def test_swapping_translates_back(page: Browser) -> None:
    translation = page.run("$('target').textContent")
    page.point("#swap", click=True)
    page.until("$('from').value === 'de' && $('into').value === 'en'")
    assert page.run("$('source').value") == translation
    page.until(f"{WORDS}.length > 0 && !document.querySelector('#target.waiting')")
    assert page.console == []


def test_the_page_is_dark_where_the_system_is_and_a_phone_needs_no_scrolling_sideways(page: Browser) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.run(colour)
    page.prefer("dark")
    assert page.run(colour) != light
    page.prefer("light")
    assert page.run(colour) == light
    page.size(360, 740, is_phone=True)
    assert page.run("document.documentElement.scrollWidth") <= 360
    controls = "[...document.querySelectorAll('button:not(.word), select')]"
    assert page.run(f"{controls}.filter(one => one.offsetHeight && one.offsetHeight < 40).length") == 0
    unnamed = (
        "[...document.querySelectorAll('button, select, textarea, input')].filter(one =>"
        " !(one.ariaLabel || one.textContent.trim() || one.labels?.length)).length"
    )
    assert page.run(unnamed) == 0


def test_errors_are_told_on_the_page(page: Browser) -> None:
    page.run("$('source').value = 'x'.repeat(10001); $('source').dispatchEvent(new Event('input'))")
    page.until("$('status').textContent.startsWith('The text is longer')")
    page.point("#clear", click=True)
    page.until("$('status').textContent === ''")
    assert page.run("$('target').textContent") == ""
    conditions = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.send("Network.emulateNetworkConditions", offline=True, **conditions)
    page.run("$('source').focus()")
    page.type("the sea")
    page.until("$('status').textContent === 'The server does not answer; trying again in 3 s.'")
    page.send("Network.emulateNetworkConditions", offline=False, **conditions)
    page.type(" stands")
    page.until(f"{WORDS}.length > 0 && $('status').textContent === ''")


def test_a_text_that_takes_too_long_is_not_sent_again(page: Browser) -> None:
    answer = {"error": {"code": "timeout", "message": "the translation took too long", "hint": "try again in 1 s"}}
    late = f"new Response({json.dumps(json.dumps(answer))}, {{status: 503, headers: {{'Retry-After': '1'}}}})"
    page.run(f"window.asked = 0; window.ask = fetch; window.fetch = async () => {{ asked++; return {late}; }}; 0")
    page.type(" or")
    page.until("$('status').textContent.startsWith('the translation took too long')")
    time.sleep(2)
    assert page.run("asked") == 1
    page.run("window.fetch = ask; 0")


def test_the_words_of_a_text_with_a_control_character_can_be_pointed_at(page: Browser) -> None:
    page.run("$('source').value = 'the \\x07old sea'; $('source').dispatchEvent(new Event('input'))")
    page.until("$('mirror').textContent.includes('\\x07') && !document.querySelector('#target.waiting')")
    assert page.run("document.querySelectorAll('#mirror span').length") > 0


def test_a_key_is_asked_for_where_one_is_needed(browser: Browser, strict: Server) -> None:
    browser.open(strict.url)
    browser.until(READY)
    browser.size(360, 740, is_phone=True)
    assert browser.run("document.documentElement.scrollWidth") <= 360
    assert browser.run("$('key').offsetWidth") >= 40
    browser.run("$('source').value = 'the sea'; $('source').dispatchEvent(new Event('input'))")
    browser.until("$('status').textContent.startsWith('This server asks for an API key')")
    browser.run("$('key').value = 'alice-secret-key'; $('key').onchange()")
    browser.until(f"{WORDS}.length > 0")


def test_a_file_comes_back_as_a_download(page: Browser, server: Server, tmp_path: Path) -> None:
    file = tmp_path / "seite 1.html"
    file.write_text("<p>the <b>old</b> sea</p>", encoding="utf-8")
    folder = tmp_path / "downloads"
    page.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    root = page.send("DOM.getDocument")["root"]["nodeId"]
    node = page.send("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    page.run("$('terms').value = 'sea = Meer'")
    page.send("DOM.setFileInputFiles", files=[str(file)], nodeId=node)
    page.until("$('status').querySelector('a') !== null")
    page.run("$('terms').value = ''")
    wait_until(lambda: (folder / "seite 1_de.html").is_file(), told=lambda: str([*folder.iterdir()]))
    translated = (folder / "seite 1_de.html").read_text(encoding="utf-8")
    assert (translated.count("<b>"), translated.count("Meer")) == (1, 1)
    assert page.run("$('status').textContent") == "Download the translation of seite 1.html"
    wrong = tmp_path / "page.exe"
    wrong.write_bytes(b"x")
    page.send("DOM.setFileInputFiles", files=[str(wrong)], nodeId=node)
    page.until("$('status').classList.contains('error')")
    assert "no ending of a document" in page.run("$('status').textContent")
    page.run("$('status').textContent = ''")


def test_terms_and_tags_are_kept(page: Browser) -> None:
    page.run("$('options').open = true")
    page.run("$('terms').focus()")
    page.type("sea = Meer\nhouse =\n= x")
    page.until("$('target').textContent.includes('Meer') && !document.querySelector('#target.waiting')")
    assert '"terms":{"sea":"Meer"}' in page.run("$('curl').textContent")
    page.point("#target .word", click=True)
    page.until("!$('choices').hidden && document.querySelector('#choices li').textContent[0] !== '…'")
    others = page.run("[...document.querySelectorAll('#choices li')].map(one => one.textContent)")
    assert all("Meer" in other for other in others)
    page.press("Escape")
    page.run("$('clear').click(); $('source').focus()")
    page.run("$('markup').click()")
    page.run("$('source').focus()")
    page.type("<p>the <b>old</b> sea</p>")
    page.until("$('target').textContent.includes('</b>') && !document.querySelector('#target.waiting')")
    assert page.run("$('target').textContent").startswith("<p>")
    assert page.run("document.querySelectorAll('#target .word').length") == 0
    page.run(f"$('source').value = '<p>the {'<b></b>' * 2000}sea</p>'; $('source').dispatchEvent(new Event('input'))")
    page.until("$('target').textContent.length > 14000 && !document.querySelector('#target.waiting')")
    page.run("$('markup').click(); $('terms').value = ''; $('options').open = false")
    assert page.console == []
