"""Every page of the docs has an example, and every example runs and prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

import kvpool
from kvpool.cli import _app
from tests.documented import (
    Example,
    commands,
    examples,
    inside,
    matches,
    parse_command,
    run_command,
    run_python,
)

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
#: Pages with examples. ``test_readme.py`` runs those of the README, and ``tools/docs_site.py`` gives a
#: reason for each other document in the root that has none.
WITH_EXAMPLES = [*PAGES, DOCS.parent / "SECURITY.md"]
#: Languages of code blocks that are neither run nor contain commands.
OTHERS = {"", "text", "rust", "json", "yaml", "toml", "promql"}
#: Pages of ``design/`` whose examples run. The other pages of that folder have no examples.
DESIGN = DOCS.parent / "design"
DESIGN_EXAMPLES = [DESIGN / f"{name}.md" for name in ("principles", "properties", "sglang-settings")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Makes a folder for the examples of a page, with the files that they read."""
    made = kvpool.traces.Trace.generate(300, seed=7).to_jsonl()
    for name in ("trace.jsonl", "monday.jsonl", "tuesday.jsonl"):
        (tmp_path / name).write_bytes(made)
    return tmp_path


@pytest.mark.parametrize("page", [*WITH_EXAMPLES, *DESIGN_EXAMPLES], ids=lambda page: page.stem)
def test_a_page_has_an_example_and_all_of_them_run(page: Path, folder: Path) -> None:
    names: dict[str, Any] = {}
    ran = 0
    with inside(folder):
        for example in examples(page):
            where = f"{page.name}:{example.line}"
            assert example.language in OTHERS | {"python", "console", "sh"}, f"{where}: {example.language}"
            if example.by is not None:
                runner = (DOCS.parent / example.by).read_text(encoding="utf-8")
                assert page.name in runner, f"{where}: {example.by} does not name it"
                ran += 1
            elif example.language == "python":
                printed = run_python(example, names)
                if example.printed is not None:
                    assert matches(printed, example.printed), f"{where} prints\n{printed}"
                ran += 1
            elif example.language == "console":
                for line, wanted in commands(example):
                    code, printed = run_command(line)
                    assert code == 0 or wanted, f"{where}: {line} ends with {code}: {printed}"
                    assert not wanted.strip() or matches(printed, wanted), (
                        f"{where}: {line} prints\n{printed}"
                    )
                ran += 1
            elif example.language == "sh":
                for line, _ in commands(example):
                    parse_command(line)
    for value in names.values():
        if isinstance(value, kvpool.CacheManager | kvpool.BlockPool):
            value.diagnose.check_invariants()
    assert ran, f"{page.name} has no example that runs"


def test_blocks_are_read_as_they_stand(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\nWords.\n\n```text\nfree\n```\n\n"
        "<!-- run by tests/other.py -->\n```python\nraise\n```\n"
    )
    first, text, other = examples(page)
    assert (first.code, first.printed, first.line) == ("print(1)\n", "1\n", 3)
    assert (text.language, other.by) == ("text", "tests/other.py")
    assert run_python(first, {}) == "1\n"


@pytest.mark.parametrize(
    ("printed", "wanted", "same"),
    [
        ("a\nb\n", "a\nb", True),
        ("a  \n\nb\n", "a\n\nb\n", True),
        ("a\nb\n", "a\n", False),
        ("took 1.2 s\n", "took ... s\n", True),
        ("took 1.2 s\nmore\n", "took ... s\n", False),
        ("a\n1\n2\n3\nb\n", "a\n...\nb\n", True),
        ("a\nb\n", "a\n...\nb\n", True),
        ("a\nb\nc\n", "a\n...\nb\n", False),
        ("a\n1\n", "a\n...\n", True),
        ("[1]\n", "[1]\n", True),
        ("name   1\n", "name 1\n", True),
        ("1\n", "[1]\n", False),
    ],
)
def test_what_is_printed_is_compared(printed: str, wanted: str, same: bool) -> None:
    assert matches(printed, wanted) == same


def test_a_session_is_commands_and_what_they_print() -> None:
    session = Example(
        "page.md",
        1,
        "console",
        "$ kvpool models gpt-2 \\\n  --json    # facts\n{\n...\n}\n$ kvpool --version\n",
    )
    (first, printed), (second, nothing) = commands(session)
    assert first.split() == ["kvpool", "models", "gpt-2", "--json", "#", "facts"]
    assert (printed, second, nothing) == ("{\n...\n}\n", "kvpool --version", "")
    code, said = run_command(first)
    assert (code, matches(said, printed)) == (0, True)
    assert run_command(second) == (0, f"kvpool {kvpool.__version__}\n")


@pytest.mark.parametrize(
    "line", ["make test", "make test WORKERS=", "kvpool size t.jsonl --json", "vllm serve MODEL"]
)
def test_commands_that_are_not_run_are_looked_at(line: str) -> None:
    parse_command(line)


@pytest.mark.parametrize(
    "line", ["make nothing", "kvpool nothing", "kvpool size --nothing", "kvpool journal show"]
)
def test_commands_that_do_not_exist_are_found(line: str) -> None:
    with pytest.raises(Exception, match=r"nothing|Missing"):
        parse_command(line)


def test_the_page_of_the_command_line_has_every_command() -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    for name, command in typer.main.get_command(_app).commands.items():  # type: ignore[attr-defined]
        assert f"`kvpool {name}" in page, name
        for below in getattr(command, "commands", {}):
            assert f"`{below}`" in page or f"`kvpool {name} {below}`" in page, f"{name} {below}"


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, which links contain. The site and code hosting
    platforms form them in this way.
    """
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize(
    "page",
    [*PAGES, *sorted(DOCS.parent.glob("*.md")), *sorted(DESIGN.glob("*.md"))],
    ids=lambda page: f"{page.parent.name}/{page.stem}",
)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^()\s#:]*)(?:#([^()\s]*))?\)", text):
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{page.name}: {target}#{anchor}"


def test_every_alert_has_a_line_in_the_runbook() -> None:
    rules = (DOCS / "metrics" / "kvpool.rules.yml").read_text(encoding="utf-8")
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) > 5
    for alert in alerts:
        assert f"`{alert}`" in page, alert
