"""What a release is made of: a source distribution, a wheel for each platform, and what building each takes.

A wheel for another platform is linked by zig, which has the C libraries of all of them and links against the oldest
that the wheel's name promises; Rust's standard library for it comes with ``rustup target add``. Without zig, Debian's
cross compiler links: against the C library of that Debian, so that such a wheel asks for a newer one; its name says so.

What cannot be built here has a reason in words (:class:`MissingError`), never silence.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from tools.cargo_tools import call


class MissingError(Exception):
    """What building, or running, takes and is not on this machine. The message says what."""


class Target(NamedTuple):
    """A wheel."""

    #: As TARGETS of ``make release`` names it.
    name: str
    #: As rustc names the platform.
    triple: str
    #: The platform tag: the oldest system that it runs on.
    platform: str
    #: As the file's name says what Python it is for.
    abi: str = "cp311-abi3"
    #: The interpreter that it is built for. It need not be here.
    python: str = "python3.11"

    @property
    def machine(self) -> str:
        return self.triple.partition("-")[0]

    @property
    def is_musl(self) -> bool:
        return self.triple.endswith("-musl")

    @property
    def is_abi3(self) -> bool:
        return self.abi.endswith("-abi3")

    @property
    def is_native(self) -> bool:
        """Whether this machine runs it."""
        return self.machine == platform.machine() and not self.is_musl


#: The one that is no wheel.
SDIST: Final = "sdist"
_FREE_THREADED: Final = ("cp314-cp314t", "python3.14t")
TARGETS: Final = {
    target.name: target
    for target in (
        Target("x86_64-gnu", "x86_64-unknown-linux-gnu", "manylinux2014"),
        Target("aarch64-gnu", "aarch64-unknown-linux-gnu", "manylinux2014"),
        Target("x86_64-musl", "x86_64-unknown-linux-musl", "musllinux_1_2"),
        Target("aarch64-musl", "aarch64-unknown-linux-musl", "musllinux_1_2"),
        Target("x86_64-gnu-cp314t", "x86_64-unknown-linux-gnu", "manylinux2014", *_FREE_THREADED),
        Target("aarch64-gnu-cp314t", "aarch64-unknown-linux-gnu", "manylinux2014", *_FREE_THREADED),
    )
}
ALL: Final = (SDIST, *TARGETS)


def host_target() -> Target:
    """The wheel for the machine that this runs on."""
    found = [target for target in TARGETS.values() if target.is_native and target.is_abi3]
    if not found:
        raise MissingError(
            f"no wheel is made for {platform.machine()} with {platform.libc_ver()[0] or 'another C library'}"
        )
    return found[0]


def has_std(triple: str) -> bool:
    """Whether Rust's standard library is here for a platform."""
    said = call("rustc", "--print", "target-libdir", "--target", triple)
    folder = Path(said.stdout.strip() or os.devnull)
    return said.returncode == 0 and folder.is_dir() and any(folder.glob("libstd-*"))


def need_std(triple: str) -> None:
    """Has Rust's standard library for a platform: fetched by rustup where it is not here yet."""
    if has_std(triple):
        return
    if shutil.which("rustup") is None:
        raise MissingError(f"Rust's standard library for {triple} is not here, and no rustup to fetch it")
    done = call("rustup", "target", "add", triple)
    if done.returncode != 0 or not has_std(triple):
        said = " ".join(done.stdout.split()[-40:])
        raise MissingError(f"Rust's standard library for {triple} cannot be had: rustup target add: {said}")


def has_zig() -> bool:
    """Whether the package ziglang is in this environment."""
    return importlib.util.find_spec("ziglang") is not None


def cross_gcc(target: Target) -> str | None:
    """Debian's compiler for another machine, if it is here. It has no musl."""
    program = f"{target.machine}-linux-gnu-gcc"
    return None if target.is_musl else shutil.which(program)


def linking(target: Target) -> tuple[list[str], dict[str, str], str]:
    """How a wheel is linked: arguments of maturin, variables, and words for it."""
    if has_zig():
        return ["--zig", "--compatibility", target.platform], {}, "linked by zig"
    if (gcc := cross_gcc(target)) is None:
        raise MissingError(
            f"no linker for {target.triple}: neither the package ziglang nor {target.machine}-linux-gnu-gcc"
        )
    key = target.triple.replace("-", "_")
    variables = {f"CC_{key}": gcc, f"CARGO_TARGET_{key.upper()}_LINKER": gcc}
    return [], variables, f"linked by {Path(gcc).name}, for systems as new as this one"
