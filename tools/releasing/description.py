"""The README as a package index shows it.

Its links are paths of the repository. An index has no other file of it, so they lead into the public repository there,
at what is released: the tag, or the commit. Where that repository is, only a release knows: ``--repository``, or the
workflow that runs it. A release that does not know leaves no link that leads nowhere: words stay, and it says so.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

from tools.cargo_tools import CheckFailedError
from tools.markdown_links import with_links

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping
    from pathlib import Path

#: Before it, pyproject.toml gets the addresses.
_BEFORE: Final = "[project.optional-dependencies]\n"
#: What an index lists beside the description, and where it is.
_PAGES: Final = {"Documentation": "docs", "Changelog": "CHANGELOG.md"}


def known_repository(variables: Mapping[str, str] = os.environ) -> str:
    """The address of the repository whose workflow this is; nothing elsewhere."""
    server, name = variables.get("GITHUB_SERVER_URL", ""), variables.get("GITHUB_REPOSITORY", "")
    return f"{server}/{name}" if server and name else ""


def repository(given: str) -> str:
    """An argument as links are made of it: an address, or nothing."""
    if given and not given.startswith("https://"):
        raise argparse.ArgumentTypeError(f"{given} must be an address that begins with https://")
    return given.rstrip("/")


def address(path: str, root: Path, base: str, revision: str, *, picture: bool = False) -> str:
    """Where a file or a folder of the repository is shown; a picture, where its bytes are."""
    if not (root / path).exists():
        raise CheckFailedError(f"README.md: there is no {path}")
    shown = "raw" if picture else "tree" if (root / path).is_dir() else "blob"
    return f"{base}/{shown}/{revision}/{path}"


def absolute(readme: str, root: Path, base: str, revision: str) -> str:
    """The README with links that lead from anywhere to files of ``root``; without a repository, with their words."""

    def replaced(link: re.Match[str]) -> str:
        path, mark, anchor = link["target"].partition("#")
        if not path or ":" in path:
            return link[0]
        words: str = link["words"]
        target = address(path, root, base, revision, picture=bool(link["bang"]))
        return f"{link['bang']}[{words}]({target}{mark}{anchor})" if base else words

    return with_links(readme, replaced)


def describe(tree: Path, base: str, revision: str) -> None:
    """Rewrites the README of the sources, and gives pyproject.toml the addresses that an index lists."""
    readme = tree / "README.md"
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), tree, base, revision), encoding="utf-8")
    if not base:
        return
    project = tree / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    if text.count(_BEFORE) != 1 or "[project.urls]" in text:
        raise CheckFailedError(f"pyproject.toml must have {_BEFORE.strip()} once, and no [project.urls]")
    urls = {"Repository": base}
    urls |= {name: address(path, tree, base, revision) for name, path in _PAGES.items()}
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    project.write_text(text.replace(_BEFORE, f"[project.urls]\n{lines}\n{_BEFORE}"), encoding="utf-8")
