"""tools/release.py: what has to hold of a wheel is looked for, in made-up ones, and nothing is left out silently."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import types
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from kvpool import _core
from tools import release
from tools.cargo_tools import CheckFailedError
from tools.releasing import checks, notices, running, targets, tree, wheel
from tools.releasing.targets import ALL, TARGETS, MissingError

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
TARGET = TARGETS["x86_64-gnu"]
NAME = "kvpool-1.2.3-cp311-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
INFO = "kvpool-1.2.3.dist-info"
CRATE = notices.Linked("ring", "0.17.14", "Apache-2.0 AND ISC", Path("/nowhere"))


def content(**changed: bytes | None) -> dict[str, bytes]:
    """The files of a wheel that is in order, but for what is changed: by the last part of a name."""
    bill = {
        "metadata": {"timestamp": "now"},
        "serialNumber": "urn:uuid:1",
        "components": [{"name": "ring", "version": "0.17.14", "bom-ref": "path+file:///build/here/rust/kvpool#1"}],
    }
    metadata = "Metadata-Version: 2.4\nName: kvpool\nRequires-Dist: typer ; extra == 'cli'\nProvides-Extra: cli\n"
    licences = ["LICENSE", notices.NOTICES, notices.STD_NOTICES]
    files = {
        "kvpool/__init__.py": b"",
        "kvpool/_core.abi3.so": b"\x7fELF kvpool/src/lib.rs /rustc/0/library/core/src/lib.rs",
        f"{INFO}/METADATA": (metadata + "".join(f"License-File: {name}\n" for name in licences)).encode(),
        f"{INFO}/WHEEL": b"Tag: cp311-abi3-manylinux2014_x86_64\nTag: cp311-abi3-manylinux_2_17_x86_64\n",
        f"{INFO}/entry_points.txt": b"[console_scripts]\nkvpool=kvpool.__main__:main\n"
        b"[vllm.general_plugins]\nkvpool=kvpool.integrations.vllm:register\n",
        f"{INFO}/sboms/kvpool-py.cyclonedx.json": json.dumps(bill).encode(),
        **{f"{INFO}/licenses/{name}": b"- ring 0.17.14: ISC\n" for name in licences},
    }
    for name, data in changed.items():
        (found,) = [path for path in files if re.search(name, path)]
        if data is None:
            del files[found]
        else:
            files[found] = data
    return files


def pack(path: Path, files: dict[str, bytes]) -> Path:
    raw = path.with_name("raw.zip")
    with zipfile.ZipFile(raw, "w") as packed:
        for name, data in {**files, f"{INFO}/RECORD": b""}.items():
            packed.writestr(zipfile.ZipInfo(name), data)
    wheel.rewrite(raw, path, lambda _, data: data)
    return path


#: Every check that reads a wheel alone.
LOOKS: dict[str, Callable[[Path], str]] = {
    "size": checks.check_size,
    "name": lambda path: checks.check_name(path, TARGET, "1.2.3"),
    "paths": lambda path: checks.check_paths(path, [Path("/build/sources")]),
    "record": checks.check_record,
    "metadata": checks.check_metadata,
    "notices": lambda path: checks.check_notices(path, [CRATE]),
}


def test_a_wheel_that_is_in_order_passes(tmp_path: Path) -> None:
    path = pack(tmp_path / NAME, content())
    found = {name: look(path) for name, look in LOOKS.items()}
    assert found["record"] == "10 files as RECORD lists them"
    assert found["metadata"] == "needs no package; extras cli"
    assert found["notices"] == "notices of 1 crates, bill of materials with 1"


@pytest.mark.parametrize(
    ("look", "changed", "said"),
    [
        ("paths", {"_core": b"\x7fELF /build/sources/rust/kvpool/src/lib.rs"}, "names b'/build/sources/rust"),
        ("paths", {"sboms": b'{"a": "file:///build/sources/x"}'}, "json names b'/build/sources/x"),
        (
            "paths",
            {"_core": b"\x7fELF panicked at /home/me/.cargo/registry/x.rs\0"},
            r"names b'/home/me/\.cargo/registry/x\.rs'",
        ),
        ("name", {"_core": None}, r"expected one file kvpool/_core\\\.abi3\\\.so, found none"),
        ("name", {"WHEEL": b"Tag: cp311-abi3-linux_x86_64\n"}, "WHEEL says linux_x86_64"),
        ("metadata", {"METADATA": b"Requires-Dist: rich>=14\n"}, "requires rich>=14: a scheduler needs no package"),
        ("metadata", {"METADATA": b"License-File: LICENSE\n"}, "has no THIRD-PARTY-NOTICES.md"),
        ("metadata", {"RUST-STANDARD": None}, "has no RUST-STANDARD-LIBRARY.html"),
        (
            "metadata",
            {"entry_points": b"kvpool = kvpool.__main__:main"},
            "no entry point kvpool=kvpool.integrations.vllm",
        ),
        ("notices", {"THIRD": b"- ring 0.1.0: ISC"}, "lacks ring 0.17.14"),
        ("notices", {"sboms": b'{"components": []}'}, "the bill of materials lacks ring 0.17.14"),
        ("notices", {"sboms": None}, "found none"),
    ],
)
def test_what_is_wrong_with_a_wheel_is_found(
    tmp_path: Path, look: str, changed: dict[str, bytes | None], said: str
) -> None:
    path = pack(tmp_path / NAME, content(**changed))
    with pytest.raises(CheckFailedError, match=said):
        LOOKS[look](path)


def test_a_wheel_of_another_platform_or_version_is_none_of_this_one(tmp_path: Path) -> None:
    for name in (NAME.replace("1.2.3", "1.2.4"), NAME.replace("x86_64", "aarch64"), NAME.replace("abi3", "cp311")):
        with pytest.raises(CheckFailedError, match="is not of kvpool"):
            checks.check_name(pack(tmp_path / name, content()), TARGET, "1.2.3")


def test_a_wheel_that_is_too_large_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / NAME, content())
    monkeypatch.setattr(checks, "LARGEST", path.stat().st_size)
    with pytest.raises(CheckFailedError, match="the limit is"):
        checks.check_size(path)


@pytest.mark.parametrize("change", ["changed", "added", "gone"])
def test_a_record_that_does_not_fit_is_found(tmp_path: Path, change: str) -> None:
    with zipfile.ZipFile(pack(tmp_path / NAME, content())) as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    name = "kvpool/__init__.py"
    if change == "gone":
        del files[name]
    else:
        files["kvpool/more.py" if change == "added" else name] = b"import os\n"
    path = tmp_path / f"x{NAME}"
    with zipfile.ZipFile(path, "w") as packed:
        for one, data in files.items():
            packed.writestr(one, data)
    with pytest.raises(CheckFailedError, match="kvpool/more" if change == "added" else name):
        checks.check_record(path)


def test_symbols_that_a_c_library_has_not_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this build's extension, and a C library that has what it asks for, or has not."""
    extension = Path(_core.__file__ or "").read_bytes()
    path = pack(tmp_path / NAME, content(_core=extension))
    asked, has = checks.symbols(extension)
    assert "malloc" in asked
    assert "PyInit__core" in has
    with pytest.raises(CheckFailedError, match=r"asks musl for .*malloc"):
        checks.check_musl(path, Path(_core.__file__ or ""))
    assert checks.check_copies(path)
    monkeypatch.setattr(checks, "symbols", lambda _: (asked - {"memcpy"}, has | {"memcpy"}))
    with pytest.raises(CheckFailedError, match="has a memcpy of its own"):
        checks.check_copies(path)


