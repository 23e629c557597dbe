"""``python -m kvpool`` and the command ``kvpool``: the command line, or a line that says how to install
what it needs.

``pip install kvpool`` brings no other package: a scheduler, and the plug-in in an engine, need none.
Only the command line does, and without them this module is all of it that can be imported: only the
standard library is needed here.
"""

from __future__ import annotations

import sys

#: What the command line is made with, and ``kvpool[cli]`` installs.
_NEEDED = ("typer", "rich")


def main() -> int:
    """Run the command line and return the exit code."""
    try:
        from kvpool.cli import main as run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _NEEDED:
            raise
        print(f"error: the command line needs {package}: pip install 'kvpool[cli]'", file=sys.stderr)
        return 1
    return run()


if __name__ == "__main__":
    sys.exit(main())
