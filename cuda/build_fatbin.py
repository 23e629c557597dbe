"""Builds ``block_copy.fatbin``: code of ``block_copy.cu`` for every GPU since Turing, and PTX for later GPUs.

The build needs only NVRTC and nvFatbin, two wheels from PyPI. It does not need nvcc, a host compiler, a
GPU or a driver::

    pip install --no-deps nvidia-cuda-nvrtc-cu12==12.8.93 nvidia-nvfatbin-cu12==12.8.90
    python cuda/build_fatbin.py

The fat binary is committed, so a build of kvpool does not need these wheels. The same source gives the
same bytes with the same versions of the wheels. ``--check`` builds again and compares the bytes.
``--check-hashes`` needs no wheels. It compares the hashes of the source and of the fat binary with
``block_copy.fatbin.sha256``, and so detects a changed source without a new build.

The wheels have version 12.8 and not 13, because code of 13 needs the driver R580. Code of 12.8 for GPUs
up to Hopper should load with every driver since R525.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import re
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = Path(__file__).resolve().with_name("block_copy.cu")
FATBIN = SOURCE.with_suffix(".fatbin")
HASHES = SOURCE.with_suffix(".fatbin.sha256")

#: The wheels that the build needs, with their pinned versions. Other versions produce other bytes.
NVRTC = ("nvidia-cuda-nvrtc-cu12", "12.8.93", "libnvrtc.so.12")
NVFATBIN = ("nvidia-nvfatbin-cu12", "12.8.90", "libnvfatbin.so.12")
INSTALL = f"pip install --no-deps {NVRTC[0]}=={NVRTC[1]} {NVFATBIN[0]}=={NVFATBIN[1]}"
TOOL_VERSION = (12, 8)

#: Compute capabilities, such as 75 for 7.5, for which the fat binary has machine code (a cubin). A
#: cubin also runs on GPUs of the same major and a later minor version. 86 and 89 are listed because
#: their own code is faster.
CUBINS = ("75", "80", "86", "89", "90", "100", "120")
#: Compute capability of the PTX, which the driver compiles if no cubin fits.
PTX = "75"
KERNELS = frozenset({"kvpool_copy_1", "kvpool_copy_4", "kvpool_copy_8", "kvpool_copy_16"})

_OPTIONS = ("--std=c++17", "--ptxas-options=-v")
#: Options of nvFatbin. The code is not compressed, because a wheel compresses its contents anyway. The
#: driver would decompress it at every load, and old drivers cannot.
_FATBIN_OPTIONS = ("-64", "-compress=false")
_KERNEL = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


class BuildError(Exception):
    """The fat binary could not be built, or the committed one differs. The message states what to do."""


class ToolMissingError(BuildError):
    """A wheel is missing or damaged, or has another version."""


class CompileError(BuildError):
    """NVRTC or nvFatbin reported an error. The message contains its log."""


class SpillError(BuildError):
    """A kernel needs more registers than it may use, so the compiler keeps values in local memory."""


class StaleError(BuildError):
    """The committed fat binary was not built from the source beside it."""


class KernelUsage(NamedTuple):
    """The resources of one kernel, as ptxas reports them."""

    name: str
    registers: int
    stack_bytes: int
    spilled_bytes: int


class Built(NamedTuple):
    """A fat binary, and the resources that each of its kernels uses."""

    data: bytes
    sizes: dict[str, int]
    usage: dict[str, list[KernelUsage]]
    seconds: float


def load_library(wheel: str, version: str, name: str) -> ctypes.CDLL:
    """Load a library from an installed wheel, by the wheel's own list of files.

    A search through site-packages, or by the system's loader, could find a library of the CUDA version
    that torch has installed.
    """
    try:
        distribution = metadata.distribution(wheel)
    except metadata.PackageNotFoundError:
        raise ToolMissingError(f"{wheel} is not installed here: {INSTALL}") from None
    if distribution.version != version:
        raise ToolMissingError(f"{wheel} is {distribution.version}, not {version}: {INSTALL}")
    for file in distribution.files or ():
        if file.name == name:
            try:
                return ctypes.CDLL(str(distribution.locate_file(file)))
            except OSError as error:
                raise ToolMissingError(
                    f"{wheel} {version} does not load ({error}); install it again: {INSTALL}"
                ) from error
    raise ToolMissingError(f"{wheel} {version} has no {name}; install it again: {INSTALL}")


class Compiler:
    """NVIDIA's run-time compiler, NVRTC."""

    def __init__(self) -> None:
        self._library = load_library(*NVRTC)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check("nvrtcVersion", self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        if (major.value, minor.value) != TOOL_VERSION:
            raise ToolMissingError(
                f"the NVRTC loaded says it is {major.value}.{minor.value}; install it again: {INSTALL}"
            )

    def compile(self, source: bytes, architecture: str) -> tuple[bytes, str]:
        """Compile for an architecture: ``sm_90`` gives machine code (a cubin), ``compute_75`` gives PTX.

        Return the code, and the log of the compiler.
        """
        program = ctypes.c_void_p()
        name = SOURCE.name.encode()  # without the folder, which would become part of the code
        self._check(
            "nvrtcCreateProgram",
            self._library.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None),
        )
        try:
            options = [option.encode() for option in (f"--gpu-architecture={architecture}", *_OPTIONS)]
            array = (ctypes.c_char_p * len(options))(*options)
            result = self._library.nvrtcCompileProgram(program, len(options), array)
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            self._check(f"nvrtcCompileProgram for {architecture}", result, log)
            return self._read(program, "CUBIN" if architecture.startswith("sm_") else "PTX"), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        get_size = getattr(self._library, f"nvrtcGet{what}Size")
        self._check(f"nvrtcGet{what}Size", get_size(program, ctypes.byref(size)))
        data = ctypes.create_string_buffer(size.value)
        self._check(f"nvrtcGet{what}", getattr(self._library, f"nvrtcGet{what}")(program, data))
        return data.raw

    def _check(self, call: str, result: int, log: str = "") -> None:
        if result != 0:
            reason = self._library.nvrtcGetErrorString(result).decode()
            raise CompileError(f"{call}: {reason} ({result})" + (f"\n{log}" if log else ""))