@pytest.mark.parametrize(
    ("told", "libc", "said"),
    [
        ({"overall_tag": "manylinux_2_17_x86_64", "external_libs": {}}, None, ""),
        ({"overall_tag": "manylinux_2_34_x86_64", "external_libs": {}}, None, "auditwheel says manylinux_2_34"),
        ({"overall_tag": "linux_x86_64", "external_libs": {"libc.so": "x"}}, None, "auditwheel says linux_x86_64"),
        # musl's own name for itself is no library to bring along, any other is.
        ({"overall_tag": "linux_x86_64", "external_libs": {"libc.so": "x"}}, Path("/musl/libc.so"), ""),
        (
            {"overall_tag": "linux_x86_64", "external_libs": {"libz.so": "x"}},
            Path("/musl/libc.so"),
            "says linux_x86_64",
        ),
    ],
)
def test_a_platform_that_auditwheel_does_not_find_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, object], libc: Path | None, said: str
) -> None:
    calls: list[tuple[object, ...]] = []

    def call(*command: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        text = "WARNING: no such\n" + json.dumps(told | {"sym_tag": "manylinux_2_17_x86_64"})
        return subprocess.CompletedProcess([], 0, text)

    monkeypatch.setattr(checks, "call", call)
    if said:
        with pytest.raises(CheckFailedError, match=said):
            checks.check_platform(Path(NAME), libc)
    else:
        assert checks.check_platform(Path(NAME), libc) == "auditwheel: manylinux_2_17_x86_64"
    assert ("--ldpaths=/musl" in calls[0]) == (libc is not None)


def test_a_bill_of_materials_does_not_tell_where_or_when_it_was_made() -> None:
    made = []
    for folder in ("/build/here", "/another/place"):
        (name, data) = next((name, data) for name, data in content().items() if "sboms" in name)
        here = data.replace(b"/build/here", folder.encode()).replace(b"now", folder.encode())
        made.append(wheel.scrubbed(name, here, Path(folder), 1_700_000_000))
    assert made[0] == made[1]
    bill = json.loads(made[0])
    assert bill["components"][0]["bom-ref"] == "path+file:///kvpool/rust/kvpool#1"
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert bill["serialNumber"].startswith("urn:uuid:")
    # All else is left as it is, also what looks alike.
    assert wheel.scrubbed("kvpool/sboms/x.json", b"/build/here", Path("/build/here"), 0) == b"/build/here"


def test_a_wheel_that_zopfli_has_deflated_reads_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bytes] = []

    def compress(data: bytes, numiterations: int) -> bytes:
        given.append(data)
        return zlib.compress(data, numiterations)

    stand_in = types.ModuleType("zopfli.zlib")
    vars(stand_in)["compress"] = compress
    package = types.ModuleType("zopfli")
    vars(package)["zlib"] = stand_in
    monkeypatch.setitem(sys.modules, "zopfli", package)
    monkeypatch.setitem(sys.modules, "zopfli.zlib", stand_in)
    with wheel.compressing_well():
        path = pack(tmp_path / NAME, content())
    assert b"\x7fELF kvpool" in b"".join(given)
    with zipfile.ZipFile(path) as packed:
        assert packed.testzip() is None
        assert packed.read("kvpool/_core.abi3.so") == content()["kvpool/_core.abi3.so"]
    checks.check_record(path)
    # Whatever is written afterwards is written as ever.
    given.clear()
    pack(tmp_path / f"x{NAME}", content())
    assert given == []


