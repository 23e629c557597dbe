"""Tests tools/fuzz.py and test_mutants.py: how they read output, which defects they plant, and their
conclusions. Nothing is built.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools import fuzz, test_mutants
from tools.test_mutants import Defect, MutantError, Replacement, Result

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
DEFECTS = {defect.name: defect for defect in test_mutants.DEFECTS}


# --- Planted defects


@pytest.mark.parametrize("name", list(DEFECTS))
def test_every_defect_can_still_be_planted(name: str) -> None:
    files = test_mutants.planted(DEFECTS[name], ROOT)
    assert files
    for file, text in files.items():
        assert (ROOT / file).read_text() != text
    assert DEFECTS[name].target in ("", *fuzz.TARGETS)
    folders = (ROOT / "rust/kvpool/tests", ROOT / "lab/tests")
    assert all(any(list(folder.glob(f"{test}*")) for folder in folders) for test in DEFECTS[name].tests)


def test_the_five_defects_that_the_tests_must_find_are_there() -> None:
    assert {"double-release", "lost-unlink", "kept-hash", "leaked-reference", "parent-first"} <= set(DEFECTS)


def tiny(folder: Path, text: str) -> Path:
    file = folder / "rust/kvpool/src/x.rs"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return folder


@pytest.mark.parametrize(("text", "count"), [("one", 0), ("two two", 2)])
def test_text_that_is_not_there_exactly_once_is_refused(tmp_path: Path, text: str, count: int) -> None:
    defect = Defect("d", "what", (Replacement("kvpool/x.rs", "two", "three"),), ("t",), "pool")
    with pytest.raises(MutantError, match=rf"d: rust/kvpool/src/x\.rs has 'two' {count} times"):
        test_mutants.planted(defect, tiny(tmp_path, text))


def test_replacements_of_one_file_add_up(tmp_path: Path) -> None:
    defect = Defect(
        "d",
        "what",
        (Replacement("kvpool/x.rs", "a", "b"), Replacement("kvpool/x.rs", "c", "d")),
        ("t",),
        "pool",
    )
    files = test_mutants.planted(defect, tiny(tmp_path, "a c"))
    assert list(files.values()) == ["b d"]


def test_a_copy_is_made_equal_again_and_keeps_the_times_of_equal_files(tmp_path: Path) -> None:
    source, tree = tiny(tmp_path / "source", "fn good() {}"), tmp_path / "tree"
    (source / "Cargo.toml").write_text("[workspace]")
    (source / "target").mkdir()
    (source / "rust/target").mkdir()
    (source / "rust/target/x").write_text("built")
    copy = test_mutants.Copy(source, tree)
    defect = Defect("d", "what", (Replacement("kvpool/x.rs", "good", "bad"),), ("t",), "pool")
    copy.plant(defect)
    manifest, file = tree / "Cargo.toml", tree / "rust/kvpool/src/x.rs"
    assert file.read_text() == "fn bad() {}"
    assert not (tree / "rust/target").exists()
    (tree / "rust/left-by-a-test").write_text("seed")
    before = manifest.stat().st_mtime_ns
    copy.refresh()
    assert file.read_text() == "fn good() {}"
    assert manifest.stat().st_mtime_ns == before
    assert not (tree / "rust/left-by-a-test").exists()


def found(name: str = "d") -> Result:
    return Result(name, {"pool_model": 1.5}, "pool", "libFuzzer", 2.0, 5, "report")


@pytest.mark.parametrize(
    "change",
    [
        lambda result: dataclasses.replace(result, tests={"pool_model": 1.0, "evictors": None}),
        lambda result: dataclasses.replace(result, tests={}),
        lambda result: dataclasses.replace(result, operations=13),
        lambda result: dataclasses.replace(result, operations=None, fuzzer_seconds=None),
    ],
)
def test_a_defect_is_found_if_all_find_it_and_it_is_small(change: Callable[[Result], Result]) -> None:
    assert found().found
    assert Result("d", {"manager_tables": 0.1}).found, "no fuzz target is to find it"
    assert not change(found()).found
    assert not found().clean


@pytest.mark.parametrize("survives", [False, True])
def test_the_exit_code_says_whether_a_defect_survives(
    survives: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = Result("(none)", {"pool_model": None})
    monkeypatch.setattr(test_mutants.Runner, "control", lambda *_: clean)
    lost = dataclasses.replace(found(), tests={"pool_model": None})
    monkeypatch.setattr(test_mutants.Runner, "try_defect", lambda *_: lost if survives else found())
    assert test_mutants.main(["lost-unlink", "--json"]) == int(survives)
    said = json.loads(capsys.readouterr().out)
    assert [row["found"] for row in said["defects"]] == [not survives]


def test_sources_that_fail_without_a_defect_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_mutants.Runner, "control", lambda *_: found("(none)"))
    monkeypatch.setattr(test_mutants.Runner, "try_defect", lambda *_: pytest.fail("a defect was tried"))
    assert test_mutants.main([]) == 1


def test_what_cannot_be_planted_or_is_not_known_is_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Result:
        raise MutantError("gone")

    monkeypatch.setattr(test_mutants.Runner, "control", fail)
    assert test_mutants.main([]) == 2
    with pytest.raises(SystemExit, match="2"):
        test_mutants.main(["unheard-of"])


def test_the_defects_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert test_mutants.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(DEFECTS)


# --- The fuzzer

CRASH = """INFO: seed corpus: files: 60
#61 INITED cov: 100
thread '<unnamed>' panicked at fuzz/src/lib.rs:99:9:
pool: free order: found [1], the model has [2]

