"""A headless Chromium driven through its debugging pipe, with the standard library alone."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_chromium() -> str:
    """Raises RuntimeError that says what to install."""
    found = next((path for path in map(shutil.which, PROGRAMS) if path), None)
    if found is None:
        raise RuntimeError(
            "tests marked 'browser' need Chromium: apt-get install chromium "
            '(or leave them out: pytest -m "not browser")'
        )
    return found


class Browser:
    """One page of a Chromium that reads commands from descriptor 3 and answers on descriptor 4."""

    def __init__(self, profile: Path, *flags: str, width: int = 1200, height: int = 900) -> None:
        commands, self._send = os.pipe()
        self._receive, answers = os.pipe()
        options = (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", *flags)
        # the shell puts the pipes where Chromium looks for them
        places = f'exec "$@" 3<&{commands} 4>&{answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", places, "bash", find_chromium(), *options, "--remote-debugging-pipe"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")
        self.call("Log.enable")
        self.call("Runtime.enable")
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._send)
        os.close(self._receive)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._receive, 1 << 16)
            assert more, "Chromium has ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        event: dict[str, Any] = json.loads(message)
        if event.get("method") == "Runtime.exceptionThrown":
            details = event["params"]["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        if event.get("method") == "Log.entryAdded":
            self.errors.append(event["params"]["entry"]["text"])
        return event

    def open(self, path: Path, address: str = "") -> None:
        """Open a file; `address` is its query and fragment. Returns when the page is loaded."""
        self.errors.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"file://{path.resolve()}{address}")
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, a promise's value when it is one."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, named as KeyboardEvent.key names it."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
