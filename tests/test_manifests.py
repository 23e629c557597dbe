"""tools/manifests.py: what it finds in a checkout that is wrong, and that this one is right."""

from __future__ import annotations

import textwrap
import tomllib
from pathlib import Path

import pytest

from tools import manifests

ROOT = Path(__file__).resolve().parents[1]

WORKSPACE = """
    [workspace]
    members = ["core"]

    [workspace.dependencies]
    # Typed errors.
    thiserror = "2"
    serde = { version = "1", features = ["#derive"] }  # lines of traces
    core = { path = "core" }
"""
CRATE = """
    [package]
    name = "core"

    [dependencies]
    thiserror.workspace = true
    serde = { workspace = true }

    [dev-dependencies]
    core = { path = "." }
    # Compares two texts.
    pretty-diff = "1"
"""
SOURCE = "use serde::Serialize;\nfn f() -> Result<(), thiserror::Error> { core::g(); pretty_diff::h() }\n"
PROJECT = """
    [build-system]
    requires = ["maturin>=1.9,<2"]  # builds the wheel

    [project]
    dependencies = [
      # The command line.
      "typer>=0.20",
    ]
    [project.optional-dependencies]
    plot = ["matplotlib>=3.9"]  # pictures

    [dependency-groups]
    test = ["pytest>=8.4"]  # runs the tests
    lint = [
      {include-group = "test"},
      "ruff==0.14.0",  # linter
    ]
"""
REQUIREMENTS = """
    # Chromium.
    browser==6.12.0 \\
        --hash=sha256:00 \\
        --hash=sha256:01
"""
MAKEFILE = """
    # cargo build in a comment is no call
    all: ## Nor is cargo test in a help text
    \t$(CARGO) fmt --all --check
    \tA=b $(CARGO) test --locked --quiet && \\
    \t\t$(BIN)/maturin develop --release --locked
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without a problem."""
    for name, text in {
        "Cargo.toml": WORKSPACE,
        "core/Cargo.toml": CRATE,
        "core/src/lib.rs": SOURCE,
        "pyproject.toml": PROJECT,
        "tools/browser-requirements.txt": REQUIREMENTS,
        "Makefile": MAKEFILE,
        ".ci/run": "#!/bin/sh\nmake test\n",
        "tests/test_wheel.py": 'run([python, "-m", "maturin", "build", "--locked"])\n',
        "target/tools/Cargo.toml": '[dependencies]\nbuilt = "1"\n',
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    assert manifests.check(tmp_path) == []
    return tmp_path


def test_this_checkout_has_no_problem() -> None:
    assert manifests.check(ROOT) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "text"),
    [
        ("Cargo.toml", "# Typed errors.\n", "", 6, "thiserror has no reason"),
        ("Cargo.toml", "# Typed errors.\n", "#\n", 7, "thiserror has no reason"),
        ("Cargo.toml", "  # lines of traces", "", 8, "serde has no reason"),
        ("Cargo.toml", 'core = { path = "core" }', 'rand = "1"  # dice', 9, "rand is not used: no member"),
        ("core/Cargo.toml", "# Compares two texts.\n", "", 11, "pretty-diff has no reason"),
        ("core/Cargo.toml", "serde = { workspace = true }", 'sha2 = "1"  # digests', 7, "sha2 is not used: no source"),
        ("core/src/lib.rs", "pretty_diff::h()", "other_pretty_diff::h()", 12, "pretty-diff is not used: no source"),
        ("core/src/lib.rs", "thiserror::Error", "Error", 6, "thiserror is not used: no source"),
        ("pyproject.toml", "  # builds the wheel", "", 3, "maturin>=1.9,<2 has no reason"),
        ("pyproject.toml", "# The command line.", "#", 8, "typer>=0.20 has no reason"),
        ("pyproject.toml", '["matplotlib>=3.9"]', '["matplotlib"]', 11, "matplotlib has no lower bound"),
        ("pyproject.toml", '"pytest>=8.4"', '"pytest<9"', 14, "pytest<9 has no lower bound"),
        ("pyproject.toml", '["pytest>=8.4"]', '["pytest>=8.4", "x>=1"]', 14, "x>=1 shares its line"),
        ("pyproject.toml", "  # linter", "", 17, "ruff==0.14.0 has no reason"),
        (
            "pyproject.toml",
            '"ruff==0.14.0",  # linter',
            '"x>=1",  # types\n  "ruff==0.14.0",',
            18,
            "ruff==0.14.0 has no",
        ),
        ("pyproject.toml", '"pytest>=8.4"', '"pytest>=8.4; a == \\"b\\""', 1, 'pytest>=8.4; a == "b" does not stand'),
        ("tools/browser-requirements.txt", "# Chromium.", "", 3, "browser has no reason"),
        ("tools/browser-requirements.txt", "==6.12.0", ">=6.12.0", 3, "browser is not pinned"),
        ("tools/browser-requirements.txt", "--hash=sha256:0", "--hash=md5:0", 3, "browser is not pinned"),
        ("Makefile", "test --locked", "test", 5, "cargo test without --locked"),
        ("Makefile", "--release --locked", "--release", 5, "maturin develop without --locked"),
        (".ci/run", "make test", "nice cargo +1.95 build -p kvpool", 2, "cargo build without --locked"),
        ("tests/test_wheel.py", ', "--locked"', "", 1, "maturin build without --locked"),
        ("tests/test_wheel.py", "run([python, ", 'run(*[bin / "cargo", "doc"], [', 1, "cargo doc without --locked"),
    ],
)
def test_what_is_missing_is_found_where_it_is_missing(
    checkout: Path, name: str, old: str, new: str, line: int, text: str
) -> None:
    path = checkout / name
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new))
    found = [problem for problem in manifests.check(checkout) if problem.text.startswith(text)]
    assert [(str(problem.path), problem.line) for problem in found] == [
        (
            "core/Cargo.toml" if name == "core/src/lib.rs" else name,
            line,
        )
    ]