shrunk to 3 operations:

use kvpool::*;

/// free order: found [1], the model has [2]
#[test]
fn shrunk() {
    let mut pool = x;
}

stack backtrace:
   0: rust_begin_unwind
==12== ERROR: libFuzzer: deadly signal
Test unit written to target/fuzz/artifacts/crash-12ab
"""


def test_a_crash_is_read() -> None:
    outcome = fuzz.read_outcome("pool", CRASH, 77, 1.23, driver=False)
    assert (outcome.found, outcome.operations, outcome.seconds) == (True, 3, 1.2)
    assert outcome.artifact == "target/fuzz/artifacts/crash-12ab"
    assert outcome.report.startswith("pool: free order: found [1]")
    assert outcome.report.endswith("let mut pool = x;\n}")


def test_a_quiet_run_is_read() -> None:
    said = "Done 12 runs in 3 second(s)\nstat::number_of_executed_units: 1234\n"
    outcome = fuzz.read_outcome("pool", said, 0, 3, driver=False)
    assert (outcome.found, outcome.runs, outcome.report) == (False, 1234, "")
    outcome = fuzz.read_outcome("pool", "pool: 77 inputs in 3.0 s, nothing found\n", 0, 3, driver=True)
    assert (outcome.fuzzer, outcome.runs) == ("driver", 77)


def test_a_fuzzer_that_breaks_is_no_find() -> None:
    with pytest.raises(fuzz.FuzzError, match="exit code 1"):
        fuzz.read_outcome("pool", "cannot open shared object", 1, 0.1, driver=False)


def test_the_smallest_corpus_takes_what_reaches_most() -> None:
    features = fuzz.read_control("3\n0\na\nb\nc\nSTARTED 0 5\nFT 0 1 2\nFT 1 1 2 3\nFT 2 4\nCOV 0 1\n")
    assert features == {"a": {1, 2}, "b": {1, 2, 3}, "c": {4}}
    assert fuzz.cover(features, 9) == ["b", "c"]
    assert fuzz.cover(features, 1) == ["b"]


def test_bad_usage_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "build", lambda *_, **__: pytest.fail("something was built"))
    monkeypatch.setattr(fuzz, "cxx", lambda: None)
    for arguments in ([], ["pools"], ["pool", "--seconds", "0"], ["pool", "--merge"]):
        with pytest.raises(SystemExit, match="2"):
            fuzz.main(arguments)


def test_without_a_compiler_the_driver_runs_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(fuzz, "cxx", lambda: None)
    monkeypatch.setattr(fuzz, "build", lambda *_, driver: {"pool": ["program", str(driver)]})
    monkeypatch.setattr(
        fuzz,
        "run",
        lambda _, target, *__, driver: fuzz.Outcome(target, str(driver), 1, 5, False, None, "", None),
    )
    assert fuzz.main(["pool", "--json", "--work", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "libFuzzer is skipped" in said.err
    assert json.loads(said.out)[0]["fuzzer"] == "True"
