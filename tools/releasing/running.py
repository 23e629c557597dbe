"""Installs what is to be shipped into empty environments, and runs it there: ``smoke.py`` says what is run.

- A wheel for this machine: each Python here that it is for, without Rust, without a variable of this environment. One
  for free-threaded Python, where there is none: a Python that ``free_threaded.py`` builds.
- One for another processor: Debian's Python for it, under qemu-user, both fetched as packages and unpacked into a
  folder; nothing is installed on this machine.
- One for musl: a container of python:alpine, where there is a container engine; else a Python that ``musl.py`` builds.
- The source distribution: pip builds it in an empty environment with cargo alone, then as above.

What cannot be run here raises MissingError with the reason.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.cargo_tools import ROOT, CheckFailedError, call, cargo_home, require
from tools.releasing import free_threaded, musl
from tools.releasing.debian import fetch
from tools.releasing.targets import MissingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.releasing.targets import Target

SMOKE: Final = Path(__file__).with_name("smoke.py")
README: Final = ROOT / "README.md"
#: What a package index takes to be reached, and nothing else: pip's own settings.
_INDEX: Final = (
    "PIP_CERT",
    "PIP_CONFIG_FILE",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "SSL_CERT_FILE",
)
#: Pythons that a wheel for 3.11 and later is tried with.
_VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
#: Says a Python's version as its program is named, with a t if it has no GIL; and where it is, behind any shim.
_WHICH: Final = (
    "import sys, sysconfig; free = bool(sysconfig.get_config_var('Py_GIL_DISABLED')); "
    "print('%d.%d' % sys.version_info[:2] + 't' * free, sys.executable)"
)
_CONTAINER: Final = "python:3.13-alpine"
_DEBIAN: Final = (
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libbz2-1.0",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libssl3",
    "libuuid1",
    "zlib1g",
)


def run(*command: str | Path, cwd: Path, environment: Mapping[str, str]) -> str:
    """What a command prints that has these variables and no other."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=dict(environment), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        name = Path(command[0]).name
        raise CheckFailedError(
            f"{name} {command[1]}, exit status {done.returncode}:\n{done.stdout}{done.stderr}".rstrip()
        )
    return done.stdout


def nothing(folder: Path) -> dict[str, str]:
    """An environment without a program, Rust's least of all, and a home with nothing in it."""
    return {"PATH": str(folder / "no-programs"), "HOME": str(folder), "LANG": "C.UTF-8"}


def index_settings() -> dict[str, str]:
    """Variables that pip needs to reach its index from here."""
    return {name: os.environ[name] for name in _INDEX if name in os.environ}


def pythons(target: Target, more: list[str]) -> list[str]:
    """The interpreters here that a wheel is for."""
    names = [f"python{version}" for version in _VERSIONS] if target.is_abi3 else [target.python]
    found: dict[str, str] = {}
    for name in [*more, *names]:
        program = shutil.which(name)
        said = subprocess.run([program, "-c", _WHICH], capture_output=True, text=True, check=False) if program else None
        version, _, program = said.stdout.strip().partition(" ") if said and said.returncode == 0 else ("", "", "")
        if f"python{version}" in names:
            found.setdefault(version, program)
    return list(found.values())


def run_native(wheel: Path, target: Target, more: list[str], folder: Path) -> list[str]:
    """Each Python that is here; where none is free-threaded, one that is built for it."""
    found = pythons(target, more)
    if not found and not target.is_abi3:
        found = [str(free_threaded.python(folder))]
    if not found:
        raise MissingError(f"no {target.python} is here to run it")
    return [run_installed(wheel, python) for python in found]


def run_installed(wheel: Path, python: str | Path) -> str:
    """An empty folder, an empty environment: installed without an index, run, then with what the command line needs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare = nothing(folder)
        begun = time.monotonic()
        run(python, "-m", "venv", folder / "env", cwd=folder, environment=bare)
        shutil.copy(README, folder)
        shutil.copy(SMOKE, folder)
        program, pip = folder / "env/bin/python", ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(program, *pip, "--no-index", wheel, cwd=folder, environment=bare)
        told = json.loads(run(program, "smoke.py", "README.md", cwd=folder, environment=bare))
        listed = json.loads(run(program, "-m", "pip", "list", "--format", "json", cwd=folder, environment=bare))
        if (names := {one["name"] for one in listed}) - {"pip", "setuptools", "kvpool"}:
            raise CheckFailedError(f"pip install of {wheel.name} brought {', '.join(sorted(names))}")
        run(program, *pip, f"kvpool[cli] @ file://{wheel}", cwd=folder, environment=bare | index_settings())
        run(program, "smoke.py", "README.md", "--cli", cwd=folder, environment=bare)
        # The script that pip made, as a user calls it.
        said = run(folder / "env/bin/kvpool", "--version", cwd=folder, environment=bare)
        seconds = time.monotonic() - begun
    free = "" if told["gil"] else ", without the GIL"
    return f"Python {told['python']}{free} without Rust: installed, ran, {said.strip()}; {seconds:.0f} s"


def build_and_run_sdist(sdist: Path, objects: Path) -> str:
    """pip builds a wheel where cargo is and nothing else of this environment; quickly, not as it is shipped."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rust = {key: os.environ[key] for key in ("CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN") if key in os.environ}
        rust.setdefault("CARGO_HOME", str(cargo_home()))
        rust.setdefault("RUSTUP_HOME", str(Path.home() / ".rustup"))
        cargo = Path(shutil.which("cargo") or "cargo").parent
        environment = {
            "PATH": f"{cargo}:/usr/bin:/bin",
            "HOME": name,
            "MATURIN_PEP517_ARGS": "--profile dev",
            "CARGO_PROFILE_DEV_OPT_LEVEL": "0",
            "CARGO_TARGET_DIR": str(objects),
            **rust,
            **index_settings(),
        }
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps")
        run(*pip, "--wheel-dir", folder / "built", sdist, cwd=folder, environment=environment)
        (wheel,) = (folder / "built").glob("*.whl")
        # That of this virtual environment, from outside of it.
        python = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
        return f"builds in an empty environment; {run_installed(wheel, python)}"


