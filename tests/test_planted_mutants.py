"""Tests tools/plant.py and race.py: which mutants they plant, and their conclusions. Nothing is built."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tools import plant, race
from tools.race import Run

ROOT = Path(__file__).resolve().parents[1]
Everything = tuple[dict[Path, str], list[plant.Mutant]]
LINES = {
    "if a < b {": "if ((if crate::mutant(1) { a <= b } else { a < b })) ^ crate::mutant(2) {",
    "if a && b.c() {": "if (((a) || crate::mutant(2)) && ((b.c()) || crate::mutant(3))) ^ crate::mutant(1) {",
    "if a || b {": "if (((a) && !crate::mutant(2)) || ((b) && !crate::mutant(3))) ^ crate::mutant(1) {",
    "if let Some(a) = b {": "if let Some(a) = b {",
    "if a && b.c() { d } else { e }": "if a && b.c() { d } else { e }",
    "self.free(block)?;": "if !crate::mutant(1) { self.free(block)?; }",
    "self.count -= 1;": "if !crate::mutant(1) { self.count -= 1; }",
    "let n = self.count + 1;": "let n = (if crate::mutant(1) { self.count } else { self.count + 1 });",
    "let n = it.filter(|x| x.held());": "let n = it.filter(|x| (x.held()) || crate::mutant(1));",
    'let text = format!("a < b {n}");': 'let text = format!("a < b {n}");',
    "return Err(error);": "return Err(error);",
    "debug_assert!(a < b);": "debug_assert!(a < b);",
    "// if a < b {": "// if a < b {",
}


@pytest.fixture(scope="module")
def everything() -> Everything:
    return plant.plant(ROOT)


def planted(text: str) -> tuple[str, list[plant.Mutant]]:
    planter = plant.Planter(frozenset())
    return planter.plant("pool", "kvpool/src/x.rs", text), planter.mutants


@pytest.mark.parametrize("line", LINES)
def test_a_line_has_the_mutants_that_it_should_have(line: str) -> None:
    text, mutants = planted(f"fn work() {{\n    {line}\n    let x = 1;\n}}\n")
    assert text.split("\n")[1].strip() == LINES[line]
    assert len(mutants) == len(set(re.findall(r"mutant\((\d+)\)", text)))
    assert all(mutant.text == line for mutant in mutants)


@pytest.mark.parametrize(
    "head",
    [
        "const fn work(&self) -> bool {",
        "pub fn check_invariants(&self) -> Result<(), InvariantViolation> {",
        "fn corrupt(&mut self, block: BlockId) -> bool {",
        "macro_rules! many {",
        "impl fmt::Display for Words {",
        "#[cfg(test)]\nmod tests {",
    ],
)
def test_checks_and_what_cannot_change_at_run_time_stay(head: str) -> None:
    text = f"{head}\n    self.count += 1;\n}}\n"
    assert planted(text) == (text, [])
    assert len(planted("fn work() {\n    self.count += 1;\n}\n")[1]) == 1


def off(text: str) -> str:
    """Removes all mutants from a planted text. The result is the original text, without parentheses."""
    chosen = re.compile(
        r"\(if crate::mutant\(\d+\) \{ (?:(?!crate::mutant).)*? \} else \{ ((?:(?!crate::mutant).)*?) \}\)"
    )
    while chosen.search(text):
        text = chosen.sub(r"(\1)", text)
    text = re.sub(r"if !crate::mutant\(\d+\) \{ (.*) \}$", r"\1", text, flags=re.MULTILINE)
    return re.sub(r"[()]", "", re.sub(r" (?:\|\| |&& !|\^ )crate::mutant\(\d+\)", "", text))


def test_without_a_mutant_the_sources_do_what_they_did(everything: Everything) -> None:
    files, mutants = everything
    numbers = set[int]()
    for path, text in files.items():
        if path.name != "lib.rs":
            numbers |= {int(number) for number in re.findall(r"crate::mutant\((\d+)\)", text)}
            assert off(text) == re.sub(r"[()]", "", path.read_text()), path
    assert numbers == {mutant.number for mutant in mutants} == set(range(1, len(mutants) + 1))
    assert len({mutant.key for mutant in mutants}) == len(mutants) > 2000


def test_a_line_that_is_left_out_changes_nothing_else(everything: Everything) -> None:
    mutants = everything[1]
    first = mutants[0]
    files, others = plant.plant(ROOT, frozenset({(first.file, first.line)}))
    assert [one for one in mutants if (one.file, one.line) != (first.file, first.line)] == others
    line = files[ROOT / "rust" / first.file].split("\n")[first.line - 1]
    assert line.strip() == first.text


def test_the_halves_and_the_sample_follow_from_the_text_alone(everything: Everything) -> None:
    mutants = everything[1]
    halves = [mutant.half for mutant in mutants]
    assert 0.45 < halves.count("blind") / len(halves) < 0.55
    chosen = race.sample(mutants, 10)
    assert len(chosen) == 30
    assert set(chosen) < set(race.sample(mutants[::-1], 20))


def test_a_mutant_that_only_an_old_driver_kills_is_missed(
    everything: Everything, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    mutants = [one for one in everything[1] if one.subject == "pool"][:3]
    old, lab = "evictors", "lab pool"
    outcomes = [
        (0, old, "killed"),
        (0, lab, "survived"),
        (1, old, "hang"),
        (1, lab, "killed"),
        (2, lab, "survived"),
    ]
    runs = [Run(mutants[at].key, driver, 1, outcome, 0.1, "") for at, driver, outcome in outcomes]
    table, missed = race.report(mutants, runs)
    assert missed == mutants[:1]
    assert list(table.columns[3].cells)[:6] == ["2", "1", "1", "1", "0", "1"]
    (tmp_path / "results.jsonl").write_text(json.dumps(runs[0].__dict__) + "\n")
    assert race.read(tmp_path / "results.jsonl") == runs[:1]
    assert race.main(["--report", "--work", str(tmp_path)]) == 0
    assert {driver.crate for driver in race.DRIVERS if driver.is_in(ROOT)} >= {"lab", "rust/kvpool"}
    assert not any(driver.is_in(tmp_path) for driver in race.DRIVERS)
    with pytest.raises(SystemExit, match="2"):
        race.main(["--drivers", "unheard-of"])
    assert "no driver unheard-of" in capsys.readouterr().err
