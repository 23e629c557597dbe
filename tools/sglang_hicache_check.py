#!/usr/bin/env python3
"""Drives kvpool's storage back end by SGLang's own classes: its factory, configuration, host pools and controller.

    python tools/sglang_hicache_check.py

Makes .venv-sglang where it is not there: SGLang's wheel, torch, and what the modules of its hierarchical cache import;
not its kernels, and no GPU is needed. kvpool is the one of this checkout, which has to be built (``make test-python``
does). Then, in that environment, ``tools.sglang.hicache`` and ``tools.sglang.identity`` run. The second one compares
docs/sglang-settings.md with what ``tools.sglang.settings`` writes.

Exit code 0: everything is as it should be, or SGLang cannot be had and the last line says that nothing was checked;
with CI set in the environment that is 1. 1: a difference, or what broke. 2: bad usage.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
CHECKS: Final = ("tools.sglang.hicache", "tools.sglang.identity")
SGLANG: Final = "0.5.23"
#: With what it requires: torch is the bulk.
WITH_REQUIREMENTS: Final = (
    "torch==2.14.1",  # as SGLang wants it
    "aiohttp",
    "fastapi",
    "httpx2",
    "huggingface_hub",
    "ipython",
    "msgspec",
    "numpy",
    "orjson",
    "psutil",
    "pybase64",
    "pyzmq",
    "requests",
    "safetensors",
    "sentencepiece",
    "tokenizers==0.23.2",
    "torchvision",
)
#: Alone: their requirements are there, or are for what is not imported.
ALONE: Final = (
    f"sglang=={SGLANG}",
    "apache-tvm-ffi==0.1.11",
    "compressed_tensors",
    "dill",
    "gguf",
    "loguru",
    "regex",
    "transformers==5.19.0",
)
NEEDED_BYTES: Final = 10_000_000_000
#: What an environment was made of: made again when this changes.
STAMP: Final = "\n".join((*WITH_REQUIREMENTS, *ALONE))


class UnavailableError(Exception):
    """The package index or the disk has not what is needed; the message says which."""


def run(*command: str | Path) -> None:
    """Runs a step of making the environment.

    Raises:
        UnavailableError: It failed; its last lines.
    """
    words = [str(word) for word in command]
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        done = subprocess.run(words, env=kept, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UnavailableError(f"cannot run {words[0]}: {error.strerror}") from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise UnavailableError(f"{' '.join(words[:6])} ... exited with {done.returncode}\n{tail}")


def make(folder: Path) -> Path:
    """The environment, made if it is not there; returns its Python.

    Raises:
        UnavailableError: It cannot be made here.
    """
    python, stamp = folder / "bin" / "python", folder / "kvpool-stamp"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == STAMP:
        return python
    if folder.exists() and not (folder / "pyvenv.cfg").exists():
        raise UnavailableError(f"{folder} is there and no virtual environment")
    shutil.rmtree(folder, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    if free < NEEDED_BYTES:
        raise UnavailableError(f"{free / 1e9:.0f} GB free of {NEEDED_BYTES / 1e9:.0f} needed in {folder.parent}")
    run(sys.executable, "-m", "venv", folder)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    run(*pip, *WITH_REQUIREMENTS)
    run(*pip, "--no-deps", *ALONE)
    stamp.write_text(STAMP, encoding="utf-8")
    return python


def check(python: Path) -> int:
    """Runs the checks with a Python that has SGLang; returns the first exit code that is not 0."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SGLANG_", "KVPOOL_"))}
    kept |= {"PYTHONPATH": str(ROOT / "python"), "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory(prefix="kvpool-sglang-hub-") as hub:
        kept |= {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": hub}
        for module in CHECKS:
            code = subprocess.run([python, "-m", module], cwd=ROOT, env=kept, check=False).returncode
            if code:
                return code
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--venv", type=Path, default=ROOT / ".venv-sglang", help="where (default: .venv-sglang of the checkout)"
    )
    parser.add_argument("--python", type=Path, help="a Python that has SGLang already: nothing is made")
    options = parser.parse_args(argv)
    try:
        python = options.python or make(options.venv.absolute())
    except UnavailableError as error:
        print(f"sglang_hicache_check: {error}", file=sys.stderr)
        print("sglang_hicache_check: NOT CHECKED: kvpool beneath a real SGLang", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    return 1 if check(python) else 0


if __name__ == "__main__":
    sys.exit(main())
