"""``python -m kvpool``: the command line."""

import sys

from kvpool.cli import main

if __name__ == "__main__":
    sys.exit(main())
