"""Connects Playwright to the headless Chromium of Qt WebEngine, which is installed from PyPI.

``make .venv/.browser`` installs Playwright and Qt WebEngine in a separate folder. Playwright's own
browsers are not on PyPI. So this module opens an empty Qt window without a display, and connects
Playwright to the window's debugging port.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.dynamo.indexer import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The folder into which ``make .venv/.browser`` installs the packages.
PACKAGES: Final = Path(__file__).resolve().parents[1] / ".venv" / "browser"
#: Largest number of seconds that the browser may take to start.
START_S: Final = 60
_WINDOW: Final = """
from PySide6.QtWebEngineWidgets import QWebEngineView
from PySide6.QtWidgets import QApplication
application = QApplication(["browser"])
view = QWebEngineView()
view.resize(1280, 900)
view.setHtml("")
view.show()
application.exec()
"""


class BrowserError(Exception):
    """The browser is not installed or does not start; the message states the reason."""


@contextlib.contextmanager
def opened_page(packages: Path = PACKAGES) -> Iterator[Any]:
    """Starts the browser and yields its only page, a ``playwright.sync_api.Page``.

    Raises:
        BrowserError: The browser is not installed, or a system library is missing.
    """
    if not (packages / "PySide6" / "QtWebEngineCore.abi3.so").is_file():
        raise BrowserError(f"no headless browser in {packages}: run make .venv/.browser, which needs PyPI")
    sys.path.append(str(packages))
    from playwright.sync_api import sync_playwright

    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        environment = {
            "PATH": os.environ.get("PATH", ""),
            **{name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "HOME": home,
            "XDG_RUNTIME_DIR": home,
            "PYTHONPATH": str(packages),
            "QT_QPA_PLATFORM": "offscreen",
            # The sandbox needs rights that a container does not have. The browser can do without it,
            # because it opens only this project's pages.
            "QTWEBENGINE_DISABLE_SANDBOX": "1",
            "QTWEBENGINE_CHROMIUM_FLAGS": "--disable-gpu --force-device-scale-factor=1",
            "QTWEBENGINE_REMOTE_DEBUGGING": f"127.0.0.1:{port}",
        }
        log = Path(home) / "log"
        with log.open("w") as stderr:
            process = subprocess.Popen([sys.executable, "-c", _WINDOW], env=environment, stderr=stderr)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(process, address, log)
            with sync_playwright() as playwright:
                # Use the browser's only context. Qt refuses the settings that Playwright passes to a
                # new context.
                browser = playwright.chromium.connect_over_cdp(address, no_defaults=True)
                yield browser.contexts[0].pages[0]
        finally:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Waits until the browser answers on its debugging port."""
    until = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/json/version", timeout=START_S):
            return
        if process.poll() is not None or time.monotonic() > until:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise BrowserError(
                f"the headless browser does not start: {(lines or ['it prints no reason'])[-1]}"
            )
        time.sleep(0.05)
