"""A picture of the HTML report of ``kvpool size``, for the docs.

    kvpool size --html report.html
    python tools/size_screenshot.py report.html docs/images/size-report.png

Needs the headless browser: ``make .venv/.browser``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.headless_browser import BrowserError, HeadlessBrowser, Shot, Until


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Take a picture of the HTML report of kvpool size.")
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path, help="a PNG file")
    parser.add_argument("--width", type=int, default=1080, help="of the window, in pixels (default 1080)")
    parser.add_argument("--height", type=int, help="stop after so many pixels; default: the whole page")
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args(arguments)
    try:
        if not given.page.is_file():
            raise BrowserError(f"{given.page}: no such file")
        visit = HeadlessBrowser.find().visit(
            given.page,
            [Until("document.readyState === 'complete'"), Shot(given.picture.resolve(), given.height)],
            width=given.width,
            dark=given.dark,
        )
    except BrowserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for line in (*visit.console, *visit.requests):
        print(f"error: the page says: {line}", file=sys.stderr)
    return 1 if visit.console or visit.requests else 0


if __name__ == "__main__":
    sys.exit(main())
