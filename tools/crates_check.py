#!/usr/bin/env python3
"""The slow checks of the crates that are published: ``make crates-check`` runs them.

    python tools/crates_check.py                     # all, against the last tag
    python tools/crates_check.py --baseline COMMIT   # the public surface against another commit
    python tools/crates_check.py --names             # what is published, one word after the other, dependencies first

All of them look at a clean clone of the last commit, as whoever downloads a crate would:

- manifest: what crates.io and docs.rs show is stated, and no dependency of a published crate stays behind;
- package: cargo package of all, each built from its archive against the archives of the others; what is inside;
- documentation: as docs.rs builds it, without a warning;
- minimal versions: the oldest version of each dependency that its requirement allows resolves, and builds;
- semver: the public surface against the last tag, by cargo-semver-checks.

Unstable flags of cargo and rustdoc are taken from the stable toolchain (``RUSTC_BOOTSTRAP``): no other one is needed.
cargo-semver-checks is installed into target/tools, which takes minutes, once. Without a tag it is skipped, and says so.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.cargo_tools import (
    ROOT,
    CheckFailedError,
    SkippedError,
    call,
    cargo,
    cargo_home,
    find_cargo_tool,
    require,
    run_checks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Reads what rustdoc of Rust 1.95 writes; an older one does not.
SEMVER_CHECKS: Final = "0.51.0"
#: What crates.io takes.
LARGEST: Final = 10 << 20
UNSTABLE: Final = {"RUSTC_BOOTSTRAP": "1"}


class Crate(NamedTuple):
    """A crate that is published."""

    name: str
    version: str
    #: Crates of this workspace that it needs where it is used.
    needs: frozenset[str]
    docs: dict[str, Any]
    manifest: dict[str, Any]


def published(root: Path = ROOT) -> list[Crate]:
    """The published crates of a checkout, each after those that it needs."""
    command = (cargo(), "metadata", "--locked", "--no-deps", "--format-version", "1")
    packages = json.loads(require(call(*command, cwd=root), "cargo metadata"))["packages"]
    return ordered([crate_of(package) for package in packages if package["publish"] != []])


def crate_of(package: dict[str, Any]) -> Crate:
    """A crate, from what cargo tells of it."""
    needs = {one["name"] for one in package["dependencies"] if one.get("path") and one["kind"] != "dev"}
    docs = ((package["metadata"] or {}).get("docs") or {}).get("rs") or {}
    return Crate(package["name"], package["version"], frozenset(needs), docs, package)


def ordered(crates: list[Crate]) -> list[Crate]:
    """Dependencies first, else by name. What needs a crate that is not published comes last."""
    left = sorted(crates)
    done: list[Crate] = []
    while left:
        ready = [crate for crate in left if crate.needs <= {one.name for one in done}] or left
        done += ready
        left = [crate for crate in left if crate not in ready]
    return done


def check_manifests(crates: list[Crate]) -> str:
    """What crates.io and docs.rs show, and what crates.io would refuse."""
    problems = [f"{crate.name}: {problem}" for crate in crates for problem in problems_of(crate, crates)]
    if problems:
        raise CheckFailedError("\n".join(problems))
    return f"{len(crates)} crates, in this order: {', '.join(crate.name for crate in crates)}"


def problems_of(crate: Crate, crates: list[Crate]) -> Iterator[str]:
    """What the manifest of a crate lacks."""
    for key in ("description", "keywords", "categories", "license", "rust_version", "authors"):
        if not crate.manifest[key]:
            yield f"no {key}"
    if len(crate.manifest["keywords"]) > 5:
        yield "more than five keywords: crates.io refuses it"
    if not crate.docs.get("targets"):
        yield "no targets for docs.rs: it builds the same pages five times"
    for name in sorted(crate.needs - {one.name for one in crates}):
        yield f"needs {name}, which is not published"
    for one in crate.manifest["dependencies"]:
        if one.get("path") and one["kind"] != "dev" and one["req"] == "*":
            yield f"needs {one['name']} in any version: say which"


def packages_of(crates: Sequence[Crate]) -> list[str]:
    return [word for crate in crates for word in ("--package", crate.name)]


def check_packages(crates: list[Crate], clone: Path, target: Path) -> str:
    """Archives of all, each built against the archives of the others.

    Those lie in a registry below the folder that cargo builds in, and cargo takes what a registry has of a version for
    what it will ever have: in a folder that was used before, it builds against the archives of another commit.
    """
    before = set(unpacked())
    with tempfile.TemporaryDirectory(dir=target) as fresh:
        command = (cargo(), "package", "--locked", "--quiet", *packages_of(crates))
        try:
            require(call(*command, cwd=clone, CARGO_TARGET_DIR=fresh), "cargo package")
        finally:
            for left in set(unpacked()) - before:
                shutil.rmtree(left, ignore_errors=True)
        sizes = []
        for crate in crates:
            archive = Path(fresh, "package", f"{crate.name}-{crate.version}.crate")
            look_into(archive, crate, forbidden=[str(clone), str(ROOT), str(Path.home())])
            sizes.append(f"{crate.name} {archive.stat().st_size / 1024:.0f} KiB")
    return f"each builds from its archive: {', '.join(sizes)}"


def unpacked() -> list[Path]:
    """What cargo has unpacked of registries that are folders: they have no host, which the names begin with."""
    return [path for kind in ("src", "cache", "index") for path in (cargo_home() / "registry" / kind).glob("-*")]


def look_into(archive: Path, crate: Crate, forbidden: Sequence[str]) -> None:
    """What has to be in an archive, and what must not."""
    folder = f"{crate.name}-{crate.version}"
    with tarfile.open(archive) as files:
        content = {member.name: files.extractfile(member) for member in files.getmembers() if member.isfile()}
        texts = {name: file.read() for name, file in content.items() if file is not None}
    wanted = ["Cargo.toml", "Cargo.lock", "LICENSE", "src/lib.rs"]
    if readme := crate.manifest["readme"]:
        wanted.append(Path(readme).name)
    problems = [f"{name} is missing" for name in wanted if f"{folder}/{name}" not in texts]
    # A home of one letter would be found in anything.
    paths = [path.encode() for path in forbidden if len(path) > 4]
    problems += [f"{name} names a path of this machine" for name in texts if any(one in texts[name] for one in paths)]
    if archive.stat().st_size > LARGEST:
        problems.append(f"{archive.stat().st_size} bytes, crates.io takes {LARGEST}")
    if problems:
        raise CheckFailedError(f"{archive.name}: {'; '.join(problems)}")


def check_documentation(crates: list[Crate], clone: Path, target: Path) -> str:
    """As docs.rs builds it: its features, its flags."""
    for crate in crates:
        features = ["--all-features"] if crate.docs.get("all-features") else []
        if named := crate.docs.get("features"):
            features = ["--features", ",".join(named)]
        flags = " ".join(["-D warnings", *crate.docs.get("rustdoc-args", [])])
        command = (cargo(), "doc", "--locked", "--quiet", "--no-deps", "--lib", "--package", crate.name, *features)
        done = call(*command, cwd=clone, CARGO_TARGET_DIR=str(target), RUSTDOCFLAGS=flags, **UNSTABLE)
        require(done, f"cargo doc of {crate.name}")
    return f"{len(crates)} crates as docs.rs builds them, no warning"


def check_minimal_versions(crates: list[Crate], clone: Path, target: Path) -> str:
    """The oldest version of each direct dependency that its requirement allows."""
    lock = clone / "Cargo.lock"
    kept = lock.read_bytes()
    try:
        lock.unlink()
        resolve = (cargo(), "-Z", "direct-minimal-versions", "generate-lockfile")
        require(call(*resolve, cwd=clone, **UNSTABLE), "a requirement is lower than what another dependency needs")
        found = call(
            cargo(), "check", "--locked", "--quiet", *packages_of(crates), cwd=clone, CARGO_TARGET_DIR=str(target)
        )
        require(found, "with the oldest versions that the requirements allow")
    finally:
        lock.write_bytes(kept)
    return "the oldest versions that the requirements allow resolve, and build"


def last_tag(clone: Path) -> str:
    """The tag that the surface is compared with: the last one before this commit, which may be a release itself."""
    found = call("git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^", cwd=clone)
    if found.returncode != 0:
        raise SkippedError(
            "no tag v... is in the history of this checkout: there is no published surface to compare with"
        )
    return found.stdout.strip()


def check_semver(crates: list[Crate], clone: Path, target: Path, tools: Path, baseline: str | None) -> str:
    """The public surface: nothing is gone that the version promises."""
    baseline = baseline or last_tag(clone)
    program = find_cargo_tool("cargo-semver-checks", SEMVER_CHECKS, tools)
    command = ("semver-checks", "--baseline-rev", baseline, *packages_of(crates))
    said = require(call(program, *command, cwd=clone, CARGO_TARGET_DIR=str(target)), f"against {baseline}")
    verdicts = said.count("no semver update required")
    if verdicts != len(crates):
        raise CheckFailedError(f"cargo-semver-checks compared {verdicts} of {len(crates)} crates:\n{said.rstrip()}")
    return f"the surface of {verdicts} crates is that of {baseline}, or larger"


def make_clone(folder: Path) -> Path:
    """The last commit, apart from whatever else lies in this checkout."""
    clone = folder / "kvpool"
    require(call("git", "clone", "--quiet", "--local", ROOT, clone), "git clone")
    if call("git", "status", "--porcelain").stdout.strip():
        print("NOT CHECKED: changes that are not committed; what follows is about the last commit", file=sys.stderr)
    return clone


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the crates that are published.")
    parser.add_argument("--baseline", help="commit or tag that the public surface is compared with; the last tag")
    parser.add_argument("--target", type=Path, default=ROOT / "target" / "crates", help="where crates are built")
    parser.add_argument("--tools", type=Path, default=ROOT / "target" / "tools", help="where cargo installs programs")
    parser.add_argument("--names", action="store_true", help="only say what is published")
    given = parser.parse_args(arguments)
    crates = published()
    if given.names:
        print(" ".join(crate.name for crate in crates))
        return 0
    target = given.target.resolve()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as folder:
        clone = make_clone(Path(folder))
        failed, _ = run_checks(
            [
                ("manifest", lambda: check_manifests(crates)),
                ("package", lambda: check_packages(crates, clone, target)),
                ("documentation", lambda: check_documentation(crates, clone, target)),
                ("minimal versions", lambda: check_minimal_versions(crates, clone, target)),
                ("semver", lambda: check_semver(crates, clone, target, given.tools, given.baseline)),
            ]
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
