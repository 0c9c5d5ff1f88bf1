"""A headless Chromium, driven by its DevTools protocol over two pipes: no port, no driver, nothing fetched."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools import program


class Browser:
    """One page in one browser.  `events` holds what the browser told by itself, in order."""

    def __init__(self, reading: Any, writing: Any) -> None:
        self._reading, self._writing = reading, writing
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call and its answer; fails with the browser's words."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._writing.write(json.dumps(message).encode() + b"\0")
        self._writing.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._reading.read(1)) != b"\0":
            assert byte, "the browser went away"
            data += byte
        answer: dict[str, Any] = json.loads(data)
        return answer

    def open(self, address: str) -> None:
        """Loads a page, to its end."""
        self.events.clear()
        self.ask("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 900) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name: str) -> None:
        """`light` or `dark`."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the console and the log, requests that are not for a file or data, and exceptions."""
        out = []
        for event in self.events:
            method, told = event.get("method"), event.get("params", {})
            if method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                out.append(told["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
                out.append(str(told["args"]))
            elif method == "Runtime.exceptionThrown":
                out.append(str(told["exceptionDetails"]))
            elif method == "Network.requestWillBeSent":
                address = told["request"]["url"]
                if not address.startswith(("file://", "data:", "about:")):
                    out.append(f"a request: {address}")
        return out

    def accessibility(self) -> list[dict[str, Any]]:
        """The nodes of the accessibility tree that a screen reader is told of."""
        nodes: list[dict[str, Any]] = self.ask("Accessibility.getFullAXTree")["nodes"]
        return [node for node in nodes if not node.get("ignored")]


@contextlib.contextmanager
def headless() -> Iterator[Browser]:
    """A browser for one test; skips where none is installed."""
    chromium = program("chromium")
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(prefix="imagebuild-browser-") as folder:

        def pipes() -> None:
            os.dup2(to_browser, 13)
            os.dup2(from_browser, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        words = [
            chromium, "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", f"--user-data-dir={folder}",
        ]  # fmt: skip
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(3, 4), preexec_fn=pipes,
            env={**os.environ, "HOME": folder},
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        try:
            with os.fdopen(to_us, "rb") as reading, os.fdopen(from_us, "wb") as writing:
                browser = Browser(reading, writing)
                yield browser
                with contextlib.suppress(Exception):
                    browser._session = ""
                    browser.ask("Browser.close")
        finally:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
