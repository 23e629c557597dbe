"""Tests an installed kvpool. Needs only the standard library, so that it can run with any Python on any
machine.

    python smoke.py README.md            # the library alone
    python smoke.py README.md --cli      # with what kvpool[cli] installs

The test runs the README's first snippet, the plug-in's entry point, a pool under load, and the command
line. Under load, the block counts of the pool are checked. If the packages of the command line are
installed, the command line runs on the shipped trace. Otherwise it must print how to install them. In a
free-threaded Python the GIL must still be disabled at the end. Prints one JSON object.
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

#: Output of the README's first snippet. The first prompt has no cached tokens, and the second shares
#: six blocks with it.
EXPECTED_OUTPUT = ["0", "[1, 2, 3, 4, 5, 6, 7]", "96"]


def snippet(readme: str) -> list[str]:
    """Runs the README's first snippet, as a reader does who pastes it. Returns the lines that it
    prints.
    """
    found = re.search(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    if found is None:
        raise SystemExit("the README has no snippet")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(found[1], "README.md", "exec"), {"__name__": "__main__"})  # as a reader would do
    return printed.getvalue().splitlines()


def under_load() -> int:
    """Adds and removes requests in a pool that is too small for all of them. After each change, checks
    the sum of the block counts.
    """
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
    manager.diagnose.check_invariants()
    return refused


def command(*arguments: str) -> tuple[int, str, str]:
    """Runs ``kvpool`` with these arguments in this process, because an emulator cannot start another
    process. Returns its exit code, its output and its errors.
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
    require(
        printed[: len(EXPECTED_OUTPUT)] == EXPECTED_OUTPUT,
        f"the README's first snippet prints {printed}, not {EXPECTED_OUTPUT}",
    )
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
