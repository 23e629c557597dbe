#!/usr/bin/env python3
"""The slow checks of what kvpool is built from and of what it ships: ``make supply-chain`` runs them.

    python tools/supply_chain.py --wheels dist
    python tools/supply_chain.py --require-advisories   # where the network is there, nothing may be skipped

- tools/manifests.py: a reason for every dependency, locked builds;
- cargo-deny, with deny.toml: licences, double versions and sources of every crate, and RustSec's advisories about them;
- abi3audit: the wheel keeps to the limited API that its name claims.

cargo-deny is taken from target/tools, or from the PATH if it is the version wanted there; else cargo installs it into
target/tools, which takes minutes, once. abi3audit is that of the Python that runs this.

One thing may be missing without a failure: the advisory database, where its Git repository cannot be reached and no
earlier copy of it is on this machine. That is said in capitals, and is the only skip.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools import manifests

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
#: Newest when this was written, builds with Rust 1.88. Another one may name its settings otherwise.
CARGO_DENY: Final = "0.20.2"
#: It runs for a second: no time is spent on making it fast.
QUICK_BUILD: Final = {
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_PROFILE_RELEASE_DEBUG": "0",
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
}
#: How git says that a repository cannot be reached, as opposed to what else may be wrong.
UNREACHABLE: Final = re.compile(
    r"unable to access|could not resolve host|could not read from remote|connection (refused|reset|timed out)"
    r"|network is unreachable|operation timed out|failed to connect",
    re.IGNORECASE,
)
#: How cargo-deny says that it has no copy of the database, or none to rely on.
NO_DATABASE: Final = re.compile(r"failed to load advisory database|failed to get '?FETCH_HEAD'? metadata")


class CheckFailedError(Exception):
    """A check found something, or could not be made. The message says what, or names what has said it."""


class SkippedError(Exception):
    """A check could not be made, for the one reason that is none to fail. The message says which."""


def call(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the root of the checkout, and keeps what it says."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def require(done: subprocess.CompletedProcess[str], what: str) -> str:
    """The output of a command that has to succeed."""
    if done.returncode != 0:
        raise CheckFailedError(f"{what}, exit status {done.returncode}:\n{done.stdout.rstrip()}")
    return done.stdout


def is_wanted(program: Path) -> bool:
    """Whether a program is there and is the version of cargo-deny that deny.toml was written for."""
    if not os.access(program, os.X_OK):
        return False
    return call(program, "--version").stdout.split() == ["cargo-deny", CARGO_DENY]


def find_cargo_deny(tools: Path) -> Path:
    """cargo-deny of the wanted version, installed if need be."""
    for known in (tools / "bin" / "cargo-deny", Path(shutil.which("cargo-deny") or os.devnull)):
        if is_wanted(known):
            return known
    print(f"cargo-deny {CARGO_DENY}: installing it into {tools}, once, for minutes", flush=True)
    cargo = os.environ.get("CARGO", "cargo")
    wanted = ("--version", f"={CARGO_DENY}", "--root", str(tools), "--force", "--quiet")
    require(call(cargo, "install", "--locked", "cargo-deny", *wanted, **QUICK_BUILD), "cargo install cargo-deny")
    return tools / "bin" / "cargo-deny"


def check_manifests() -> str:
    """Reasons and locked builds."""
    if problems := manifests.check(ROOT):
        raise CheckFailedError("\n".join(str(problem) for problem in problems))
    return "every dependency has a reason and a use, every build is locked"


def check_crates(deny: Path) -> str:
    """Licences, double versions, sources."""
    command = (deny, "--locked", "--workspace", "check", "--deny", "warnings", "bans", "licenses", "sources")
    return require(call(*command), "cargo-deny").strip()


def check_advisories(deny: Path) -> str:
    """RustSec's advisories: from the network, else from an earlier copy, else skipped."""
    check = ("--locked", "--workspace", "check", "--deny", "warnings", "advisories")
    fetched = call(deny, "--locked", "--workspace", "fetch", "db")
    if fetched.returncode == 0:
        return require(call(deny, *check), "cargo-deny").strip()
    if not UNREACHABLE.search(fetched.stdout):
        require(fetched, "cargo-deny cannot fetch the advisory database, and not for want of a network")
    reason = fetched.stdout.strip().splitlines()[-1].strip()
    offline = call(deny, "--offline", *check)
    if NO_DATABASE.search(offline.stdout):
        raise SkippedError(f"the RustSec advisory database cannot be fetched and no copy of it is here: {reason}")
    return require(offline, "cargo-deny, with the copy of the database that was here").strip() + ", by an earlier copy"


