"""The sources that a release is built from: the last commit and nothing else, with the notices that it ships.

They lie in one folder that stays, so that cargo builds again only what has changed. ``pyproject.toml`` there names two
more licence files than the one that is committed: what they say depends on what is linked.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from tools.cargo_tools import ROOT, CheckFailedError, call, require
from tools.releasing.notices import NOTICES, STD_NOTICES

#: As it stands in pyproject.toml, and as the release has it.
_LICENCES: Final = 'license-files = ["LICENSE"]'
_ALL_LICENCES: Final = f'license-files = ["LICENSE", "{NOTICES}", "{STD_NOTICES}"]'


def version(root: Path = ROOT) -> str:
    """The version in Cargo.toml."""
    found = tomllib.loads((root / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    assert isinstance(found, str)
    return found


def commit() -> tuple[str, int]:
    """The last commit, and its time in seconds since 1970."""
    name, seconds = require(call("git", "show", "--no-patch", "--format=%H %ct", "HEAD"), "git show").split()
    return name, int(seconds)


def changes() -> list[str]:
    """What is in the working tree and not in the last commit."""
    return require(call("git", "status", "--porcelain"), "git status").splitlines()


def lay(tree: Path) -> None:
    """The last commit as files in ``tree``. A file that is there with the same bytes is left alone, any other goes."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "commit.tar")
        require(call("git", "archive", "--format=tar", "--output", archive, "HEAD"), "git archive")
        fresh = Path(folder, "fresh")
        with tarfile.open(archive) as files:
            files.extractall(fresh, filter="data")
        settle(fresh, tree)


def settle(fresh: Path, tree: Path) -> None:
    """Makes ``tree`` equal to ``fresh``, times of files that are equal already excepted."""
    wanted = {path.relative_to(fresh) for path in fresh.rglob("*") if not path.is_dir()}
    for path in [path for path in tree.rglob("*") if not path.is_dir()]:
        if path.relative_to(tree) not in wanted:
            path.unlink()
    for name in sorted(wanted):
        source, target = fresh / name, tree / name
        if target.is_file() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        # A link becomes what it points to: an archive of the sources must not depend on it.
        shutil.copyfile(source, target)


def add_licences(tree: Path, notices: dict[str, bytes]) -> None:
    """Puts the notices into the tree, and names them where the licence is named."""
    for name, page in notices.items():
        (tree / name).write_bytes(page)
    project = tree / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    if text.count(_LICENCES) != 1:
        raise CheckFailedError(f"pyproject.toml has no line {_LICENCES}, which a release has to replace")
    project.write_text(text.replace(_LICENCES, _ALL_LICENCES), encoding="utf-8")
