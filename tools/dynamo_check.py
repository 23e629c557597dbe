#!/usr/bin/env python3
"""Publishes KV events to Dynamo's own indexer, and compares the indexer's content with the pools.

    python tools/dynamo_check.py                   # every scenario, and 1,000 random histories
    python tools/dynamo_check.py --histories 100 --seed 7

Needs the package ``ai-dynamo-runtime``. ``make dynamo-check`` installs its 250 MB from the package
index into --packages. The indexer's HTTP server listens on every interface. So everything runs in a
network namespace that has only a loopback interface. --any-interface runs without such a namespace.

The scenarios are: a late join, a gap, restarts, overflows, moves between tiers, mass evictions, every
event format, and a control that must fail. After each scenario, and at random moments of the histories,
the indexer's ``/dump`` is compared with the pool, for each content and tier.

Exit code 0: no difference, or the indexer is unavailable and the last line states that nothing was
checked. If CI is set in the environment, an unavailable indexer gives exit code 1. 1: a difference. 2:
bad usage. 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Linux ioctls that read and write the flags of a network interface, and the flag of an active
#: interface.
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 0x1


class UnavailableError(Exception):
    """The indexer is unavailable; the message states the reason."""


def raise_loopback() -> None:
    """Enables the loopback interface of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh", b"lo", 0)
        answer = fcntl.ioctl(any_socket, GET_FLAGS, request.ljust(40, b"\0"))
        _, flags = struct.unpack_from("16sh", answer)
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh", b"lo", flags | UP).ljust(40, b"\0"))


def require(packages: Path) -> None:
    """Checks that the indexer is installed.

    Raises:
        UnavailableError: The indexer is not installed, or cannot be imported.
    """
    if not (packages / "dynamo" / "indexer").is_dir():
        raise UnavailableError(f"there is no ai-dynamo-runtime in {packages}")
    command = [sys.executable, "-c", "import dynamo.indexer.main"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(packages)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UnavailableError(
            f"ai-dynamo-runtime cannot be imported: {done.stderr.strip().splitlines()[-1]}"
        )


def apart() -> list[str]:
    """Returns the words to put before a command, so that it runs in its own network namespace.

    Raises:
        UnavailableError: This machine or this user may not create a network namespace.
    """
    program = shutil.which("unshare")
    if program is None:
        raise UnavailableError(
            "unshare (util-linux), which creates a network namespace, is missing: see --any-interface"
        )
    command = [program, "--map-root-user", "--net"]
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(
            f"a network namespace cannot be created ({done.stderr.strip()}): see --any-interface"
        )
    return command


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--packages", type=Path, default=ROOT / "target" / "dynamo", help="folder with the indexer's packages"
    )
    parser.add_argument(
        "--histories", type=int, default=1000, help="number of random histories (default: 1000)"
    )
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the histories (default: the time)"
    )
    parser.add_argument(
        "--any-interface", action="store_true", help="let the indexer listen on every interface"
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.histories < 0:
        parser.error("--histories must not be negative")
    packages = options.packages.absolute()
    if options.inside:
        raise_loopback()
    try:
        require(packages)
        command = [] if options.inside or options.any_interface else apart()
    except UnavailableError as error:
        print(f"dynamo_check: {error}", file=sys.stderr)
        print("dynamo_check: NOT CHECKED: KV events with Dynamo's indexer", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    if not command:
        from tools.dynamo import scenarios

        return scenarios.run(packages, options.histories, options.seed)
    command += [sys.executable, str(Path(__file__).resolve()), "--inside", "--packages", str(packages)]
    command += ["--histories", str(options.histories), "--seed", str(options.seed)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
