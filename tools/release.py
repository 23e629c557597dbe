#!/usr/bin/env python3
"""Builds what is shipped, and checks all of it: ``make release`` runs this.

    python tools/release.py                          # everything: TARGETS of tools/releasing/targets.py
    python tools/release.py --host                   # the source distribution, and the wheel of this machine
    python tools/release.py sdist x86_64-gnu --tag v0.2.0 --require-all

From the last commit alone, in dist/release: a source distribution, wheels for manylinux2014 and musllinux on x86-64 and
aarch64 for every Python from 3.11 on, and for free-threaded Python 3.14; with report.md, report.json and SHA256SUMS.
Each is looked into (name, size, metadata, notices, bill of materials, paths of this machine, the symbols that its name
promises) and, where this machine can, installed into an empty environment and run there by tools.releasing.smoke.

What cannot be built or run here is said in capitals, with the reason, and is no failure; --require-all makes it one. A
wheel takes about three minutes of a core, and seconds if nothing has changed since the last one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.cargo_tools import ROOT, CheckFailedError
from tools.releasing import checks, description, musl, notices, report, running, tree, wheel
from tools.releasing.targets import ALL, SDIST, TARGETS, MissingError, Target, host_target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    #: A check of a file that was built: what it found, in one line or several.
    Look = Callable[[], str | list[str]]

WORK: Final = ROOT / "target" / "release-build"


class Release:
    """One release: where it is built, and what it is of."""

    def __init__(self, work: Path, out: Path, pythons: list[str], repository: str = "", tag: str = "") -> None:
        self.tree, self.objects = work / "sources", work / "objects"
        self.out, self.work, self.pythons = out, work, pythons
        self.version = tree.version()
        self.commit, self.seconds = tree.commit()
        #: What links of the description lead to.
        self.repository, self.revision = repository, tag or self.commit

    def prepare(self) -> None:
        """Lays the sources, with the notices of every wheel that there is."""
        for folder in (self.tree, self.objects, self.out):
            folder.mkdir(parents=True, exist_ok=True)
        for old in [
            path for pattern in ("*.whl", "*.tar.gz", "report.*", "SHA256SUMS") for path in self.out.glob(pattern)
        ]:
            old.unlink()
        tree.lay(self.tree)
        description.describe(self.tree, self.repository, self.revision)
        crates = notices.linked(sorted({target.triple for target in TARGETS.values()}), self.tree)
        page = notices.render(crates, notices.of_the_linker())
        tree.add_licences(self.tree, {notices.NOTICES: page, notices.STD_NOTICES: notices.std_notices()})

    def make(self, name: str) -> report.Part:
        """Builds one part, then makes each check of it, whatever another one found."""
        part = report.Part(name)
        try:
            if name == SDIST:
                path = wheel.build_sdist(self.tree, self.out, self.seconds)
                looks = self.looks_at_sdist(path)
            else:
                target = TARGETS[name]
                path, how = wheel.build_wheel(target, self.tree, self.out, self.objects, self.seconds)
                part.checked.append(how)
                looks = self.looks_at_wheel(path, target)
        except MissingError as error:
            part.not_built = str(error)
            return part
        except CheckFailedError as error:
            part.failed.append(str(error))
            return part
        part.built(path)
        for look in looks:
            try:
                found = look()
                part.checked += [found] if isinstance(found, str) else found
            except MissingError as error:
                part.not_run.append(str(error))
            except CheckFailedError as error:
                part.failed.append(str(error))
        return part

    def looks_at_sdist(self, path: Path) -> list[Look]:
        return [
            lambda: checks.check_size(path),
            lambda: checks.check_paths(path, wheel.private_paths(self.tree)),
            lambda: checks.check_description(path),
            lambda: checks.check_twine(path),
            lambda: running.build_and_run_sdist(path, self.work / "sdist-objects"),
        ]

    def looks_at_wheel(self, path: Path, target: Target) -> list[Look]:
        looks: list[Look] = [
            lambda: checks.check_size(path),
            lambda: checks.check_name(path, target, self.version),
            lambda: checks.check_paths(path, wheel.private_paths(self.tree)),
            lambda: checks.check_record(path),
            lambda: checks.check_metadata(path),
            lambda: checks.check_description(path),
            lambda: checks.check_notices(path, notices.linked([target.triple], self.tree)),
            lambda: checks.check_copies(path),
            lambda: checks.check_twine(path),
        ]
        if target.is_abi3:
            looks.append(lambda: checks.check_limited_api(path))
        if target.is_musl:
            looks.append(lambda: checks.check_musl(path, self.musl(target)))
            looks.append(lambda: checks.check_platform(path, self.musl(target)))
        else:
            looks.append(lambda: checks.check_platform(path))
        return [*looks, lambda: self.run(path, target)]

    def musl(self, target: Target) -> Path:
        """The C library that a wheel for musl is looked at with."""
        return musl.library(target.machine, self.work / "debian")

    def run(self, path: Path, target: Target) -> list[str]:
        """Whatever this machine can run it in."""
        if target.is_native:
            return running.run_native(path, target, self.pythons, self.work / "debian")
        if target.is_musl:
            return [running.run_musl(path, target, self.work / "debian")]
        if not target.is_abi3:
            raise MissingError(
                f"no {target.python} for {target.machine} is here, and none is built for another processor"
            )
        return [running.run_emulated(path, target, self.work / "debian")]


def wanted(given: argparse.Namespace) -> list[str]:
    """The parts that were asked for."""
    if given.host:
        return [SDIST, host_target().name]
    unknown = sorted(set(given.parts) - set(ALL))
    if unknown:
        raise SystemExit(f"release: no part {', '.join(unknown)}: {', '.join(ALL)}")
    return list(given.parts) or list(ALL)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build what is shipped, and check all of it.")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(ALL)}; all without one")
    parser.add_argument("--host", action="store_true", help="the source distribution, and the wheel of this machine")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "release", help="where the files go")
    parser.add_argument("--python", action="append", default=[], help="another interpreter to run wheels with")
    parser.add_argument("--tag", default="", help="the tag that this is the release of")
    parser.add_argument(
        "--repository",
        type=description.repository,
        default=description.known_repository(),
        help="https address of the public repository, which the links of the description lead to",
    )
    parser.add_argument("--require-all", action="store_true", help="fail for what cannot be built or run here")
    given = parser.parse_args(arguments)
    names = wanted(given)
    release = Release(WORK, given.out.resolve(), given.python, given.repository, given.tag)
    if given.tag not in {"", f"v{release.version}"}:
        raise SystemExit(f"release: tag {given.tag}, but the version in Cargo.toml is {release.version}")
    if changes := tree.changes():
        raise SystemExit("release: a release is of a commit, and these are not committed:\n" + "\n".join(changes))
    release.prepare()
    parts = []
    for name in names:
        print(f"{name}: building", flush=True)
        part = release.make(name)
        print("\n".join(part.lines()), flush=True)
        parts.append(part)
    report.write(parts, release.out, release.version, release.commit)
    left = [part.name for part in parts if not part.is_whole]
    print(f"release: {len(parts) - len(left)} of {len(parts)} built, checked and run; {release.out / 'report.md'}")
    if left:
        print(f"release: NOT ALL OF IT: {', '.join(left)}", file=sys.stderr)
    return 1 if any(part.failed for part in parts) or (left and given.require_all) else 0


if __name__ == "__main__":
    sys.exit(main())