def test_paths_of_crates_and_of_the_sources_are_told_to_rustc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "a home"
    (home / "registry" / "src" / "index-1").mkdir(parents=True)
    monkeypatch.setenv("CARGO_HOME", str(home))
    sources = tmp_path / "sources"
    flags = wheel.remapped(sources).split("\x1f")
    # The last that fits counts: a crate is below the home.
    assert flags == [
        f"--remap-path-prefix={home}=cargo",
        f"--remap-path-prefix={sources}=kvpool",
        f"--remap-path-prefix={home}/registry/src/index-1=crates.io",
    ]
    assert {sources, home} <= set(wheel.private_paths(sources))


def test_sources_are_those_of_the_commit_and_what_is_equal_is_left_alone(tmp_path: Path) -> None:
    fresh, there = tmp_path / "fresh", tmp_path / "there"
    for folder in (fresh, there):
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "same").write_text("same")
    (fresh / "a" / "other").write_text("new")
    (there / "a" / "other").write_text("old")
    (there / "stale").write_text("x")
    (fresh / "link").symlink_to("a/same")
    before = (there / "a" / "same").stat().st_mtime_ns
    tree.settle(fresh, there)
    found = {str(path.relative_to(there)): path.read_text() for path in there.rglob("*") if path.is_file()}
    assert found == {"a/same": "same", "a/other": "new", "link": "same"}
    assert not (there / "link").is_symlink()
    assert (there / "a" / "same").stat().st_mtime_ns == before


