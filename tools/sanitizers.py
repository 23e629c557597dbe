#!/usr/bin/env python3
"""Runs tests under AddressSanitizer or ThreadSanitizer, with a stable toolchain.

    python tools/sanitizers.py address    # Rust crates with unsafe code, and Python tests that touch memory
    python tools/sanitizers.py thread     # Rust crates with threads

Code with planted faults runs first, to check that the sanitizer reports faults at all. Any other report
from any process is a failure, and so is a failed test.

The toolchain has the runtimes of the sanitizers, but no instrumented standard library. AddressSanitizer
does not need one. For ThreadSanitizer, `tools/sanitizers/std_locks.rs` announces the parts of the
standard library's locks that it cannot see.

Exit code 0: only the planted faults were reported. 1: a check failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT: Final = Path(__file__).resolve().parents[1]
HERE: Final = Path(__file__).resolve().parent / "sanitizers"
# Packages whose tests run under each sanitizer, and the arguments of cargo test for each.
CRATES: Final = {
    "address": (("kvpool-transfer", ("--lib", "--tests")), ("kvpool-store", ("--lib", "--tests"))),
    "thread": (
        ("kvpool-transfer", ("--lib", "--tests")),
        ("kvpool-store", ("--lib", "--tests")),
        ("kvpool-journal", ("--test", "journals", "writers")),
        ("kvpool-replay", ("--test", "replay", "tiers::")),
        ("kvpool-hash", ("--test", "properties", "process_state")),
    ),
}
# Faults that are planted on purpose. The report of each must contain these words.
PLANTED: Final = {
    "address": {"read_out_of_bounds": "heap-buffer-overflow", "read_after_free": "heap-use-after-free"},
    "thread": {"data_race": "data race"},
}
# Python tests in which the extension reads or writes memory of the caller.
PYTHON_TESTS: Final = (
    "tests/transfer",
    "tests/test_buffers.py",
    "tests/test_out_buffers.py",
    "tests/test_store.py",
)
# Environment variables that reduce the number of random cases. Instrumented code is five to twenty
# times slower.
FEW: Final = {"PROPTEST_CASES": "32", "KVPOOL_STORE_FLIPS": "200", "KVPOOL_STORE_KILLS": "5"}
# Makes tests print at once. Otherwise the threads of tests would write to a buffer of the test harness,
# which is not instrumented.
UNCAPTURED: Final = {"RUST_TEST_NOCAPTURE": "1"}
OPTIONS: Final = {
    # Do not report leaks, because processes leak some memory on purpose, such as the context of a
    # device.
    "address": "detect_leaks=0:abort_on_error=0:exitcode=66",
    "thread": f"exitcode=66:suppressions={HERE / 'tsan_suppressions.txt'}",
}
# A Python program with a fault: the second block of its store lies after the end of the buffer.
PYTHON_FAULT: Final = """
import ctypes
from kvpool.transfer import BlockStore
memory = ctypes.create_string_buffer(64)
BlockStore.from_regions([(ctypes.addressof(memory), 64, 64)], 2, keep_alive=memory).read_block(1)
"""
#: Functions of the standard library whose effects ThreadSanitizer cannot see. The key is the name in
#: std_locks.rs.
STD_LOCKS: Final = {
    "lock_contended": r"5mutex5futex\w+_5Mutex14lock_contended",
    "read_contended": r"6rwlock5futex\w+_6RwLock14read_contended",
    "write_contended": r"6rwlock5futex\w+_6RwLock15write_contended",
    "condvar_wait": r"7condvar5futex\w+_7Condvar4wait",
    "condvar_wait_timeout": r"7condvar5futex\w+_7Condvar12wait_timeout",
    "once_call": r"3sys4sync4once5futex\w+_4Once4call",
    "scope_thread_ended": r"6thread6scoped\w+_9ScopeData29decrement_num_running_threads",
}
#: Functions of ThreadSanitizer that std_locks.rs replaces.
TSAN_FUNCTIONS: Final = ("64_fetch_add", "64_fetch_sub", "_thread_fence")


class CheckFailedError(Exception):
    """A check found a fault or could not run. The message contains the output of the failed program."""


def call(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the root of the checkout and keeps its output."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def require(done: subprocess.CompletedProcess[str], what: str) -> str:
    """Runs a command and returns its output. Raises an error if the command fails."""
    if done.returncode != 0:
        raise CheckFailedError(f"{what}, exit status {done.returncode}:\n{done.stdout.rstrip()}")
    return done.stdout


def rustc(*words: str | Path, what: str) -> str:
    return require(call(os.environ.get("RUSTC", "rustc"), *words, RUSTC_BOOTSTRAP="1"), what)


def std_locks(folder: Path, target: str) -> list[str]:
    """Compiles std_locks.rs. Returns the linker flags that replace the standard library's functions by
    its functions.
    """
    root = Path(rustc("--print", "sysroot", what="rustc --print sysroot").strip())
    (library,) = (root / "lib" / "rustlib" / target / "lib").glob("libstd-*.rlib")
    content = library.read_bytes()
    source = (HERE / "std_locks.rs").read_text(encoding="utf-8")
    replaced = [f"__tsan_atomic{name}" for name in TSAN_FUNCTIONS]
    for name, pattern in STD_LOCKS.items():
        found = set(re.findall(rb"(?<=\0)_RN\w*?_3std\w*?" + pattern.encode() + rb"(?=\0)", content))
        if len(found) != 1:
            raise CheckFailedError(
                f"{library} has {len(found)} functions {name}: adapt STD_LOCKS to its version"
            )
        replaced.append(found.pop().decode())
        source = source.replace(f"@{name}@", replaced[-1])
    (folder / "std_locks.rs").write_text(source, encoding="utf-8")
    compiled = folder / "std_locks.o"
    words = (
        "--edition",
        "2024",
        "-O",
        "--target",
        target,
        "--emit",
        "obj",
        "-o",
        compiled,
        folder / "std_locks.rs",
    )
    rustc(*words, what="the compilation of tools/sanitizers/std_locks.rs")
    return [f"-Clink-arg={compiled}", *(f"-Clink-arg=-Wl,--wrap={name}" for name in replaced)]


@dataclass
class Run:
    """The folder, the compiler flags and the target of the builds and tests under one sanitizer."""

    sanitizer: str
    folder: Path
    environment: dict[str, str]
    target: str

    @staticmethod
    def of(sanitizer: str) -> Run:
        version = rustc("-vV", what="rustc -vV")
        target = re.findall(r"^host: (.*)$", version, flags=re.MULTILINE)[0]
        folder = ROOT / "target" / "sanitizers" / sanitizer
        folder.mkdir(parents=True, exist_ok=True)
        # Do not use the generic functions that the standard library contains in compiled form, because
        # they are not instrumented.
        flags = [f"-Zsanitizer={sanitizer}", "-Cunsafe-allow-abi-mismatch=sanitizer", "-Zshare-generics=no"]
        flags += std_locks(folder, target) if sanitizer == "thread" else []
        environment = {
            "RUSTC_BOOTSTRAP": "1",
            "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags),
            "CARGO_TARGET_DIR": str(folder),
            "CARGO_PROFILE_DEV_DEBUG": "line-tables-only",
        }
        return Run(sanitizer, folder, environment | FEW | UNCAPTURED, target)

    def options(self, reports: Path) -> dict[str, str]:
        """Empties the folder for reports. Returns the environment variables that make every process
        write its reports there.
        """
        shutil.rmtree(reports, ignore_errors=True)
        reports.mkdir()
        name = "ASAN_OPTIONS" if self.sanitizer == "address" else "TSAN_OPTIONS"
        return {name: f"{OPTIONS[self.sanitizer]}:log_path={reports / 'report'}"}

    def cargo(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        # With `--target`, cargo does not apply the flags to build scripts and macros. This is necessary
        # because rustc, which loads them, is not instrumented.
        first, *rest = words
        return call(
            os.environ.get("CARGO", "cargo"),
            first,
            "--locked",
            "--target",
            self.target,
            *rest,
            **self.environment,
            **environment,
        )

    def planted(self, fault: str, words: str) -> str:
        """Runs a Rust test with a planted fault, and checks that the fault is reported."""
        folder = self.folder / "planted"
        test = ("test", "-p", "kvpool-transfer", "--test", "planted", "--", "--exact", fault)
        done = self.cargo(*test, **self.options(folder))
        return found_planted(done, folder, words)

    def crate(self, package: str, words: tuple[str, ...]) -> str:
        """Runs the tests of a crate, and checks that they pass without a report."""
        folder = self.folder / "reports"
        done = self.cargo("test", "--no-fail-fast", "-p", package, *words, **self.options(folder))
        return nothing_found(done, folder, r"(\d+) passed")

    def python(self) -> Iterable[tuple[str, Callable[[], str]]]:
        """Returns the checks that run Python tests with an instrumented extension."""
        package = self.folder / "python" / "kvpool"
        # Use the C compiler's runtime of AddressSanitizer. The toolchain's runtime is an archive, which
        # an interpreter cannot load.
        libraries = [
            call("cc", f"-print-file-name={name}").stdout.strip() for name in ("libasan.so", "libstdc++.so.6")
        ]
        # Use malloc for Python objects. Otherwise reads past the end of an object are not reported.
        environment = {
            "PYTHONPATH": str(package.parent),
            "PYTHONMALLOC": "malloc",
            "LD_PRELOAD": " ".join(libraries),
        }

        def build() -> str:
            require(
                self.cargo("build", "-p", "kvpool-py", "--features", "as-tested"),
                "the build of the extension",
            )
            shutil.rmtree(package, ignore_errors=True)
            package.mkdir(parents=True)
            for part in (ROOT / "python" / "kvpool").iterdir():
                if part.suffix != ".so":
                    (package / part.name).symlink_to(part)
            shutil.copy(self.folder / self.target / "debug" / "lib_core.so", package / "_core.abi3.so")
            return "built"

        def planted() -> str:
            folder = self.folder / "planted"
            done = call(sys.executable, "-c", PYTHON_FAULT, **environment, **self.options(folder))
            return found_planted(done, folder, "heap-buffer-overflow")

        def tests() -> str:
            folder = self.folder / "reports"
            words = ("-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *PYTHON_TESTS)
            done = call(sys.executable, *words, **environment, **self.options(folder))
            return nothing_found(done, folder, r"(\d+) passed")

        return (("the extension", build), ("planted in the extension", planted), ("Python tests", tests))


def read_reports(folder: Path) -> str:
    return "\n".join(
        path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("report.*"))
    )


def found_planted(done: subprocess.CompletedProcess[str], folder: Path, words: str) -> str:
    reports = read_reports(folder)
    if done.returncode == 0 or words not in reports:
        raise CheckFailedError(
            f"no report of {words}, exit status {done.returncode}:\n{done.stdout}\n{reports}"
        )
    if "kvpool_transfer" not in reports:
        raise CheckFailedError(f"a report that names no function of kvpool_transfer:\n{reports}")
    return f"reported as {words}"


def nothing_found(done: subprocess.CompletedProcess[str], folder: Path, counted: str) -> str:
    if reports := read_reports(folder):
        raise CheckFailedError(f"{reports}\n{done.stdout[-4000:]}")
    require(done, "the tests")
    tests = sum(map(int, re.findall(counted, done.stdout)))
    if tests == 0:
        raise CheckFailedError(f"no test ran:\n{done.stdout}")
    return f"{tests} tests, no report"


def timed(check: Callable[[], str]) -> Callable[[], str]:
    def run() -> str:
        start = time.monotonic()
        return f"{check()} ({time.monotonic() - start:.0f} s)"

    return run


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sanitizer", choices=sorted(CRATES))
    parser.add_argument(
        "--only", default="", metavar="WORD", help="make only the checks whose names contain this"
    )
    arguments = parser.parse_args()
    run = Run.of(arguments.sanitizer)
    checks: list[tuple[str, Callable[[], str]]] = [
        (f"planted {fault}", partial(run.planted, fault, report))
        for fault, report in PLANTED[run.sanitizer].items()
    ]
    checks += [(package, partial(run.crate, package, words)) for package, words in CRATES[run.sanitizer]]
    if run.sanitizer == "address":
        checks += run.python()
    chosen = [(name, timed(check)) for name, check in checks if arguments.only in name]
    failed = not chosen
    for name, check in chosen:
        try:
            print(f"{name}: {check()}", flush=True)
        except CheckFailedError as error:
            failed = True
            print(f"{name}: FAILED: {error}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
