"""tools/crates_check.py: what it finds wrong in made-up crates, and that those of this checkout are in order."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tools import cargo_tools, crates_check
from tools.cargo_tools import CheckFailedError, SkippedError

ROOT = Path(__file__).resolve().parents[1]


def package(name: str, *needs: str, **changed: Any) -> crates_check.Crate:
    """A crate that is in order, but for what is changed."""
    manifest = {
        "name": name,
        "version": "1.2.3",
        "dependencies": [{"name": one, "path": f"/x/{one}", "kind": None, "req": "^1.2"} for one in needs],
        "metadata": {"docs": {"rs": {"targets": ["x86_64-unknown-linux-gnu"]}}},
        "description": "a crate",
        "keywords": ["kv-cache"],
        "categories": ["caching"],
        "license": "Apache-2.0",
        "rust_version": "1.88",
        "authors": ["us"],
        "readme": "README.md",
    }
    return crates_check.crate_of(manifest | changed)


def test_the_published_crates_of_this_checkout_are_in_order() -> None:
    crates = crates_check.published()
    names = [crate.name for crate in crates]
    assert {"kvpool", "kvpool-core", "kvpool-hash", "kvpool-store", "kvpool-journal"} <= set(names)
    assert not {"kvpool-py", "kvpool-testing", "kvpool-fuzz"} & set(names)
    order = [names.index(name) for name in ("kvpool-hash", "kvpool-core", "kvpool", "kvpool-journal")]
    assert order == sorted(order)
    crates_check.check_manifests(crates)
    done = subprocess.run(
        [sys.executable, "tools/crates_check.py", "--names"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == names


def test_each_has_the_licence_and_the_quickstart_names_a_version_that_is_there() -> None:
    for crate in crates_check.published():
        folder = Path(crate.manifest["manifest_path"]).parent
        assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    readme = (ROOT / "rust/kvpool/README.md").read_text(encoding="utf-8")
    (named,) = re.findall(r'^kvpool = "(\d+\.\d+)"$', readme, flags=re.MULTILINE)
    (version,) = {crate.version for crate in crates_check.published()}
    assert version.startswith(f"{named}.")
    # It is part of the crate's docs, whose examples are tests.
    assert '#![doc = include_str!("../README.md")]' in (ROOT / "rust/kvpool/src/lib.rs").read_text(encoding="utf-8")
    assert readme.count("```rust\n") >= 2


@pytest.mark.parametrize("crate", crates_check.published(), ids=lambda crate: crate.name)
def test_each_has_a_readme_that_says_what_to_take_and_has_an_example_that_runs(crate: crates_check.Crate) -> None:
    folder = Path(crate.manifest["manifest_path"]).parent
    assert crate.manifest["readme"] == "README.md"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert readme.startswith(f"# {crate.name}\n\n")
    others = {other.name for other in crates_check.published()} - {crate.name}
    assert any(f"`{other}`" in readme for other in others)
    assert "```rust\n" in readme
    assert 'doc = include_str!("../README.md")]' in (folder / "src/lib.rs").read_text(encoding="utf-8")


def test_the_overview_of_the_manager_has_every_method() -> None:
    folder = ROOT / "rust/kvpool/src/manager"
    text = (folder / "mod.rs").read_text(encoding="utf-8")
    overview = text[text.index("/// Requests by id") : text.index("pub struct CacheManager")]
    impl = re.compile(r"^impl CacheManager \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)
    found, left_out = set(), {"new", "with_evictor", "with_hasher"}
    for path in folder.glob("*.rs"):
        if path.name in {"observe.rs", "checks.rs"}:
            continue  # what observers and checks look at
        for block in impl.findall(path.read_text(encoding="utf-8")):
            found |= set(re.findall(r"^    pub (?:const )?fn (\w+)", block, re.MULTILINE))
            left_out |= set(re.findall(r"#\[doc\(hidden\)\]\n(?:    [#/].*\n)*    pub (?:const )?fn (\w+)", block))
    missing = sorted(name for name in found - left_out if f"(Self::{name})" not in overview)
    assert (len(found) > 60, missing) == (True, [])


def test_dependencies_come_first() -> None:
    crates = [package("a", "b", "c"), package("b", "c"), package("c"), package("d", "a")]
    assert [crate.name for crate in crates_check.ordered(crates)] == ["c", "b", "a", "d"]
    # What can never be published is not lost on the way to being reported.
    assert [crate.name for crate in crates_check.ordered([package("a", "gone")])] == ["a"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"description": None}, "a: no description"),
        ({"keywords": []}, "a: no keywords"),
        ({"license": None}, "a: no license"),
        ({"rust_version": None}, "a: no rust_version"),
        ({"keywords": list("abcdef")}, "a: more than five keywords"),
        ({"metadata": None}, "a: no targets for docs.rs"),
        (
            {"dependencies": [{"name": "b", "path": "/x/b", "kind": None, "req": "^1"}]},
            "a: needs b, which is not published",
        ),
        (
            {"dependencies": [{"name": "a", "path": "/x/a", "kind": "build", "req": "*"}]},
            "a: needs a in any version",
        ),
    ],
)
def test_what_a_manifest_lacks_is_said(changed: dict[str, Any], said: str) -> None:
    assert crates_check.check_manifests([package("a")])
    with pytest.raises(CheckFailedError, match=said):
        crates_check.check_manifests([package("a", **changed)])


def test_what_only_tests_need_may_stay_behind() -> None:
    tests_need = [{"name": "models", "path": "/x/models", "kind": "dev", "req": "*"}]
    assert crates_check.check_manifests([package("a", dependencies=tests_need)])


#: What an archive has to have.
WANTED = ("Cargo.toml", "Cargo.lock", "LICENSE", "README.md", "src/lib.rs")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    files = {
        "Cargo.toml": b"[package]",
        "Cargo.lock": b"",
        "LICENSE": b"",
        "README.md": b"",
        "src/lib.rs": b"//! A crate",
    }
    return pack(tmp_path / "a-1.2.3.crate", files)


def pack(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for name, text in files.items():
            member = tarfile.TarInfo(f"a-1.2.3/{name}")
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text))
    return path


def test_each_run_packs_in_a_folder_of_its_own_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cargo never looks again at a version that a registry in a folder has had."""
    sources = tmp_path / "home" / "registry" / "src"
    for known in ("index.org-1", "-2"):
        (sources / known).mkdir(parents=True)
    monkeypatch.setenv("CARGO_HOME", str(tmp_path / "home"))
    folders: list[Path] = []

    def call(*_: object, **given: str) -> subprocess.CompletedProcess[str]:
        folder = Path(given["CARGO_TARGET_DIR"])
        assert list(folder.iterdir()) == []
        folders.append(folder)
        (folder / "package").mkdir()
        pack(folder / "package" / "a-1.2.3.crate", dict.fromkeys(WANTED, b""))
        (sources / f"-{len(folders) + 2}" / "a-1.2.3").mkdir(parents=True)
        return subprocess.CompletedProcess([], int(len(folders) == 3), "")

    monkeypatch.setattr(crates_check, "call", call)
    for _ in range(2):
        assert "a 0 KiB" in crates_check.check_packages([package("a")], tmp_path / "clone", tmp_path)
    with pytest.raises(CheckFailedError):
        crates_check.check_packages([package("a")], tmp_path / "clone", tmp_path)
    assert len(set(folders)) == 3
    assert not [folder for folder in folders if folder.exists()]
    assert {path.name for path in sources.iterdir()} == {"index.org-1", "-2"}


