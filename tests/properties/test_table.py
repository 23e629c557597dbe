"""The table in design/properties.md lists every property with tests that exist. Without this check the
table would soon be out of date.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "design"
TEXT = (DOCS / "properties.md").read_text()


def row_of(section: str) -> list[str]:
    """Returns the cells of a property's row in a section: number, statement, bugs, two cells of tests,
    and mutants. A missing cell is "-".
    """
    number, _, body = section.partition("\n")
    body = re.split(r"^## ", body, flags=re.MULTILINE)[0]
    statement, *items = re.split(r"^- ", body, flags=re.MULTILINE)
    cells = {label: " ".join(text.split()) for label, _, text in (item.partition(": ") for item in items)}
    return [
        number.strip(),
        " ".join(statement.split()),
        cells.get("Bugs", "-"),
        cells.get("Rust", cells.get("Tests", "-")),
        cells.get("Python", cells.get("On a GPU", "-")),
        cells.get("Mutants", "-"),
    ]


SECTIONS = [row_of(section) for section in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]]
ROWS = {row[0]: row for row in SECTIONS}
NUMBERS = [str(number) for number in range(1, 26)]
KERNELS = ["K1", "K2", "K3"]
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+)\)")


def files_of(cell: str) -> list[Path]:
    """Returns the files to which a cell links."""
    files = [(DOCS / target).resolve() for _, target in LINK.findall(cell)]
    assert files, f"{cell!r} names no test"
    for file in files:
        assert file.is_file(), f"{file} does not exist"
    return files


def functions_of(file: Path) -> list[str]:
    if file.suffix == ".py":
        return re.findall(r"^def (test_\w+)\(", file.read_text(), re.MULTILINE)
    return re.findall(r"^ *fn (\w+)\(", file.read_text(), re.MULTILINE)


def test_the_page_has_every_property_once_and_in_order() -> None:
    assert [row[0] for row in SECTIONS] == [*NUMBERS, *KERNELS]
    for number in NUMBERS:
        assert "-" not in (ROWS[number][1], ROWS[number][2], ROWS[number][3], ROWS[number][5]), number
    for number in KERNELS:
        assert "-" not in ROWS[number][1:5], number


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("language", ["Rust", "Python"])
def test_the_tests_of_a_property_exist_and_have_its_number(number: str, language: str) -> None:
    cell = ROWS[number][{"Rust": 3, "Python": 4}[language]]
    if language == "Python" and cell == "-":
        return
    name = f"property_{int(number):02}_"
    module = f"p{int(number):02}_" if language == "Rust" else f"test_p{int(number):02}_"
    first, *others = files_of(cell)
    if language == "Rust":
        assert first.name.startswith(module)
        assert any(name in test for test in functions_of(first))
    # The first linked file contains only tests of this property. Every other linked file contains at
    # least one.
    for file in (first, *others):
        is_module = file.parent.name == "properties" and "evictors" not in file.parts
        assert functions_of(file)
        if is_module and "properties.rs" not in file.name:
            numbered = [test for test in functions_of(file) if re.match(r"(test_)?property_\d\d_", test)]
            assert numbered
            assert all(name in test for test in numbered), file


@pytest.mark.parametrize("number", NUMBERS)
def test_a_module_says_which_property_and_bugs_it_is_about(number: str) -> None:
    bugs = re.findall(r"[\w-]+#\d+", ROWS[number][2])
    assert bugs
    for column in (3, 4):
        for file in files_of(ROWS[number][column]) if ROWS[number][column] != "-" else []:
            if not re.match(r"(test_)?p\d\d_", file.name):
                continue
            text = file.read_text()
            head = text[: text.index("\nuse " if file.suffix == ".rs" else "\nfrom ")]
            assert f"Property {number}" in head, file
            if column == 3:
                assert "fails" in head.lower(), f"{file} does not say which implementation fails it"
            told = re.findall(r"[\w-]+#\d+", text)
            assert set(told) <= set(bugs), f"{file} names bugs that the table lacks"
            if file.relative_to(ROOT).parts[:3] == ("rust", "kvpool", "tests"):
                assert set(bugs) <= set(told), f"{file} lacks bugs of the table"


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_tests_of_copies_exist(kernel: str) -> None:
    assert re.search(r"[\w-]+#\d+", ROWS[kernel][2])
    cell = ROWS[kernel][3]
    assert files_of(cell)
    for name, target in LINK.findall(cell):
        assert name.strip("`") in functions_of((DOCS / target).resolve()), f"{target} has no {name}"
    files_of(ROWS[kernel][4])


def test_no_module_is_left_out_of_the_table() -> None:
    targets = [target for row in ROWS.values() for cell in row[3:5] for _, target in LINK.findall(cell)]
    linked = {(DOCS / target).resolve() for target in targets}
    modules = {
        *ROOT.glob("rust/*/tests/properties/p[0-9][0-9]_*.rs"),
        *ROOT.glob("tests/properties/test_p[0-9]*.py"),
    }
    assert len(modules) >= 33
    assert modules <= linked
    # Cargo compiles a Rust file only if another file declares it as a module. Otherwise its tests would never
    # run.
    for module in (module for module in modules if module.suffix == ".rs"):
        assert f"mod {module.stem};" in (module.parent / "main.rs").read_text()
