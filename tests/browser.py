"""Headless Chromium, driven over a pipe with the DevTools protocol: no driver, no WebSocket."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_SECONDS = 300
_KEY_CODES = {"Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    """One page; what it logs and what it asks the network for is kept."""

    def __init__(self, profile: Path, *options: str) -> None:
        assert CHROMIUM is not None
        command_read, self._write = os.pipe()
        self._read, answer_write = os.pipe()
        script = f'exec "$0" "$@" 3<&{command_read} 4>&{answer_write}'
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        flags += [f"--user-data-dir={profile}", "--no-first-run", "--disable-dev-shm-usage", "--disable-quic"]
        flags += [f"--disable-{service}" for service in ("background-networking", "component-update", "sync")]
        self._process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, *flags, *options, "about:blank"],
            pass_fds=(command_read, answer_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.console: list[str] = []
        self.requests: list[str] = []
        self._loads = 0
        (target,) = [one for one in self.send("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            received = self._receive()
            if received.get("id") == self._number:
                assert "error" not in received, received
                result: dict[str, Any] = received["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], _SECONDS)[0], "the browser hangs"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser is gone"
            self._buffer += chunk
        head, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(head)
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled":
                self.console.append(str(parameters["args"]))
            case "Runtime.exceptionThrown":
                self.console.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded":
                self.console.append(str(parameters["entry"]))
            case "Page.loadEventFired":
                self._loads += 1
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case _:
                pass
        return message

    def size(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """The size of the page in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )

    def prefer(self, colours: str) -> None:
        """Prefer dark or light colours, as the settings of a system do."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])

    def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def reload(self) -> None:
        """Load the page again, and wait until it is there: what is asked meanwhile may be answered by the old one."""
        loads = self._loads
        self.send("Page.reload")
        while self._loads == loads:
            self._receive()

    def run(self, script: str) -> Any:
        """The value of an expression, once it is settled."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        wait_until(lambda: self.run(script), seconds=_SECONDS, told=lambda: f"never came: {script}")

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.send("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key such as Enter."""
        code = _KEY_CODES[key]
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def point(self, selector: str, *, click: bool = False) -> None:
        """Move the mouse over the first such element, and click it."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'nearest'}})")
        box = self.run(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        at = {"x": box[0], "y": box[1]}
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **at)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=_SECONDS)
        os.close(self._write)
        os.close(self._read)