def find_wheel(folder: Path) -> Path:
    """The wheel of the version in Cargo.toml. One machine makes one, for every Python."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    found = sorted(folder.glob(f"kvpool-{version}-*.whl"))
    if len(found) != 1:
        names = ", ".join(wheel.name for wheel in found) or "none"
        raise CheckFailedError(f"{folder}: expected one wheel of kvpool {version}, found {names}: make wheel")
    return found[0]


def check_wheel(folder: Path) -> str:
    """The limited API: no symbol of the extension is outside it, or newer than the wheel says."""
    wheel = find_wheel(folder)
    with tempfile.TemporaryDirectory() as out:
        report = Path(out, "report.json")
        audit = call(sys.executable, "-m", "abi3audit", "--strict", "--report", "--output", report, wheel)
        text = report.read_text(encoding="utf-8") if report.is_file() else ""
    if not text:
        raise CheckFailedError(f"abi3audit of {wheel.name} has no report:\n{audit.stdout.rstrip()}")
    baseline = read_audit(json.loads(text), wheel)
    require(audit, f"abi3audit of {wheel.name}")
    return f"{wheel.name} keeps to the limited API of Python {baseline}"


def read_audit(report: dict[str, Any], wheel: Path) -> str:
    """The version of the limited API. A wheel without an extension of it has passed abi3audit, too: here it fails."""
    extensions = [part for spec in report["specs"].values() for part in spec["wheel"]]
    if len(extensions) != 1:
        raise CheckFailedError(f"{wheel.name}: {len(extensions)} extensions of the limited API, expected one")
    result = extensions[0]["result"]
    if not (result["is_abi3"] and result["is_abi3_baseline_compatible"]):
        outside, later = result["non_abi3_symbols"], result["future_abi3_objects"]
        raise CheckFailedError(
            f"{wheel.name} claims the limited API of Python {result['baseline']} and needs {result['computed']}: "
            f"outside of it {outside or 'nothing'}, of later versions {later or 'nothing'}"
        )
    return str(result["baseline"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check what kvpool is built from and what it ships.")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="where make wheel has put one")
    parser.add_argument("--tools", type=Path, default=ROOT / "target" / "tools", help="where cargo-deny is, or will be")
    parser.add_argument("--require-advisories", action="store_true", help="fail if they cannot be checked")
    given = parser.parse_args(arguments)
    skipped = failed = False
    deny: Path | None = None
    for name in ("manifests", "crates", "advisories", "wheel"):
        try:
            if name == "manifests":
                said = check_manifests()
            elif name == "wheel":
                said = check_wheel(given.wheels)
            else:
                deny = deny or find_cargo_deny(given.tools)
                said = check_crates(deny) if name == "crates" else check_advisories(deny)
            print(f"{name}: {said}", flush=True)
        except CheckFailedError as error:
            failed = True
            print(f"{name}: FAILED: {error}", file=sys.stderr, flush=True)
        except SkippedError as error:
            skipped = True
            print(f"{name}: SKIPPED, NOT CHECKED: {error}", file=sys.stderr, flush=True)
    return 1 if failed or (skipped and given.require_advisories) else 0


if __name__ == "__main__":
    sys.exit(main())
