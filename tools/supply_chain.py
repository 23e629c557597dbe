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
import functools
import json
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools import manifests
from tools.cargo_tools import ROOT, CheckFailedError, SkippedError, call, find_cargo_tool, require, run_checks

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Newest when this was written, builds with Rust 1.88. Another one may name its settings otherwise.
CARGO_DENY: Final = "0.20.2"
#: How git says that a repository cannot be reached, as opposed to what else may be wrong.
UNREACHABLE: Final = re.compile(
    r"unable to access|could not resolve host|could not read from remote|connection (refused|reset|timed out)"
    r"|network is unreachable|operation timed out|failed to connect",
    re.IGNORECASE,
)
#: How cargo-deny says that it has no copy of the database, or none to rely on.
NO_DATABASE: Final = re.compile(r"failed to load advisory database|failed to get '?FETCH_HEAD'? metadata")


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
    deny = functools.cache(lambda: find_cargo_tool("cargo-deny", CARGO_DENY, given.tools))
    failed, skipped = run_checks(
        [
            ("manifests", check_manifests),
            ("crates", lambda: check_crates(deny())),
            ("advisories", lambda: check_advisories(deny())),
            ("wheel", lambda: check_wheel(given.wheels)),
        ]
    )
    return 1 if failed or (skipped and given.require_advisories) else 0


if __name__ == "__main__":
    sys.exit(main())