class Bundle:
    """A fat binary under construction, made by nvFatbin."""

    def __init__(self) -> None:
        self._library = load_library(*NVFATBIN)
        self._library.nvFatbinGetErrorString.restype = ctypes.c_char_p
        self._handle = ctypes.c_void_p()
        options = (ctypes.c_char_p * len(_FATBIN_OPTIONS))(*(option.encode() for option in _FATBIN_OPTIONS))
        count = ctypes.c_size_t(len(_FATBIN_OPTIONS))
        self._check(
            "nvFatbinCreate", self._library.nvFatbinCreate(ctypes.byref(self._handle), options, count)
        )

    def add_cubin(self, data: bytes, version: str) -> None:
        """Add machine code for GPUs of this version, for example ``90``."""
        arguments = (data, ctypes.c_size_t(len(data)), version.encode(), SOURCE.stem.encode())
        self._check("nvFatbinAddCubin", self._library.nvFatbinAddCubin(self._handle, *arguments))

    def add_ptx(self, data: bytes, version: str) -> None:
        """Add PTX for GPUs of this version and later ones."""
        arguments = (data, ctypes.c_size_t(len(data)), version.encode(), SOURCE.stem.encode(), None)
        self._check("nvFatbinAddPTX", self._library.nvFatbinAddPTX(self._handle, *arguments))

    def finish(self) -> bytes:
        """Return the bytes of the finished fat binary."""
        size = ctypes.c_size_t()
        self._check("nvFatbinSize", self._library.nvFatbinSize(self._handle, ctypes.byref(size)))
        data = ctypes.create_string_buffer(size.value)
        self._check("nvFatbinGet", self._library.nvFatbinGet(self._handle, data))
        self._library.nvFatbinDestroy(ctypes.byref(self._handle))
        return data.raw

    def _check(self, call: str, result: int) -> None:
        if result != 0:
            raise CompileError(f"{call}: {self._library.nvFatbinGetErrorString(result).decode()} ({result})")


def parse_usage(log: str) -> list[KernelUsage]:
    """Read the resource usage of each kernel from the log of ptxas, NVIDIA's assembler (``-v``)."""
    found = []
    for section in _KERNEL.split(log)[1:]:
        if section in KERNELS:
            name = section
        elif (spills := _SPILLS.search(section)) and (registers := _REGISTERS.search(section)):
            stack, stores, loads = (int(count) for count in spills.groups())
            found.append(KernelUsage(name, int(registers[1]), stack, stores + loads))
    return found


def check_usage(architecture: str, usage: Sequence[KernelUsage], log: str) -> None:
    """Raise an error if a kernel is missing or uses local memory."""
    if {one.name for one in usage} != KERNELS or len(usage) != len(KERNELS):
        raise CompileError(
            f"{architecture}: the log does not list the kernels {', '.join(sorted(KERNELS))}:\n{log}"
        )
    for one in usage:
        if one.stack_bytes or one.spilled_bytes:
            spilled = f"{one.stack_bytes} bytes of stack, {one.spilled_bytes} bytes spilled"
            raise SpillError(
                f"{architecture}: {one.name} uses local memory ({spilled}): "
                "unroll less, or allow more registers"
            )


