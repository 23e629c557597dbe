"""The first steps of a new user: the help is short, and help and docs name every policy.

``test_readme.py`` tests the README, and ``test_docs.py`` the docs.
"""

from __future__ import annotations

import pydoc
from pathlib import Path

import pytest

import kvpool
from kvpool.cli import main
from kvpool.policies import eviction_policies
from kvpool.sizing import POLICIES

DOCS = Path(__file__).resolve().parent.parent / "docs"
#: Largest number of lines of help on the classes that a scheduler uses, with the whole docstring of
#: each method.
PYDOC_LINES = 4_100


def test_pydoc_of_the_package_is_what_a_scheduler_needs() -> None:
    text = pydoc.render_doc(kvpool, renderer=vars(pydoc)["plaintext"])
    assert text.count("\n") <= PYDOC_LINES
    for topic in ("kvpool.journal", "kvpool.traces", "kvpool.store"):
        assert topic in text, "where the rest is"
    assert "class Journal(" not in text


def test_the_docs_name_every_policy_that_is_accepted() -> None:
    """In an earlier version, the docs listed eleven policies, but kvpool accepted twelve."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    # One policy is left out, because it orders blocks by access times that a caller passes. If requests run
    # one after another, this policy has no effect.
    assert [*POLICIES] == [name for name in eviction_policies() if name != "last-accessed"]
    for policy in eviction_policies():
        assert f"`{policy}`" in pages or f'`"{policy}"`' in pages, policy


@pytest.mark.usefixtures("plain_output")
@pytest.mark.parametrize("command", ["replay", "size"])
def test_help_names_every_policy(capsys: pytest.CaptureFixture[str], command: str) -> None:
    words = ["--policies", "all"] if command == "size" else ["--eviction", "nothing"]
    assert main([command, "--limit", "3", "--no-progress", *words]) == (0 if command == "size" else 2)
    captured = capsys.readouterr()
    for policy in POLICIES if command == "size" else eviction_policies():
        assert policy in captured.out + captured.err, policy
