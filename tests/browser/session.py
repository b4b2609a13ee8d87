"""A session with headless Chromium over the pipe of its DevTools protocol: keys, media, screenshots and scripts."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .chromium import AXE, CHROMIUM

_KEYS = {"Escape": 27, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}
_LOCAL = ("file:", "about:", "data:")
_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


class Page:
    """A page in Chromium.

    Args:
        write: descriptor of the commands.
        read: descriptor of the answers.
    """

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._number, self._rest, self._session = write, read, 0, b"", ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.messages: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; errors and requests of the page are collected in ``messages``."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        content = {"id": self._number, "method": method, "params": params, **session}
        os.write(self._write, json.dumps(content).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                self._rest += os.read(self._read, 1 << 20)
            line, _, self._rest = self._rest.partition(b"\0")
            answer: dict[str, Any] = json.loads(line)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found
            self._collect(answer)

    def _collect(self, event: dict[str, Any]) -> None:
        kind, params = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.messages.append(str(params["exceptionDetails"].get("exception", params)))
        elif kind == "Log.entryAdded":
            self.messages.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif kind == "Network.requestWillBeSent" and not params["request"]["url"].startswith(_LOCAL):
            self.messages.append(f"request {params['request']['url'][:80]}")

    def run(self, script: str) -> Any:
        """The value of an expression, or of its promise."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 20) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    def open(self, page: Path, state: str = "") -> None:
        """Open a file anew, with the part of its address after ``#``."""
        self.send("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'")
        self.send("Page.navigate", url=page.absolute().as_uri() + (f"#{state}" if state else ""))
        self.wait("location.protocol === 'file:' && document.readyState === 'complete'")

    def screen(self, theme: str = "light", width: int = 1200, media: str = "") -> None:
        """Set the colour scheme, the width in pixels and the medium."""
        self.send(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": theme}]
        )
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def press(self, key: str) -> None:
        """Press and release a key."""
        code = _KEYS[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            given = text if kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **given)

    def violations(self) -> list[str]:
        """The violations that axe-core finds."""
        if not self.run("'axe' in window"):
            self.send("Runtime.evaluate", expression=AXE.read_text(encoding="utf-8"))
        script = f"axe.run(document, {{runOnly: {json.dumps(_TAGS)}, resultTypes: ['violations'], preload: false}})"
        listed = (
            "found.violations.map((rule) => `${rule.id}: ${rule.nodes.length} x ${rule.nodes[0].html.slice(0, 150)}`)"
        )
        found: list[str] = self.run(f"{script}.then((found) => {listed})")
        return found

    def overflow(self) -> int:
        """By how many pixels the page is wider than the screen."""
        return int(self.run("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """Save the screen, or the whole page, as PNG."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """Start Chromium with one page."""
    to_chromium, write = os.pipe()
    read, from_chromium = os.pipe()

    def descriptors() -> None:
        copies = os.dup(to_chromium), os.dup(from_chromium)  # either may itself be 3 or 4
        for copy, place in zip(copies, (3, 4), strict=True):
            os.dup2(copy, place, inheritable=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run"]
        process = subprocess.Popen(
            command,
            preexec_fn=descriptors,  # noqa: PLW1509  # no other thread runs
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_chromium)
        os.close(from_chromium)
        try:
            yield Page(write, read)
        finally:
            process.terminate()
            process.wait(20)
            os.close(write)
            os.close(read)
