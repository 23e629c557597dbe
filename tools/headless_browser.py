"""A page in a headless browser: open it, run expressions in it, point, click, type, take pictures.

The browser is Qt WebEngine (Chromium) from PyPI, installed apart from the other packages by ``make .venv/.browser``. It
runs in a process of its own, which is this file as a script: steps as JSON on its standard input, what came of them as
JSON on its standard output. No display, no network: every request but that for the page itself, or for what is below an
address of its own, is refused and listed.

    visit = HeadlessBrowser.find().visit(Path("page.html"), [Evaluate("document.title"), Shot(Path("page.png"))])

Mouse and keyboard events are those of the window system, not made by a script in the page. Starting takes a second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
#: Where ``make .venv/.browser`` puts it.
PACKAGES = ROOT / ".venv" / "browser"
#: Seconds for a whole visit: a hang is a failure.
LIMIT_S = 120


class BrowserError(Exception):
    """There is no browser, or the visit failed; the message says which."""


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluate:
    """Gives the value of a JavaScript expression, which JSON must be able to hold."""

    expression: str


@dataclasses.dataclass(frozen=True, slots=True)
class Until:
    """Waits until a JavaScript expression is true."""

    expression: str


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """Moves the mouse over the first element that a selector finds, to a share of its width and height."""

    selector: str
    across: float = 0.5
    down: float = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Click:
    """Clicks into the middle of the first element that a selector finds."""

    selector: str


@dataclasses.dataclass(frozen=True, slots=True)
class Press:
    """Presses a key, by its name in ``Qt.Key``: ``Right``, ``Escape``."""

    key: str


@dataclasses.dataclass(frozen=True, slots=True)
class Shot:
    """Takes a picture of the whole page, or of its first ``height`` pixels."""

    path: Path
    height: int | None = None


Step = Evaluate | Until | Point | Click | Press | Shot


@dataclasses.dataclass(frozen=True, slots=True)
class Visit:
    """What came of a visit."""

    #: Of each :class:`Evaluate`, in order.
    values: list[Any]
    #: Messages of the page's console, errors of scripts and policy violations among them.
    console: list[str]
    #: Addresses that the page asked for, beside itself.
    requests: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class HeadlessBrowser:
    """An installed browser."""

    packages: Path

    @classmethod
    def find(cls, packages: Path = PACKAGES) -> HeadlessBrowser:
        """Give the browser of this checkout.

        Raises:
            BrowserError: It is not installed, or a system library that it needs is missing; the message names it.
        """
        if not (packages / "PySide6" / "QtWebEngineCore.abi3.so").is_file():
            raise BrowserError(f"no headless browser in {packages}: run make .venv/.browser, which needs PyPI")
        browser = cls(packages)
        done = browser._run(["-c", "import PySide6.QtWebEngineWidgets, PySide6.QtTest"], "")
        if done.returncode != 0:
            problem = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise BrowserError(f"the headless browser lacks a system library: {problem[0]}")
        return browser

    def visit(
        self,
        page: Path | str,
        steps: list[Step],
        *,
        width: int = 1080,
        height: int = 900,
        dark: bool = False,
        below: str | None = None,
    ) -> Visit:
        """Open a page, a file or an address, and take the steps, in order. It may ask for what is ``below`` an address.

        Raises:
            BrowserError: The page did not load, a selector finds nothing, or a wait does not end.
        """
        told = [{"do": type(step).__name__, **dataclasses.asdict(step)} for step in steps]
        where = {
            "page": str(page) if isinstance(page, str) else str(page.resolve()),
            "is_file": not isinstance(page, str),
        }
        job = {**where, "steps": told, "width": width, "height": height, "below": below}
        done = self._run([__file__], json.dumps(job, default=str), dark=dark)
        try:
            answer = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            raise BrowserError(f"the browser ended with exit code {done.returncode}: {done.stderr[-2000:]}") from None
        if "problem" in answer:
            raise BrowserError(f"{answer['problem']}; console: {answer['console']}")
        return Visit(answer["values"], answer["console"], answer["requests"])

    def _run(self, arguments: list[str], given: str, *, dark: bool = False) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as home:
            environment = {
                "PATH": os.environ.get("PATH", ""),
                **{name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
                "LANG": "C.UTF-8",
                "TZ": "UTC",
                "HOME": home,
                "XDG_RUNTIME_DIR": home,
                "PYTHONPATH": str(self.packages),
                "QT_QPA_PLATFORM": "offscreen",
                # The sandbox needs rights that a container does not give; the page is our own and reaches nothing.
                "QTWEBENGINE_DISABLE_SANDBOX": "1",
                "QTWEBENGINE_CHROMIUM_FLAGS": "--disable-gpu --force-device-scale-factor=1 "
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            }
            try:
                return subprocess.run(
                    [sys.executable, *arguments],
                    input=given,
                    capture_output=True,
                    text=True,
                    env=environment,
                    timeout=LIMIT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise BrowserError(f"the browser did not end within {LIMIT_S} s") from None


def _serve(job: dict[str, Any]) -> dict[str, Any]:
    """In the process of the browser: do the job."""
    from PySide6.QtCore import QEvent, QEventLoop, QPoint, QPointF, Qt, QTimer, QUrl
    from PySide6.QtGui import QMouseEvent
    from PySide6.QtTest import QTest
    from PySide6.QtWebEngineCore import (
        QWebEnginePage,
        QWebEngineProfile,
        QWebEngineSettings,
        QWebEngineUrlRequestInterceptor,
    )
    from PySide6.QtWebEngineWidgets import QWebEngineView
    from PySide6.QtWidgets import QApplication

    console: list[str] = []
    requests: list[str] = []
    values: list[Any] = []
    address = QUrl.fromLocalFile(job["page"]) if job["is_file"] else QUrl(job["page"])

    class Page(QWebEnginePage):  # type: ignore[misc]
        def javaScriptConsoleMessage(self, level: Any, message: str, line: int, _: str) -> None:  # noqa: N802
            console.append(f"{level.name.removesuffix('MessageLevel')}: {message} (line {line})")

    class Gate(QWebEngineUrlRequestInterceptor):  # type: ignore[misc]
        def interceptRequest(self, info: Any) -> None:  # noqa: N802
            asked = info.requestUrl()
            if asked == address or (job["below"] and asked.toString().startswith(job["below"])):
                return
            if asked.scheme() != "blob":  # made by the page itself: a worker, for instance
                requests.append(asked.toString())
                info.block(True)

    application = QApplication(["headless_browser"])  # noqa: F841 - must outlive the view
    profile = QWebEngineProfile()  # Keeps nothing.
    gate = Gate()
    profile.setUrlRequestInterceptor(gate)
    view = QWebEngineView()
    page = Page(profile, view)
    view.setPage(page)
    page.settings().setAttribute(QWebEngineSettings.WebAttribute.ShowScrollBars, False)
    view.resize(job["width"], job["height"])
    view.show()

    def wait(connect: Any) -> Any:
        loop, given = QEventLoop(), []

        def done(value: Any = None) -> None:
            given.append(value)
            loop.quit()

        connect(done)
        if not given:
            loop.exec()
        return given[0]

    def evaluate(expression: str) -> Any:
        text = wait(lambda done: page.runJavaScript(f"JSON.stringify([({expression})])", done))
        if not text:
            raise BrowserError(f"this expression fails: {expression}")
        return json.loads(text)[0]

    def until(expression: str) -> None:
        for _ in range(400):
            if evaluate(expression):
                return
            wait(lambda done: QTimer.singleShot(25, done))
        raise BrowserError(f"this does not become true in 10 s: {expression}")

    def drawn() -> None:
        """Wait until what was changed is on the screen."""
        evaluate("window.drawn = 0, requestAnimationFrame(() => requestAnimationFrame(() => window.drawn = 1)), 0")
        until("window.drawn === 1")

    def find(selector: str, across: float, down: float) -> QPoint:
        element = f"document.querySelector({json.dumps(selector)})"
        if evaluate(f"{element} === null"):
            raise BrowserError(f"nothing matches {selector}")
        evaluate(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}}), 0")
        drawn()
        box = evaluate(f"(({{x, y, width, height}}) => [x, y, width, height])({element}.getBoundingClientRect())")
        return QPoint(round(box[0] + across * box[2]), round(box[1] + down * box[3]))

    @contextlib.contextmanager
    def arriving(event: str) -> Iterator[None]:
        """Wait, at the end, until the page has seen what was sent."""
        evaluate(
            f"window.seen = 0, addEventListener('{event}', () => window.seen = 1, {{capture: true, once: true}}), 0"
        )
        yield
        until("window.seen === 1")

    def mouse(target: Any, kind: Any, place: QPoint) -> None:
        none, left = Qt.MouseButton.NoButton, Qt.MouseButton.LeftButton
        changed = none if kind == QEvent.Type.MouseMove else left
        held = left if kind == QEvent.Type.MouseButtonPress else none
        where = QPointF(place)
        everywhere = QPointF(target.mapToGlobal(place))
        event = QMouseEvent(kind, where, everywhere, changed, held, Qt.KeyboardModifier.NoModifier)
        QApplication.sendEvent(target, event)

    def shoot(path: str, height: int | None) -> None:
        evaluate("window.scrollTo(0, 0), 0")
        view.resize(job["width"], height or evaluate("document.documentElement.scrollHeight"))
        until(f"window.innerHeight === {view.height()}")
        drawn()
        # The frame that was drawn reaches the widget in its own time.
        wait(lambda done: QTimer.singleShot(300, done))
        if not view.grab().save(path, "PNG"):
            raise BrowserError(f"cannot write {path}")
        view.resize(job["width"], job["height"])

    def take(step: dict[str, Any]) -> None:
        kind, target = step["do"], view.focusProxy()
        if kind == "Evaluate":
            values.append(evaluate(step["expression"]))
        elif kind == "Until":
            until(step["expression"])
        elif kind == "Point":
            place = find(step["selector"], step["across"], step["down"])
            with arriving("pointermove"):
                mouse(target, QEvent.Type.MouseMove, place)
        elif kind == "Click":
            place = find(step["selector"], 0.5, 0.5)
            with arriving("click"):
                mouse(target, QEvent.Type.MouseMove, place)
                mouse(target, QEvent.Type.MouseButtonPress, place)
                mouse(target, QEvent.Type.MouseButtonRelease, place)
        elif kind == "Press":
            with arriving("keydown"):
                QTest.keyClick(target, getattr(Qt.Key, f"Key_{step['key']}"))
        else:
            shoot(step["path"], step["height"])
        drawn()

    answer: dict[str, Any] = {"values": values, "console": console, "requests": requests}
    try:
        page.load(address)
        if not wait(page.loadFinished.connect):
            raise BrowserError(f"{job['page']} does not load")
        for step in job["steps"]:
            take(step)
    except BrowserError as error:
        answer["problem"] = str(error)
    return answer


if __name__ == "__main__":
    print(json.dumps(_serve(json.load(sys.stdin))), flush=True)
    # The page and its profile may be torn down in any order: leave that to the operating system.
    os._exit(0)