def build(source: bytes) -> Built:
    """Compile for every architecture and put the results into one fat binary."""
    started = time.perf_counter()
    compiler, bundle = Compiler(), Bundle()
    sizes: dict[str, int] = {}
    usage: dict[str, list[KernelUsage]] = {}
    for version in CUBINS:
        architecture = f"sm_{version}"
        cubin, log = compiler.compile(source, architecture)
        usage[architecture] = parse_usage(log)
        check_usage(architecture, usage[architecture], log)
        bundle.add_cubin(cubin, version)
        sizes[architecture] = len(cubin)
    ptx, _ = compiler.compile(source, f"compute_{PTX}")
    bundle.add_ptx(ptx, PTX)
    sizes[f"compute_{PTX}"] = len(ptx)
    return Built(bundle.finish(), sizes, usage, time.perf_counter() - started)


def hash_lines(source: bytes, fatbin: bytes) -> str:
    """Return the output of ``sha256sum block_copy.fatbin block_copy.cu``."""
    return "".join(
        f"{hashlib.sha256(data).hexdigest()}  {path.name}\n"
        for path, data in ((FATBIN, fatbin), (SOURCE, source))
    )


def check_hashes(source: bytes, fatbin: bytes) -> None:
    """Raise an error unless the hashes of the source and the fat binary are those of the last build."""
    again = (
        f"Run `python cuda/{Path(__file__).name}` and commit {SOURCE.name}, {FATBIN.name} and "
        f"{HASHES.name} together."
    )
    try:
        written = HASHES.read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise StaleError(f"{HASHES.name} cannot be read ({error}). {again}") from error
    of_fatbin, of_source = hash_lines(source, fatbin).splitlines()
    if of_source not in written:
        raise StaleError(f"{SOURCE.name} changed since {FATBIN.name} was built. {again}")
    if of_fatbin not in written:
        raise StaleError(
            f"{FATBIN.name} is not the file that was built: edited, cut short, or committed alone. {again}"
        )


def check_build(built: Built, fatbin: bytes) -> None:
    """Raise an error unless a new build gives the committed bytes."""
    if built.data != fatbin:
        raise StaleError(
            f"{FATBIN.name} is not what {SOURCE.name} compiles to: {len(fatbin)} bytes with sha256 "
            f"{hashlib.sha256(fatbin).hexdigest()}, a new build gives {len(built.data)} bytes with "
            f"{hashlib.sha256(built.data).hexdigest()}. Run `python cuda/{Path(__file__).name}` and "
            "commit the result."
        )


def report(built: Built) -> None:
    """Print the contents of the fat binary."""
    print(f"{'architecture':<14}{'bytes':>8}  registers of each kernel")
    for architecture, size in built.sizes.items():
        registers = ", ".join(f"{one.name} {one.registers}" for one in built.usage.get(architecture, ()))
        print(f"{architecture:<14}{size:>8}  {registers}")
    print(f"{'fat binary':<14}{len(built.data):>8}  built in {built.seconds:.1f} s; nothing is spilled")


def read_committed() -> bytes:
    """Return the bytes of the committed fat binary."""
    try:
        return FATBIN.read_bytes()
    except FileNotFoundError:
        raise StaleError(f"there is no {FATBIN}. Run `python cuda/{Path(__file__).name}`.") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the fat binary, or check the committed fat binary."""
    lines = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(
        description=lines[0].replace("`", ""),
        epilog="\n".join(lines[2:]).replace("``", "").replace("::", ":"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    checks = parser.add_mutually_exclusive_group()
    checks.add_argument(
        "--check",
        action="store_true",
        help="build in memory, write nothing, fail unless the committed files are the result",
    )
    checks.add_argument(
        "--check-hashes",
        action="store_true",
        help="as --check, but without building: compare hashes only, no wheels needed",
    )
    options = parser.parse_args(arguments)
    try:
        source = SOURCE.read_bytes()
        if options.check_hashes:
            check_hashes(source, read_committed())
            print(f"{FATBIN.name} and {SOURCE.name} are those of the last build")
        elif options.check:
            fatbin = read_committed()
            check_hashes(source, fatbin)
            built = build(source)
            check_build(built, fatbin)
            report(built)
            print(f"{FATBIN.name} is what {SOURCE.name} compiles to")
        else:
            built = build(source)
            FATBIN.write_bytes(built.data)
            HASHES.write_text(hash_lines(source, built.data), encoding="ascii")
            report(built)
            print(HASHES.read_text(encoding="ascii"), end="")
    except (BuildError, OSError) as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