def test_an_archive_has_what_it_has_to_have_and_no_path_of_the_machine(archive: Path, tmp_path: Path) -> None:
    crate = package("a")
    crates_check.look_into(archive, crate, [str(tmp_path)])
    bare = pack(tmp_path / "bare.crate", {"Cargo.toml": b"[package]", "src/lib.rs": f'"{tmp_path}/x"'.encode()})
    with pytest.raises(CheckFailedError) as error:
        crates_check.look_into(bare, crate, [str(tmp_path), "/"])
    assert str(error.value) == (
        "bare.crate: Cargo.lock is missing; LICENSE is missing; README.md is missing; "
        "a-1.2.3/src/lib.rs names a path of this machine"
    )


def test_an_archive_that_is_too_large_is_a_failure(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crates_check, "LARGEST", 10)
    with pytest.raises(CheckFailedError, match=r"crates\.io takes 10"):
        crates_check.look_into(archive, package("a"), [])


def repository(folder: Path, *commits: str) -> Path:
    """A repository with a commit for each of these, which are its tags; an empty one is none."""
    folder.mkdir(exist_ok=True)
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    for tag in commits:
        made = ["commit", "--quiet", "--allow-empty", "--message", "one"]
        subprocess.run(["git", *name, *made], cwd=folder, check=True)
        if tag:
            subprocess.run(["git", "tag", tag], cwd=folder, check=True)
    return folder


def test_without_a_tag_the_surface_is_skipped_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = repository(tmp_path, "nightly-1", "")
    check = ("semver", lambda: crates_check.check_semver([], clone, tmp_path, tmp_path, None))
    assert cargo_tools.run_checks([check]) == (False, True)
    assert "semver: SKIPPED, NOT CHECKED: no tag v..." in capsys.readouterr().err


def test_the_last_tag_is_that_of_a_version_before_this_one(tmp_path: Path) -> None:
    assert crates_check.last_tag(repository(tmp_path / "a", "v0.1.0", "zebra", "")) == "v0.1.0"
    # A release is compared with the one before it, not with itself; the first one with nothing.
    assert crates_check.last_tag(repository(tmp_path / "b", "v0.1.0", "v0.2.0")) == "v0.1.0"
    for commits in (["v0.1.0"], ["", "v0.1.0"]):
        first = repository(tmp_path / str(len(commits)), *commits)
        with pytest.raises(SkippedError, match="no tag v"):
            crates_check.last_tag(first)


@pytest.mark.parametrize(
    ("said", "status", "failure"),
    [
        ("Summary no semver update required\n" * 2, 0, None),
        ("Summary no semver update required\n", 0, "compared 1 of 2 crates"),
        ("Summary semver requires new major version", 1, "against v1, exit status 1"),
    ],
)
def test_a_surface_that_shrank_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, status: int, failure: str | None
) -> None:
    program = tmp_path / "cargo-semver-checks"
    program.write_text(f"#!/bin/sh\nprintf %s {shlex.quote(said)}\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setattr(crates_check, "find_cargo_tool", lambda *_: program)
    crates = [package("a"), package("b")]
    if failure is None:
        assert "the surface of 2 crates" in crates_check.check_semver(crates, tmp_path, tmp_path, tmp_path, "v1")
    else:
        with pytest.raises(CheckFailedError, match=failure):
            crates_check.check_semver(crates, tmp_path, tmp_path, tmp_path, "v1")


def test_one_check_that_fails_keeps_no_other_back(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> str:
        raise CheckFailedError("broken")

    assert cargo_tools.run_checks([("first", fails), ("second", lambda: "well")]) == (True, False)
    out, err = capsys.readouterr()
    assert (out, err) == ("second: well\n", "first: FAILED: broken\n")