def test_the_licences_of_a_release_are_named_where_the_licence_is(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tree.add_licences(tmp_path, {notices.NOTICES: b"n"})
    assert f'license-files = ["LICENSE", "{notices.NOTICES}", "{notices.STD_NOTICES}"]\n' in project.read_text()
    assert (tmp_path / notices.NOTICES).read_bytes() == b"n"
    with pytest.raises(CheckFailedError, match="has no line"):
        tree.add_licences(tmp_path, {})


def test_every_crate_that_is_linked_brings_a_licence_and_each_text_stands_once(tmp_path: Path) -> None:
    crates = notices.linked([TARGET.triple])
    names = {crate.name for crate in crates}
    assert {"ring", "pyo3", "sha2", "libloading"} <= names
    assert not {name for name in names if name.startswith("kvpool")}
    assert not {"syn", "quote", "cc", "pyo3-macros"} & names, "what only builds is in no wheel"
    page = notices.render(crates, {"the linker's": "LINKER LICENCE\n"}).decode()
    for crate in crates:
        assert f"- {crate.name} {crate.version}: {crate.licence}" in page
    assert page.count("LINKER LICENCE") == 1
    assert page.count("TERMS AND CONDITIONS FOR USE") < len(crates)
    with pytest.raises(CheckFailedError, match=r"bare 1\.0 \(MIT\) brings no text"):
        notices.render([notices.Linked("bare", "1.0", "MIT", tmp_path)], {})


def test_a_tag_has_to_be_that_of_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "changes", list)
    with pytest.raises(SystemExit, match=r"tag v9\.9\.9, but the version in Cargo\.toml is"):
        release.main(["sdist", "--tag", "v9.9.9"])
    with pytest.raises(SystemExit, match="no part windows"):
        release.main(["windows"])


def test_what_is_not_committed_is_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "changes", lambda: [" M Makefile"])
    with pytest.raises(SystemExit, match="not committed:\n M Makefile"):
        release.main(["sdist"])


@pytest.mark.parametrize("required", [False, True])
def test_what_cannot_be_built_or_run_is_said_and_fails_where_all_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], required: bool
) -> None:
    def build(target: targets.Target, *_: object) -> tuple[Path, str]:
        if target.is_musl:
            raise MissingError("no standard library")
        path = pack(tmp_path / f"{target.name}.whl", content())
        return path, "linked"

    def run(target: targets.Target) -> list[str]:
        if target.machine == "aarch64":
            raise MissingError("no emulator")
        return ["ran"]

    monkeypatch.setattr(tree, "changes", list)
    monkeypatch.setattr(release, "WORK", tmp_path / "work")
    monkeypatch.setattr(release.Release, "prepare", lambda _: None)
    monkeypatch.setattr(release.Release, "run", lambda _, __, target: run(target))
    monkeypatch.setattr(wheel, "build_wheel", build)
    monkeypatch.setattr(notices, "linked", lambda *_: [])
    for name in [name for name in vars(checks) if name.startswith("check_")]:
        monkeypatch.setattr(checks, name, lambda *_: "looked")
    wanted = ["x86_64-gnu", "aarch64-gnu", "x86_64-musl"]
    code = release.main([*wanted, "--out", str(tmp_path), *(["--require-all"] if required else [])])
    said = capsys.readouterr()
    assert code == int(required)
    assert "x86_64-musl: NOT BUILT HERE: no standard library" in said.out
    assert "NOT RUN HERE: no emulator" in said.out
    assert "NOT ALL OF IT: aarch64-gnu, x86_64-musl" in said.err
    told = {part["name"]: part for part in json.loads((tmp_path / "report.json").read_text())["parts"]}
    assert (told["x86_64-gnu"]["checked"][-1], told["x86_64-gnu"]["not_run"]) == ("ran", [])
    assert told["x86_64-musl"]["file"] == ""
    page = (tmp_path / "report.md").read_text()
    assert "NOT BUILT HERE: no standard library" in page
    assert len((tmp_path / "SHA256SUMS").read_text().splitlines()) == 2


