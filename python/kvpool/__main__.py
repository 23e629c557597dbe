"""``python -m kvpool`` and the command ``kvpool``: runs the command line.

If a package is missing, the command prints how to install it. ``pip install kvpool`` installs no other
package, because schedulers and engine plug-ins need none. Only the command line needs ``typer`` and
``rich``. This module must be importable without them, so at import time it uses only the standard
library.
"""

from __future__ import annotations

import sys

#: The packages that the command line needs. ``kvpool[cli]`` installs them.
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
