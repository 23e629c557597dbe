"""Property 19: digests are the same in every process, with every hash seed, in Rust and in Python."""

from __future__ import annotations

import os
import subprocess
import sys

import kvpool


def test_property_19_digests_are_equal_across_processes_and_hash_seeds() -> None:
    """lmcache#2136, DingoCache#77: keys depended on the process, so that no store could be shared."""
    code = (
        "import kvpool\n"
        "for name in kvpool.hashing.hash_algorithms():\n"
        "    hasher = kvpool.BlockHasher(name, 4, seed=None if name == 'blake3' else '7')\n"
        "    print(name, hasher.hash_tokens(range(64), kvpool.ExtraKeys(salt='s'))[-1].hex())\n"
    )
    here = "".join(
        f"{name} "
        + kvpool.BlockHasher(name, 4, seed=None if name == "blake3" else "7")
        .hash_tokens(range(64), kvpool.ExtraKeys(salt="s"))[-1]
        .hex()
        + "\n"
        for name in kvpool.hashing.hash_algorithms()
    )
    here_as_well = os.pathsep.join(sys.path)  # the same package as this process has
    for seed in ("0", "12345", "random"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": here_as_well}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stdout == here