def test_a_check_that_fails_is_a_failure_and_keeps_no_other_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = pack(tmp_path / NAME, content())

    def fails() -> str:
        raise CheckFailedError("too large")

    def missing() -> str:
        raise MissingError("no emulator")

    monkeypatch.setattr(tree, "changes", list)
    monkeypatch.setattr(release, "WORK", tmp_path / "work")
    monkeypatch.setattr(release.Release, "prepare", lambda _: None)
    monkeypatch.setattr(wheel, "build_sdist", lambda *_: path)
    monkeypatch.setattr(
        release.Release, "looks_at_sdist", lambda *_: [fails, missing, lambda: "looked", lambda: ["a", "b"]]
    )
    assert release.main(["sdist", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    for line in ("  looked", "  a", "  b", "  NOT RUN HERE: no emulator", "  FAILED: too large"):
        assert f"{line}\n" in said
    assert "FAILED: too large" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_without_zig_debian_s_compiler_links_and_without_both_there_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, target: targets.Target
) -> None:
    monkeypatch.setattr(targets, "has_zig", lambda: True)
    assert targets.linking(target)[0] == ["--zig", "--compatibility", target.platform]
    monkeypatch.setattr(targets, "has_zig", lambda: False)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    if target.is_musl:
        with pytest.raises(MissingError, match="no linker for"):
            targets.linking(target)
    else:
        arguments, variables, how = targets.linking(target)
        gcc = f"/usr/bin/{target.machine}-linux-gnu-gcc"
        assert (arguments, set(variables.values())) == ([], {gcc})
        assert "for systems as new as this one" in how
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(MissingError, match="neither the package ziglang nor"):
        targets.linking(target)


def test_a_standard_library_that_cannot_be_had_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingError, match="sparc64-unknown-none"):
        targets.need_std("sparc64-unknown-none")
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(MissingError, match="no rustup to fetch it"):
        targets.need_std("sparc64-unknown-none")


def test_the_workflow_builds_every_part_once() -> None:
    matrix = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]["wheels"]["strategy"]["matrix"]
    built = [(name, one["machine"]) for one in matrix["include"] for name in one["targets"].split()]
    assert sorted(name for name, _ in built) == sorted(ALL)
    # Each where it can be run.
    assert all(name.startswith(machine) for name, machine in built if name != targets.SDIST)


def test_what_was_installed_is_run_by_the_standard_library_alone() -> None:
    names = re.findall(r"^(?:import|from) (\w+)", running.SMOKE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(names) <= set(sys.stdlib_module_names)


def test_the_smoke_test_runs_here_with_the_command_line_and_fails_on_another_readme(tmp_path: Path) -> None:
    def smoke(readme: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(running.SMOKE), str(readme), "--cli"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = smoke(ROOT / "README.md")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["refused"] > 100
    other = tmp_path / "README.md"
    other.write_text("```python\nprint(1)\n```\n")
    done = smoke(other)
    assert done.returncode == 1
    assert "the README's first snippet prints ['1']" in done.stderr


def test_pythons_that_are_here_are_found_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"python3.11": "3.11", "python3.14": "3.14t", "python3.13": "3.13"}
    for name, version in said.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {version} {program}\n")
        program.chmod(0o755)
    broken = tmp_path / "python3.12"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    # One without the GIL takes no wheel of the limited API, whatever its program is called.
    names = [Path(program).name for program in running.pythons(TARGET, [str(tmp_path / "python3.13")])]
    assert names == ["python3.13", "python3.11"]
    assert running.pythons(TARGETS["x86_64-gnu-cp314t"], []) == []
    monkeypatch.setattr(running, "pythons", lambda *_: [])
    with pytest.raises(MissingError, match=r"no python3\.11 is here"):
        running.run_native(tmp_path, TARGET, [], tmp_path)


def test_an_archive_reads_as_its_files(tmp_path: Path) -> None:
    path = pack(tmp_path / NAME, content())
    assert checks.read(path)["kvpool/__init__.py"] == b""
    assert io.BytesIO(checks.read(path)["kvpool/_core.abi3.so"]).read(4) == b"\x7fELF"
