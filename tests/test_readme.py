"""The README's examples run, and its commands exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import kvpool

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()


def test_examples_run_and_print_what_they_say() -> None:
    admission, samples, bytes_moved, kept, evidence = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(admission, "README.md", "exec"), names)
        exec(compile(samples, "README.md", "exec"), names)
    cached, table, shared = printed.getvalue().splitlines()
    assert (cached, table, shared) == ("0", "[1, 2, 3, 4, 5, 6, 7]", "96")
    manager = names["manager"]
    assert (manager.request("a").state, manager.request("b").state) == ("running", "swapped")
    manager.check_invariants()
    with contextlib.redirect_stdout(printed):
        exec(compile(bytes_moved, "README.md", "exec"), names)
    assert printed.getvalue().splitlines()[-1] == str([{block: block for block in range(1, 8)}])
    assert names["manager"].request("a").state == "swapped"
    names["engine"].close()
    with contextlib.redirect_stdout(printed):
        exec(compile(kept, "README.md", "exec"), {"kvpool": kvpool})
    # An eighth of the pool; nothing was looked up twice, so nothing would have hit.
    assert printed.getvalue().splitlines()[-1] == str({"blocks": 1249, "block_hit_rate": 0.0})
    exec(compile(evidence, "README.md", "exec"), {"kvpool": kvpool})


def test_the_two_commands_are_make_targets() -> None:
    makefile = (Path(__file__).resolve().parent.parent / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+) ", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
