"""A mixed load for a server: sentences, texts, HTML and documents for all its APIs, by clients that may vanish."""

from __future__ import annotations

import asyncio
import html
import json
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any
from urllib.parse import urlsplit

from clients import BOUNDARY, Connection, Window

MEMORY_SECONDS = 2.0
"""The time from one measurement of the memory to the next."""
_VANISHING_SHARE = 0.03  # of the requests


async def mixed_load(
    port: int, lines: Sequence[str], *, clients: int, seconds: float, megabytes: Callable[[], int]
) -> tuple[Window, list[int]]:
    """What clients saw that pause, and vanish now and then in the middle of a request, and the memory meanwhile."""
    window, until = Window(), time.perf_counter() + seconds

    async def client(number: int) -> None:
        random = Random(number)
        connection = await Connection.open(port)
        while time.perf_counter() < until:
            kind, path, body = _any_request(random, lines)
            started = time.perf_counter()
            asking = asyncio.ensure_future(connection.ask(path, body))
            if random.random() < _VANISHING_SHARE:
                await asyncio.wait([asking], timeout=random.random())
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                connection.abort()
                window.num_vanished += 1
                connection = await Connection.open(port)
                continue
            status, answer = await asking
            if kind == "document" and status == 200:
                status, _ = await connection.ask(urlsplit(json.loads(answer)["translatedFileUrl"]).path)
            window.add(status, time.perf_counter() - started)
            window.seconds_of_kinds.setdefault(kind, []).append(time.perf_counter() - started)
            await asyncio.sleep(random.expovariate(20))
        connection.close()

    running = asyncio.gather(*(client(number) for number in range(clients)))
    memory = []
    while not running.done():
        memory.append(megabytes())
        await asyncio.wait([running], timeout=MEMORY_SECONDS)
    await running
    return window, memory


def _any_request(random: Random, lines: Sequence[str]) -> tuple[str, str, Mapping[str, Any] | bytes]:
    """The kind of a request, its path, and its fields or its form with a file."""
    kind = random.randrange(30)
    if kind < 3:
        page = "\n".join(f"<p>{_marked(random, line)}</p>" for line in random.choices(lines, k=20))
        return "document", "/translate_file", _file_form(page)
    if kind < 13:
        text = "".join(f"<p>{_marked(random, line)}</p>" for line in random.choices(lines, k=random.randint(1, 3)))
        return "HTML", "/translate", {"q": text, "source": "auto", "target": "de", "format": "html"}
    text = "\n".join(random.choices(lines, k=1 if kind < 26 else random.randint(2, 12)))
    if kind == 13:
        return "plain", "/translate", {"q": text, "source": "auto", "target": "de", "alternatives": 3}
    if kind == 14:
        return "plain", "/v2/translate", {"text": [text], "target_lang": "DE"}
    if kind == 15:
        return "plain", "/v1/translate", {"text": text, "nbest": 3, "alignments": True}
    if kind == 16:
        return "plain", "/v1/translate", {"text": text, "beam": random.randint(1, 8)}
    return "plain", "/v1/translate", {"text": text}


def _marked(random: Random, line: str) -> str:
    """The line in HTML, with tags around a run of its words."""
    words = html.escape(line).split()
    start = random.randrange(len(words))
    end = random.randint(start + 1, len(words))
    return " ".join([*words[:start], f"<b>{' '.join(words[start:end])}</b>", *words[end:]])


def _file_form(page: str) -> bytes:
    fields = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{code}\r\n'
        for name, code in (("source", "auto"), ("target", "de"))
    ]
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="page.html"\r\n\r\n'
    return f"{''.join(fields)}{head}{page}\r\n--{BOUNDARY}--\r\n".encode()
