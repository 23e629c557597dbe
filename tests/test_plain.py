"""``tools/plain.py`` finds the patterns of its rules in prose, and does not look for them elsewhere."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "plain.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plain", TOOL)
    assert spec
    assert spec.loader
    module = sys.modules["plain"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# For each rule, a sentence that breaks it, and the sentence that should replace it.
EXAMPLES = {
    "headless": ("Whose last pin ended.", "The last pin of the block ended."),
    "talk": ("The policy is told of it.", "The pool notifies the policy."),
    "people": ("A block that nobody holds.", "A block without references."),
    "hang": ("The order hangs on the clock.", "The order depends on the clock."),
    "count": ("It takes as many as the batch has.", "It takes one per entry of the batch."),
    "had": ("Where memory cannot be had.", "Where memory is unavailable."),
    "for": ("The block stays, for it is pinned.", "The block stays, because it is pinned."),
    "goes": ("The oldest goes first.", "The oldest is evicted first."),
    "behind": ("The steps behind it wait.", "The later steps wait."),
    "long": ("word " * 33, "word " * 32),
}


def test_each_rule_has_an_example(tool: ModuleType) -> None:
    assert EXAMPLES.keys() == {name for name, _, _ in tool.PATTERNS} | {"long"}


@pytest.mark.parametrize(("rule", "bad", "good"), [(rule, *pair) for rule, pair in EXAMPLES.items()])
def test_a_rule_finds_its_pattern_and_accepts_its_replacement(
    tool: ModuleType, rule: str, bad: str, good: str
) -> None:
    assert [name for name, _ in tool.hits(bad)] == [rule]
    assert list(tool.hits(good)) == []


def test_questions_code_and_links_are_not_prose_of_a_rule(tool: ModuleType) -> None:
    assert not list(tool.hits("What does it cost?"))
    assert not list(tool.hits("The call `told nobody` returns."))
    assert not list(tool.hits("See [nobody](https://example.org/told)."))


def test_rust_comments_are_read_without_code_and_fences(tool: ModuleType) -> None:
    text = '/// Nobody.\n/// ```\n/// nobody\n/// ```\n/// Tells.\nfn tells() { "nobody" }\n    // Hears.\n'
    assert list(tool.blocks("a.rs", text)) == [(1, "Nobody. Tells."), (7, "Hears.")]
    assert tool.read("a.rs", text).words == 3


def test_python_comments_and_docstrings_are_read_without_examples(tool: ModuleType) -> None:
    text = 'def f():\n    """Nobody.\n\n    >>> told\n    """\n    x = "nobody"\n    # Hears.\n'
    assert list(tool.blocks("a.py", text)) == [(7, "Hears."), (2, "Nobody.")]


def test_markdown_paragraphs_are_read_without_headings_and_fences(tool: ModuleType) -> None:
    text = "# Nobody\n\nOne\ntwo.\n```\nnobody\n```\nThree.\n"
    assert list(tool.blocks("a.md", text)) == [(3, "One two."), (8, "Three.")]


@pytest.mark.parametrize(("path", "limit"), [("a.rs", 110), ("a.py", 110), ("a.md", 160)])
def test_lines_are_counted_in_columns_and_may_be_longer_with_an_address(
    tool: ModuleType, path: str, limit: int
) -> None:
    mark = {".py": "#"}.get(path[1:], "//")
    lines = (mark + "é" * (limit - len(mark)), mark + "é" * limit, mark + "http://" + "x" * limit)
    text = "\n".join(lines)
    assert [line for line, _ in tool.read(path, text).wide] == [2]


def test_each_limit_is_reported(tool: ModuleType) -> None:
    clean = tool.Report(words=1000)
    bad = tool.Report(words=1000, hits=[(1, "talk", "told")] * 4, wide=[(7, 111)])
    assert tool.problems({"a.rs": clean}, []) == []
    assert tool.problems({"a.rs": bad, "b.rs": clean}, ["x" * 73]) == [
        "a.rs: 4.0 hits per 1,000 words; limit 3.0",
        "a.rs:7: 111 columns",
        f"commit subject of 73 characters: {'x' * 73}",
    ]
    assert "all files: 4.0 hits per 1,000 words; limit 2.0" in tool.problems({"a.rs": bad}, [])