def run_musl(wheel: Path, target: Target, folder: Path) -> str:
    """In a container, where there is an engine for this machine's; else in a Python that is built for it."""
    engine = next((name for name in ("docker", "podman") if call_quietly(name, "info")), None)
    if engine is None or target.machine != platform.machine():
        return run_over_musl(wheel, target, folder)
    return run_in_container(wheel, engine)


def run_in_container(wheel: Path, engine: str) -> str:
    """A container with a Python over musl."""
    mounts = [word for path in (wheel, README, SMOKE) for word in ("--volume", f"{path}:/kvpool/{path.name}:ro")]
    script = (
        "set -e; cd /tmp; python -m pip install --quiet --no-index /kvpool/*.whl; "
        f"python /kvpool/{SMOKE.name} /kvpool/{README.name}; python -m pip install --quiet 'typer>=0.20' 'rich>=14'; "
        f"python /kvpool/{SMOKE.name} /kvpool/{README.name} --cli"
    )
    said = require(
        call(engine, "run", "--rm", *mounts, _CONTAINER, "sh", "-c", script), f"{wheel.name} in {_CONTAINER}"
    )
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    return f"Python {told['python']} over musl, in a container"


def call_quietly(*command: str) -> bool:
    """Whether a program is there and succeeds."""
    return shutil.which(command[0]) is not None and call(*command).returncode == 0


def run_emulated(wheel: Path, target: Target, folder: Path) -> str:
    """Debian's Python of another machine under qemu-user."""
    qemu, root = emulator(target.machine, folder)
    platforms = [f"manylinux_{glibc}_{target.machine}" for glibc in ("2_17", "2_28")]
    told, seconds = run_unpacked(wheel, (qemu, "-L", root, root / "usr/bin/python3.11"), platforms)
    return f"Python {told} on {target.machine} under qemu-user; {seconds:.0f} s"


def run_over_musl(wheel: Path, target: Target, folder: Path) -> str:
    """A Python that is built for it; another machine's under qemu-user."""
    program, loader = musl.python(target.machine, folder), musl.loader(target.machine, folder)
    if target.machine == platform.machine():
        command: tuple[str | Path, ...] = (loader, program)
        under = ""
    else:
        command = (emulator(target.machine, folder)[0], "-L", loader.parents[1], program)
        under = " under qemu-user"
    platforms = [f"musllinux_{version}_{target.machine}" for version in ("1_1", "1_2")]
    told, seconds = run_unpacked(wheel, command, platforms, {"PYTHONHOME": str(program.parents[1])})
    return f"Python {told} on {target.machine} over musl{under}; {seconds:.0f} s"


def run_unpacked(
    wheel: Path, python: Sequence[str | Path], platforms: Sequence[str], variables: Mapping[str, str] | None = None
) -> tuple[str, float]:
    """A wheel for a Python without pip: unpacked, as pip would. Gives that Python's version, and seconds."""
    with tempfile.TemporaryDirectory() as name:
        site = Path(name, "site")
        with zipfile.ZipFile(wheel) as files:
            files.extractall(site)
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        # What the command line needs, for that machine and its Python.
        extra = Path(name, "extra")
        other = ["--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp"]
        other += [word for one in platforms for word in ("--platform", one)]
        require(
            call(*pip, *other, "--target", extra, "typer>=0.20", "rich>=14"),
            "pip install of what the command line needs",
        )
        bare = nothing(Path(name)) | dict(variables or {})
        begun = time.monotonic()
        run(*python, SMOKE, README, cwd=Path(name), environment=bare | {"PYTHONPATH": str(site)})
        paths = {"PYTHONPATH": f"{site}:{extra}"}
        told = json.loads(run(*python, SMOKE, README, "--cli", cwd=Path(name), environment=bare | paths))
        seconds = time.monotonic() - begun
    if not platforms[0].endswith(told["machine"]):
        raise CheckFailedError(f"{wheel.name} ran on {told['machine']}")
    return told["python"], seconds


def emulator(machine: str, folder: Path) -> tuple[Path, Path]:
    """qemu for a machine, and the root of a Debian with a Python for it: fetched and unpacked into ``folder``, once."""
    root, tools = folder / machine, folder / "tools"
    python = root / "usr/bin/python3.11"
    program = f"qemu-{machine}-static"
    qemu = Path(shutil.which(program) or tools / "usr/bin" / program)
    if not python.exists():
        fetch(_DEBIAN, machine, root)
    if not qemu.exists():
        fetch(["qemu-user-static"], platform.machine(), tools)
    return qemu, root
