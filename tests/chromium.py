"""A real Chromium without a window, driven by its DevTools protocol over one web socket.

Only what the tests of pages need: open an address, run JavaScript, press keys, see what was requested.
"""

import base64
import json
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE = 90.0  # seconds, on a machine with other work
_KEYS = {
    "Enter": 13,
    "Tab": 9,
    "Escape": 27,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
_MODIFIERS = {"Alt": 1, "Ctrl": 2, "Shift": 8}


def chromium() -> str | None:
    """Its program, where there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. `requested` are the addresses of all requests, `logged` what the console was told."""

    def __init__(self, program: str, folder: Path) -> None:
        from websockets.sync.client import connect  # the tests of other parts do without

        wanted = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",  # a container's /dev/shm of 64 MB stops its pages
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
        ]
        silent = subprocess.DEVNULL
        self.process = subprocess.Popen([program, *wanted, "about:blank"], stdout=silent, stderr=silent)
        self.requested: list[str] = []
        self.logged: list[str] = []
        self._number = 0
        self._target = ""
        self._closing = ExitStack()
        try:
            port, path = self._address(folder / "DevToolsActivePort")
            opening = connect(
                f"ws://127.0.0.1:{port}{path}", max_size=None, compression=None, ping_interval=None
            )
            self._socket = self._closing.enter_context(opening)
        except BaseException:
            self.close()
            raise

    def open_tab(self) -> None:
        """A new tab in place of the one before, whatever that one is still busy with."""
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        if self._target:
            self._send("Target.closeTarget", targetId=self._target)
        self._target = target
        attached = self._send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """Ends it."""
        self._closing.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    # -- seeing ----------------------------------------------------------------------------------------------

    def run(self, script: str) -> Any:
        """What a JavaScript expression is, a promise's result included. AssertionError where it throws."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Until the expression is true. Raises AssertionError with what the page shows."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            if self.run(f"Boolean({script})"):
                return
            time.sleep(0.02)
        raise AssertionError(f"never true: {script}\n{self.logged}\n{self.run('document.body.innerText')}")

    def text(self, selector: str) -> str:
        """As it is shown."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def screenshot(self, path: Path) -> None:
        """The whole page."""
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    # -- acting ----------------------------------------------------------------------------------------------

    def open(self, address: str) -> None:
        """A fresh tab's view of it: nothing is remembered of the page before."""
        self.send("Page.navigate", url="about:blank")
        self.wait_for("location.href === 'about:blank'")
        self.requested.clear()
        self.logged.clear()
        self.send("Page.navigate", url=address)
        self.wait_for(
            f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'"
        )

    def resize(self, width: int, height: int, *, scale: float = 1, dark: bool = False) -> None:
        """In CSS pixels."""
        shape = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
        self.send("Emulation.setDeviceMetricsOverride", **shape)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, keys: str) -> None:
        """A key such as Tab, a letter, or several held: Ctrl+Enter."""
        *held, key = keys.split("+")
        code = _KEYS.get(key, ord(key[0].upper()))
        event = {
            "key": key,
            "code": key if key in _KEYS else f"Key{key.upper()}",
            "windowsVirtualKeyCode": code,
            "modifiers": sum(_MODIFIERS[each] for each in held),
        }
        written = {"text": "\r"} if key == "Enter" and not held else {}
        self.send("Input.dispatchKeyEvent", type="keyDown" if written else "rawKeyDown", **event, **written)
        self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def write(self, text: str) -> None:
        """Into what has the focus."""
        self.send("Input.insertText", text=text)

    def fill(self, selector: str, text: str) -> None:
        """A field's whole text."""
        self.run(f"(document.querySelector({json.dumps(selector)}).focus(), document.activeElement.select())")
        self.write(text)

    def click(self, selector: str) -> None:
        """By the mouse, in its middle."""
        box = self.run(
            f"(() => {{const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'});"
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, **where)

    # -- the protocol ----------------------------------------------------------------------------------------

    def send(self, method: str, **given: Any) -> Any:
        """A command to the tab, and its result."""
        return self._send(method, self._session, **given)

    def _send(self, method: str, session: str | None = None, /, **given: Any) -> Any:
        self._number += 1
        command = {"id": self._number, "method": method, "params": given}
        self._socket.send(json.dumps(command | ({"sessionId": session} if session else {})))
        while True:
            message = json.loads(self._socket.recv(timeout=_PATIENCE))
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._note(message.get("method"), message.get("params", {}))

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.logged.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.logged.append(params["entry"]["text"])

    def _address(self, file: Path) -> tuple[str, str]:
        """Chromium writes it when it is ready: (port, path)."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            if file.exists() and len(lines := file.read_text().splitlines()) == 2:
                return lines[0], lines[1]
            assert self.process.poll() is None, "Chromium ended at once"
            time.sleep(0.02)
        raise AssertionError("Chromium never became ready")