def test_a_dependency_of_one_target_and_one_with_a_table_are_seen(checkout: Path) -> None:
    path = checkout / "core" / "Cargo.toml"
    text = '\n[target.\'cfg(unix)\'.dependencies]\nlibc = "0.2"\n\n[build-dependencies.cc]\nversion = "1"\n'
    path.write_text(path.read_text() + text)
    found = [str(problem) for problem in manifests.check(checkout)]
    assert [problem.partition(":")[2].split(":")[0] for problem in found] == ["15", "15", "17", "17"]
    assert [problem.split()[1] for problem in found] == ["libc", "libc", "cc", "cc"]


def test_one_requirement_in_two_groups_has_two_reasons(checkout: Path) -> None:
    path = checkout / "pyproject.toml"
    path.write_text(path.read_text() + 'bench = [\n  "pytest>=8.4",\n]\n')
    assert [str(problem) for problem in manifests.check(checkout)] == [
        "pyproject.toml:20: pytest>=8.4 has no reason: say in a comment what it is for"
    ]


def test_the_exit_status_says_so(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert manifests.main([str(checkout)]) == 0
    assert capsys.readouterr() == ("", "")
    (checkout / ".ci" / "run").write_text("cargo test\n")
    assert manifests.main([str(checkout)]) == 1
    assert capsys.readouterr().err == ".ci/run:1: cargo test without --locked\n"


def test_nothing_that_is_shipped_depends_on_test_code() -> None:
    for path in sorted((ROOT / "rust").glob("*/Cargo.toml")):
        manifest = tomllib.loads(path.read_text(encoding="utf-8"))
        tables = [manifest.get("dependencies", {}), manifest.get("build-dependencies", {})]
        for name, wanted in (item for table in tables for item in table.items()):
            assert name != "kvpool-testing", path
            assert isinstance(wanted, str) or "fault-injection" not in wanted.get("features", []), path


def test_crates_that_two_builds_have_otherwise_are_named() -> None:
    extension = {"core v1": "a", "hash v1": "a,b", "kvpool-py v1": "as-tested", "pyo3 v1": "x"}
    tests = {"core v1": "a", "hash v1": "a", "kvpool-py v1": "", "proptest v1": "std"}
    (found,) = manifests.compared(extension, tests)
    assert found.text.startswith("hash v1 is built twice: [a,b] as the feature as-tested has it, [a] as")


def test_what_is_shipped_is_not_built_as_tested() -> None:
    manifest = tomllib.loads((ROOT / manifests.EXTENSION).read_text(encoding="utf-8"))
    assert set(manifest["features"]) == {"as-tested"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "features" not in project["tool"]["maturin"]
