"""README as a package index shows it: links that lead into the public repository, or none."""

from __future__ import annotations

import argparse
import shutil
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.cargo_tools import CheckFailedError
from tools.markdown_links import links
from tools.releasing import checks, description

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HOME = "https://example.org/me/kvpool"


@pytest.mark.parametrize(
    ("link", "made", "bare"),
    [
        ("[sizing](docs/sizing.md)", f"[sizing]({HOME}/blob/v1/docs/sizing.md)", "sizing"),
        ("[more](docs/groups.md#a-b)", f"[more]({HOME}/blob/v1/docs/groups.md#a-b)", "more"),
        ("[engine](examples/paged_engine)", f"[engine]({HOME}/tree/v1/examples/paged_engine)", "engine"),
        ("![a, b](docs/images/stack.svg)", f"![a, b]({HOME}/raw/v1/docs/images/stack.svg)", "a, b"),
        ("[`x` [1]](LICENSE)", f"[`x` [1]]({HOME}/blob/v1/LICENSE)", "`x` [1]"),
        *[(kept, kept, kept) for kept in ("[a](https://b.org/c)", "[a](#b)", "[a](mailto:b@c)", "```\n[a](b)\n```")],
    ],
)
def test_a_link_leads_into_the_repository_or_is_its_words(link: str, made: str, bare: str) -> None:
    assert description.absolute(link, ROOT, HOME, "v1") == made
    assert description.absolute(link, ROOT, "", "v1") == bare


def test_a_link_to_nothing_is_found() -> None:
    for home in (HOME, ""):
        with pytest.raises(CheckFailedError, match=r"there is no docs/nothing\.md"):
            description.absolute("[x](docs/nothing.md)", ROOT, home, "v1")


def test_the_readme_keeps_all_else() -> None:
    """Every link of it, its snippet, and every other word."""
    made = description.absolute(README, ROOT, HOME, "v1")
    assert len(links(README)) > 20
    assert len(links(made)) == len(links(README))
    assert all(link["target"].startswith(HOME) for link in links(made))
    for part in ("/blob/v1/", "/tree/v1/", "/raw/v1/"):
        made = made.replace(f"{HOME}{part}", "")
    assert made == README
    assert links(description.absolute(README, ROOT, "", "v1")) == []


def sources(folder: Path) -> Path:
    for name in ("README.md", "pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    for name in {link["target"].partition("#")[0] for link in links(README)} | {"docs"}:
        path = folder / name
        if (ROOT / name).is_dir():
            path.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return folder


def test_the_sources_of_a_release_say_where_they_are_from(tmp_path: Path) -> None:
    before = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    description.describe(sources(tmp_path), HOME, "v1")
    after = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))
    assert after["project"].pop("urls") == {
        "Repository": HOME,
        "Documentation": f"{HOME}/tree/v1/docs",
        "Changelog": f"{HOME}/blob/v1/CHANGELOG.md",
    }
    assert after == before
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == description.absolute(README, ROOT, HOME, "v1")
    with pytest.raises(CheckFailedError, match=r"\[project\.optional-dependencies\] once, and no \[project\.urls\]"):
        description.describe(tmp_path, HOME, "v1")


def test_a_release_that_knows_no_repository_has_no_links_and_says_so(tmp_path: Path) -> None:
    description.describe(sources(tmp_path), "", "v1")
    assert (tmp_path / "pyproject.toml").read_bytes() == (ROOT / "pyproject.toml").read_bytes()
    assert checks.check_description(wheel(tmp_path, (tmp_path / "README.md").read_text(encoding="utf-8"))).endswith(
        "NO LINKS, no repository"
    )


def wheel(folder: Path, page: str) -> Path:
    path = folder / "kvpool-1-cp311-abi3-x.whl"
    with zipfile.ZipFile(path, "w") as files:
        files.writestr("kvpool-1.dist-info/METADATA", f"Metadata-Version: 2.4\nName: kvpool\n\n{page}")
    return path


def sdist(folder: Path, page: str) -> Path:
    path = folder / "kvpool-1.tar.gz"
    (folder / "info").write_text(f"Metadata-Version: 2.4\nName: kvpool\n\n{page}", encoding="utf-8")
    with tarfile.open(path, "w:gz") as files:
        files.add(folder / "info", "kvpool-1/PKG-INFO")
    return path


@pytest.mark.parametrize("made", [wheel, sdist])
def test_a_description_with_a_relative_link_is_not_shipped(tmp_path: Path, made: Callable[[Path, str], Path]) -> None:
    good = made(tmp_path, description.absolute(README, ROOT, HOME, "v1"))
    assert checks.check_description(good) == f"description with {len(links(README))} links, all absolute"
    with pytest.raises(CheckFailedError, match=r"its description links to .*docs/sizing\.md"):
        checks.check_description(made(tmp_path, README))
    with pytest.raises(CheckFailedError, match="has no description"):
        checks.check_description(made(tmp_path, " \n"))


def test_a_workflow_knows_its_repository_and_anybody_else_says_it() -> None:
    there = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "me/kvpool"}
    assert description.known_repository(there) == HOME
    assert description.known_repository({"GITHUB_SERVER_URL": "https://example.org"}) == ""
    assert description.repository(f"{HOME}/") == HOME
    assert description.repository("") == ""
    with pytest.raises(argparse.ArgumentTypeError, match=r"example\.org must be an address that begins with https://"):
        description.repository("example.org")
