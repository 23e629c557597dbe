"""Tests ``kvpool store``: what its commands print and change, and their exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvpool.cli import main
from kvpool.store import Arena, Disk, Namespace, Store, StoreFolder
from tests.test_store import FIELDS, PATIENT, SLOT, carried, disk, fill, namespace, opened

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Makes a folder with three objects of one namespace and two of another."""
    store, arena = opened(tmp_path)
    with store:
        fill(store, arena, range(3))
    other = Namespace(**FIELDS | {"model": "other\x1b[31m"})
    with Store(disk(tmp_path), arena, other, **PATIENT) as store:
        fill(store, arena, range(2))
    return tmp_path


def damage(folder: Path, nth: int) -> int:
    """Changes a byte in the payload of an object. Returns the number of the object's place."""
    opened = StoreFolder(folder)
    place = opened.objects(0, opened.places)[nth][0]
    with next(folder.glob("*.slab")).open("r+b") as slab:
        slab.seek(place * opened.object_bytes + 4096 + 100)
        byte = slab.read(1)[0]
        slab.seek(-1, 1)
        slab.write(bytes([byte ^ 1]))
    return int(place)


def test_show_lists_the_namespaces_of_the_objects(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "show", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "5 of 8 places taken" in out
    texts = StoreFolder(folder).namespaces()
    mine, other = (
        carried(texts, of) for of in (namespace(), Namespace(**FIELDS | {"model": "other\x1b[31m"}))
    )
    assert f"namespace {mine[:12]}: 3 objects, 24 KiB of KV\n  llama, weights rev-1, bf16" in out
    assert "\x1b" not in out, "a name is not obeyed"
    assert main(["store", "show", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["places"], facts["objects"], facts["damaged"]) == (8, 5, 0)
    assert {one["digest"]: one["objects"] for one in facts["namespaces"]} == {mine: 3, other: 2}
    shown = next(one for one in facts["namespaces"] if one["objects"] == 3)
    assert shown["payload_bytes"] == 3 * SLOT
    assert shown["namespace"]["extra"].keys() == {"kvpool generation"}
    assert shown["namespace"] | {"extra": {}} == json.loads(namespace().to_json())


def test_show_needs_no_lock_and_verify_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, arena = opened(tmp_path)
    with store:
        fill(store, arena, range(1))
        assert main(["store", "show", str(tmp_path)]) == 0
        for command in ("verify", "gc"):
            assert main(["store", command, str(tmp_path)]) == 2
            error = capsys.readouterr().err
            assert "is in use by process" in error
            assert "hint: stop the engine first" in error


def test_verify_finds_what_is_damaged_and_gc_clears_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "verify", str(folder)]) == 0
    assert capsys.readouterr().out == "5 objects are intact, 0 are not\n"
    place = damage(folder, 1)
    assert main(["store", "verify", str(folder)]) == 1
    out, error = capsys.readouterr()
    assert "4 objects are intact, 1 are not" in out
    assert f"place {place}: the payload's checksum is not" in out
    assert "kvpool store gc" in error
    assert main(["store", "verify", str(folder), "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert [one["place"] for one in facts["damaged"]] == [place]
    # The command reads only headers, which are intact.
    assert main(["store", "gc", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["damaged"] == 0
    assert main(["store", "gc", str(folder), "--verify"]) == 0
    assert capsys.readouterr().out.startswith("1 damaged objects and 0 of other namespaces cleared, 4 kept")
    assert main(["store", "verify", str(folder)]) == 0


def test_gc_keeps_the_given_namespaces(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = carried(StoreFolder(folder).namespaces(), namespace())
    for dry, left in ((["--dry-run"], 5), ([], 3)):
        assert main(["store", "gc", str(folder), "--keep", mine[:10].upper(), *dry, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["of_other_namespaces"], facts["kept"], facts["dry_run"]) == (2, 3, bool(dry))
        assert len(facts["namespaces_forgotten"]) == 1
        opened_folder = StoreFolder(folder)
        assert len(opened_folder.objects(0, opened_folder.places)) == left
    assert list(StoreFolder(folder).namespaces()) == [mine]
    store, _ = opened(folder)
    with store:
        assert store.stats().restored == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "/no/such/folder"], "has no objects of a store"),
        (["verify", "/no/such/folder"], "has no objects of a store"),
        (["bench", "/no/such/folder"], "no such folder"),
        (["gc", "FOLDER", "--keep", "zz"], "no namespace of this folder"),
        (["gc", "FOLDER", "--keep", ""], "2 namespaces of this folder"),
        (["bench", "FOLDER", "--object-kib", "1"], "object-kib"),
    ],
)
def test_the_error_of_bad_usage_gives_the_next_step(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", *(str(folder) if one == "FOLDER" else one for one in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in " ".join(error.split())
    assert "hint: " in error


def test_what_verify_recommends_clears_what_it_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(folder, 1)
    assert main(["store", "verify", str(folder)]) == 1
    recommended = capsys.readouterr().err.partition("next: kvpool ")[2].partition(" makes")[0].split()
    assert main(recommended) == 0
    assert capsys.readouterr().out.startswith("1 damaged objects")
    assert main(["store", "verify", str(folder)]) == 0


def test_bench_leaves_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "store",
        "bench",
        str(tmp_path),
        "--gib",
        "0.001",
        "--object-kib",
        "16",
        "--object-kib",
        "64",
    ]
    assert main([*arguments, "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)["sizes"]
    assert [(one["object_bytes"], one["objects"]) for one in sizes] == [(16384, 65), (65536, 16)]
    for way in (one[way] for one in sizes for way in ("write", "read")):
        assert way["gb_per_s"] > 0
        assert 0 < way["p50_ms"] <= way["p99_ms"]
    assert all(one["lookup_us"] > 0 for one in sizes)
    assert list(tmp_path.iterdir()) == []
    assert main(arguments) == 0
    assert "64 KiB" in capsys.readouterr().out


def test_a_disk_without_room_fails_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "bench", str(tmp_path), "--gib", "1e9"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert list(tmp_path.iterdir()) == []


def test_the_engine_s_memory_is_not_needed_to_look(tmp_path: Path) -> None:
    arena = Arena(1, 4096)
    with Store(Disk(tmp_path, 1 << 20, free_floor_bytes=0), arena, namespace()):
        pass
    assert StoreFolder(tmp_path).objects(0, 1000) == []
