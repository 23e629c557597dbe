"""tools/supply_chain.py, with stand-ins for cargo, cargo-deny and abi3audit: what fails, and what is skipped."""

from __future__ import annotations

import json
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools import manifests, supply_chain

ROOT = Path(__file__).resolve().parents[1]
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
WHEEL = f"kvpool-{VERSION}-cp311-abi3-linux_x86_64.whl"
#: What git says without a network, and to someone it does not let in.
UNREACHABLE = "fatal: unable to access 'https://example.org/advisory-db/': Could not resolve host: example.org"
BROKEN = "failed to validate configuration file deny.toml"
NO_COPY = "[ERROR] failed to load advisory database: no such folder"


class Stands:
    """A folder with programs that do as they are told, and write down what they were called with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "calls"
        self.bin = folder / "tools" / "bin"
        self.dist = folder / "dist"
        self.dist.mkdir()
        self.wheel = self.dist / WHEEL
        self.wheel.touch()
        self.cargo_deny()
        self.audit(found())

    def program(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >> "{self.log}"\n' + textwrap.dedent(text))
        path.chmod(0o755)

    def cargo_deny(
        self,
        *,
        version: str = supply_chain.CARGO_DENY,
        crates: tuple[int, str] = (0, "bans ok"),
        fetch: tuple[int, str] = (0, ""),
        online: tuple[int, str] = (0, "advisories ok"),
        offline: tuple[int, str] = (0, "advisories ok"),
    ) -> None:
        """cargo-deny, with an exit status and an output for each thing that it is asked for."""

        def does(what: tuple[int, str]) -> str:
            return f'echo "{what[1]}" >&2; exit {what[0]}'

        text = f"""
            case "$*" in
              --version) echo "cargo-deny {version}";;
              *"fetch db") {does(fetch)};;
              --offline*advisories) {does(offline)};;
              *advisories) {does(online)};;
              *"bans licenses sources") {does(crates)};;
              *) echo "what is $*?"; exit 99;;
            esac
            """
        self.program(self.bin / "cargo-deny", text)

    def cargo(self, status: int, version: str = supply_chain.CARGO_DENY) -> Path:
        """A cargo that installs it, or does not."""
        self.cargo_deny()
        made = (self.bin / "cargo-deny").read_text().replace(supply_chain.CARGO_DENY, version)
        (self.folder / "made").write_text(made)
        (self.bin / "cargo-deny").unlink()
        path = self.folder / "cargo"
        copy = f'cp "{self.folder}/made" "{self.bin}/cargo-deny"; chmod +x "{self.bin}/cargo-deny"'
        self.program(path, f"{copy if status == 0 else 'echo no linker'}\nexit {status}\n")
        return path

    def audit(self, report: dict[str, Any] | None, status: int = 0) -> None:
        """abi3audit, with its report."""
        package = self.folder / "python" / "abi3audit"
        package.mkdir(parents=True, exist_ok=True)
        text = "" if report is None else json.dumps(report)
        code = f"""
            import sys
            if {report is not None}:
                open(sys.argv[sys.argv.index("--output") + 1], "w").write({text!r})
            print("abi3audit has spoken")
            sys.exit({status})
            """
        (package / "__main__.py").write_text(textwrap.dedent(code))
        (package / "__init__.py").touch()

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def run(self, *more: str) -> int:
        return supply_chain.main(["--wheels", str(self.dist), "--tools", str(self.folder / "tools"), *more])


def found(**changed: Any) -> dict[str, Any]:
    """The report of abi3audit on a wheel with one extension that is as it should be, but for what is changed."""
    result = {
        "is_abi3": True,
        "is_abi3_baseline_compatible": True,
        "baseline": "3.11",
        "computed": "3.11",
        "non_abi3_symbols": [],
        "future_abi3_objects": {},
    }
    return {"specs": {"a.whl": {"kind": "wheel", "wheel": [{"name": "_core.abi3.so", "result": result | changed}]}}}


@pytest.fixture
def stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stands:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "python"))
    monkeypatch.setenv("CARGO", "/bin/false")
    # Those of this checkout have a test of their own.
    monkeypatch.setattr(manifests, "check", lambda _: [])
    return Stands(tmp_path)


def test_all_is_well(stands: Stands, capsys: pytest.CaptureFixture[str]) -> None:
    assert stands.run("--require-advisories") == 0
    out, err = capsys.readouterr()
    names = [line.partition(":")[0] for line in out.splitlines()]
    assert (names, err) == (["manifests", "crates", "advisories", "wheel"], "")
    assert not any("--offline" in call for call in stands.calls())


def test_an_unreachable_database_is_the_one_skip_and_is_said_aloud(
    stands: Stands, capsys: pytest.CaptureFixture[str]
) -> None:
    stands.cargo_deny(fetch=(1, UNREACHABLE), offline=(1, NO_COPY))
    assert stands.run() == 0
    assert (
        f"advisories: SKIPPED, NOT CHECKED: the RustSec advisory database cannot be fetched and no copy of it is here: "
        f"{UNREACHABLE}" in capsys.readouterr().err
    )
    assert stands.run("--require-advisories") == 1


def test_an_earlier_copy_of_the_database_counts(stands: Stands, capsys: pytest.CaptureFixture[str]) -> None:
    stands.cargo_deny(fetch=(1, UNREACHABLE))
    assert stands.run("--require-advisories") == 0
    assert "advisories: advisories ok, by an earlier copy" in capsys.readouterr().out
    stands.cargo_deny(fetch=(1, UNREACHABLE), offline=(1, "error[vulnerability]: ring"))
    assert stands.run() == 1
    assert "error[vulnerability]: ring" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"crates": (1, "error[rejected]: GPL")}, "crates: FAILED: cargo-deny, exit status 1:\nerror[rejected]: GPL"),
        ({"online": (1, "error[vulnerability]: ring")}, "advisories: FAILED: cargo-deny, exit status 1:\nerror[vul"),
        # Only an unreachable network is a reason to skip; the copy is not even asked then.
        ({"fetch": (1, BROKEN), "offline": (1, NO_COPY)}, f"and not for want of a network, exit status 1:\n{BROKEN}"),
    ],
)  # fmt: skip
def test_what_cargo_deny_finds_is_a_failure(
    stands: Stands, capsys: pytest.CaptureFixture[str], wrong: dict[str, Any], said: str
) -> None:
    stands.cargo_deny(**wrong)
    assert stands.run() == 1
    out, err = capsys.readouterr()
    assert said in err
    assert "wheel:" in out, "one failure keeps no other check back"


def test_a_dependency_without_a_reason_is_a_failure(
    stands: Stands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = manifests.Problem(Path("Cargo.toml"), 7, "rand has no reason")
    monkeypatch.setattr(manifests, "check", lambda _: [problem])
    assert stands.run() == 1
    assert capsys.readouterr().err == "manifests: FAILED: Cargo.toml:7: rand has no reason\n"


def test_the_wanted_version_is_installed_once(stands: Stands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARGO", str(stands.cargo(0)))
    assert stands.run() == 0
    assert stands.run() == 0
    (install,) = [call for call in stands.calls() if call.startswith("cargo ")]
    assert (
        f"install --locked cargo-deny --version ={supply_chain.CARGO_DENY} --root {stands.folder / 'tools'}" in install
    )


def test_another_version_is_replaced(stands: Stands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARGO", str(stands.cargo(0)))
    stands.cargo_deny(version="0.1.0")
    assert stands.run() == 0
    assert sum(call.startswith("cargo ") for call in stands.calls()) == 1


def test_one_on_the_path_will_do_if_it_is_the_wanted_version(
    stands: Stands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{stands.bin}:/usr/bin:/bin")
    arguments = ["--wheels", str(stands.dist), "--tools", str(tmp_path / "elsewhere")]
    assert supply_chain.main(arguments) == 0
    stands.cargo_deny(version="0.1.0")
    assert supply_chain.main(arguments) == 1


def test_a_tool_that_cannot_be_installed_is_a_failure(
    stands: Stands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARGO", str(stands.cargo(101)))
    assert stands.run() == 1
    assert "crates: FAILED: cargo install cargo-deny, exit status 101:\nno linker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("report", "status", "said"),
    [
        (None, 1, f"abi3audit of {WHEEL} has no report:\nabi3audit has spoken"),
        (found(), 1, f"abi3audit of {WHEEL}, exit status 1"),
        ({"specs": {"a.whl": {"kind": "wheel", "wheel": []}}}, 0, "0 extensions of the limited API, expected one"),
        (found(is_abi3=False, non_abi3_symbols=["_PyLong_New"]), 0, "outside of it ['_PyLong_New'], of later"),
        (
            found(is_abi3_baseline_compatible=False, computed="3.12", future_abi3_objects={"PyType_New": "3.12"}),
            0,
            "Python 3.11 and needs 3.12: outside of it nothing, of later versions {'PyType_New': '3.12'}",
        ),
    ],
)  # fmt: skip
def test_a_wheel_that_is_not_what_it_says_is_a_failure(
    stands: Stands, capsys: pytest.CaptureFixture[str], report: dict[str, Any] | None, status: int, said: str
) -> None:
    stands.audit(report, status)
    assert stands.run() == 1
    err = capsys.readouterr().err
    assert err.startswith("wheel: FAILED: ")
    assert said in err


def test_the_wheel_is_that_of_this_version(stands: Stands, capsys: pytest.CaptureFixture[str]) -> None:
    (stands.dist / "kvpool-0.0.1-cp311-abi3-linux_x86_64.whl").touch()
    assert stands.run() == 0
    stands.wheel.unlink()
    assert stands.run() == 1
    assert f"expected one wheel of kvpool {VERSION}, found none: make wheel" in capsys.readouterr().err
    stands.wheel.touch()
    (stands.dist / WHEEL.replace("x86_64", "aarch64")).touch()
    assert stands.run() == 1
    assert "aarch64" in capsys.readouterr().err
