"""Runs kvpool as it was installed: a program of its own, for any Python on any machine, by the standard
library.

    python smoke.py README.md            # the library alone
    python smoke.py README.md --cli      # with what kvpool[cli] installs

README's first snippet, the plug-in's entry point, a pool under load with its sums checked, and the
command line: on the shipped trace where what it needs is installed, else its one line that says how. A
free-threaded Python has to be without the GIL afterwards. Prints one JSON object.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import sys
import sysconfig
import time
from importlib import metadata
from pathlib import Path

#: What the README says of its first snippet: a first prompt computes all, a second one shares six blocks.
SAID = ["0", "[1, 2, 3, 4, 5, 6, 7]", "96"]


def snippet(readme: str) -> list[str]:
    """The README's first snippet, as a reader pastes it."""
    found = re.search(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    if found is None:
        raise SystemExit("the README has no snippet")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(found[1], "README.md", "exec"), {"__name__": "__main__"})  # what a reader would do
    return printed.getvalue().splitlines()


def under_load() -> int:
    """Requests come and go in a pool that is too small for all of them; every sum is right afterwards."""
    import kvpool

    manager = kvpool.CacheManager(num_blocks=64, block_size=4, host_blocks=16)
    refused = 0
    running: list[int] = []
    for number in range(400):
        prompt = [number % 7] * 20 + list(range(number, number + 20))
        while True:
            try:
                manager.admit(number, prompt)
                break
            except kvpool.errors.OutOfBlocksError:
                refused += 1
                manager.release(running.pop(0))
        manager.commit(number, len(prompt))
        running.append(number)
    manager.check_invariants()
    return refused


def command(*arguments: str) -> tuple[int, str, str]:
    """``kvpool`` with these arguments, in this process: what runs under an emulator can start no other
    one.
    """
    from kvpool.__main__ import main

    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["kvpool", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main()
    return code, out.getvalue(), err.getvalue()


def require(condition: bool, what: object) -> None:
    if not condition:
        raise SystemExit(f"smoke: {what}")


def main() -> None:
    begun = time.monotonic()
    readme, with_cli = Path(sys.argv[1]).read_text(encoding="utf-8"), "--cli" in sys.argv[2:]
    for name in [name for name in os.environ if name.startswith("KVPOOL_")]:
        del os.environ[name]
    import kvpool

    printed = snippet(readme)
    require(printed[: len(SAID)] == SAID, f"the README's first snippet prints {printed}, not {SAID}")
    (plugin,) = metadata.entry_points(group="vllm.general_plugins", name="kvpool")
    require(plugin.load()() is None, "the plug-in's entry point returns something")
    refused = under_load()
    require(refused > 100, f"{refused} of 400 requests found the pool full")
    if with_cli:
        code, out, err = command("--version")
        require((code, out.strip()) == (0, f"kvpool {kvpool.__version__}"), (code, out, err))
        code, out, err = command("size", "example", "--json")
        require(code == 0 and json.loads(out)["trace"]["requests"] > 100, (code, out[:500], err))
    else:
        code, out, err = command("--version")
        require(code == 1 and "pip install 'kvpool[cli]'" in err and err.count("\n") == 1, (code, out, err))
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    require(not (gil and sysconfig.get_config_var("Py_GIL_DISABLED")), "an import has switched the GIL on")
    told = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "gil": gil,
        "refused": refused,
        "seconds": round(time.monotonic() - begun, 2),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
