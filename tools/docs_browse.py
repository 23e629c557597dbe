"""Checks the search index of the built site, and opens every page in the headless browser."""

from __future__ import annotations

import contextlib
import functools
import html
import http.server
import json
import re
import threading
import time
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

from tools.browser import opened_page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Widths of the browser window, in pixels: a desktop and a telephone.
WIDTHS: Final = (1280, 390)
HEIGHT: Final = 900
#: Seconds that the search may take to show an answer.
SEARCH_S: Final = 5
#: Number of times that a search is tried. On a busy machine the first keys can be lost, because the
#: search field does not have the focus yet.
ATTEMPTS: Final = 3

#: A script that finds faults of the layout. It reports text that an element hides, and text that
#: extends beyond the right edge of the window and cannot be scrolled.
_FAULTS: Final = """
width => {
  const faults = [];
  const root = document.scrollingElement;
  if (root.scrollWidth > root.clientWidth + 1)
    faults.push(`the page is ${root.scrollWidth} pixels wide`);
  const article = document.querySelector("article");
  if (!article) return ["no article"];
  const scrolls = element => {
    for (let one = element; one && one !== article.parentElement; one = one.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(one).overflowX)) return true;
    return false;
  };
  for (const one of article.querySelectorAll("*")) {
    const box = one.getBoundingClientRect();
    if (!box.width || !box.height || one.closest("svg, nav, button")) continue;
    const text = (one.textContent || "").trim().slice(0, 40);
    const style = getComputedStyle(one);
    const hides = ["hidden", "clip"].includes(style.overflowX);
    if (hides && one.scrollWidth > one.clientWidth + 1 && text && one.tagName !== "IMG")
      faults.push(`cut: <${one.tagName}> ${text}`);
    else if (box.right > root.clientWidth + 1 && !scrolls(one))
      faults.push(`beyond the edge: <${one.tagName}> ${text}`);
    if (one.tagName === "TABLE" && width >= 1280) {
      const around = one.closest(".md-typeset__scrollwrap") || one.parentElement;
      if (one.scrollWidth > one.clientWidth + 1 || box.width > around.clientWidth + 1)
        faults.push(`table wider than the page: ${text.replace(/\\s+/g, " ")}`);
    }
  }
  return [...new Set(faults)].slice(0, 5);
}
"""


def layout_faults(page: Any, width: int) -> list[str]:
    """Shows the open page at a width in pixels. Returns at most five faults of its layout."""
    page.set_viewport_size({"width": width, "height": HEIGHT})
    faults: list[str] = page.evaluate(_FAULTS, width)
    return faults


def search_index(site: Path) -> list[dict[str, Any]]:
    """Returns the location, title and text of each section in the search index."""
    items: list[dict[str, Any]] = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    return items


def missing_in_search(site: Path, words: list[str]) -> list[str]:
    """Compares the search index with the glossary. Returns a line for each word that has no section in
    the index, and for each internal page that has one.
    """
    items = search_index(site)
    titles = {
        html.unescape(re.sub(r"<[^>]+>", "", item["title"])).strip()
        for item in items
        if item["location"].startswith("glossary.html")
    }
    problems = [
        f"search: the index has no section of the glossary for {word!r}"
        for word in words
        if word not in titles
    ]
    internal = ("api/testing/", "design/", "architecture.html", "contributing.html", "changelog.html")
    problems += [
        f"search: the index has {item['location']}, which is internal"
        for item in items
        if item["location"].startswith(internal)
    ]
    return problems


def browse(site: Path, words: dict[str, tuple[str, ...]]) -> list[str]:
    """Opens every page in the headless browser at each width, and searches for every word.

    ``words`` has the pages that the search should find for each word. Returns one line per problem.
    Problems are faults of the layout, pages without a heading, messages on the console, requests to
    addresses outside of the site, and searches that do not find the pages of their word.
    """
    problems = missing_in_search(site, list(words))
    with served(site) as address, opened_page() as page:

        def requested(asked: Any) -> None:
            if not asked.url.startswith((address, "blob:", "data:")):
                problems.append(f"{page.url}: asks for {asked.url}")

        page.on("console", lambda message: problems.append(f"{page.url}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"{page.url}: {error}"))
        page.on("request", requested)
        for name in [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]:
            if name == "404.html":
                continue
            page.goto(f"{address}{name}")
            if not page.text_content("h1"):
                problems.append(f"{name}: no heading")
            for width in WIDTHS:
                problems += [f"{name} at {width} pixels: {fault}" for fault in layout_faults(page, width)]
        page.set_viewport_size({"width": max(WIDTHS), "height": HEIGHT})
        for word, answers in words.items():
            found = searched(page, address, word, answers)
            if not _answered(found, answers):
                problems.append(f"search: {word!r} finds {found[:3]}, and none of {', '.join(answers)}")
    return problems


def _answered(links: list[str], answers: tuple[str, ...]) -> bool:
    return any(urllib.parse.urlsplit(link).path.lstrip("/") in answers for link in links)


def searched(page: Any, address: str, word: str, answers: tuple[str, ...]) -> list[str]:
    """Types a word into the search field of the first page. Returns the links of the first results.

    The search shows results while the word is still being typed. So this function waits until a link to
    one of ``answers`` appears.
    """
    for attempt in range(ATTEMPTS):
        page.goto(f"{address}index.html")
        page.click(".md-search__button")
        page.keyboard.type(word)
        found = _results(page, answers)
        if found or attempt + 1 == ATTEMPTS:
            return found
    return []


def _results(page: Any, answers: tuple[str, ...]) -> list[str]:
    # The results are in a shadow tree, a separate part of the page. Playwright's selectors also search
    # shadow trees.
    links = page.locator("ol a, [role=listbox] a, .focus-visible a")
    until = time.monotonic() + SEARCH_S
    while True:
        found = [str(link) for link in links.evaluate_all("found => found.map(one => one.href)")]
        if _answered(found, answers) or time.monotonic() > until:
            return found
        time.sleep(0.02)


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    """Serves the site on this machine and yields its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Ignores the error if the browser closes a connection early."""

    handler = functools.partial(Quiet, directory=str(site))
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
