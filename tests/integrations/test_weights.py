"""Tests the names of weights. A name depends on the content of the files, or on the commit that is
served.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvpool.errors import InvalidArgumentError
from kvpool.integrations import weights
from kvpool.integrations.weights import REMEMBERED, commit_of, content_of, stamp_of, weights_of

if TYPE_CHECKING:
    import io

COMMITS = ["a" * 40, "b" * 40, "c" * 40]
LARGE = 1 << 20


@pytest.fixture(autouse=True)
def remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache" / "content.json"
    monkeypatch.setenv(REMEMBERED, str(path))
    monkeypatch.setattr(weights, "_SETTLED", -1)  # a test does not wait two seconds
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(LARGE))
    (folder / "config.json").write_text("{}")
    (folder / "deep" / "more.bin").write_bytes(b"more")
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a cache of huggingface_hub in which org/name has two branches."""
    cache = tmp_path / "hub"
    refs = cache / "models--org--name" / "refs"
    (refs / "pr").mkdir(parents=True)
    (refs / "main").write_text(COMMITS[0])
    (refs / "branch").write_text(COMMITS[1])
    (refs / "pr" / "1").write_text(COMMITS[2])
    monkeypatch.setitem(
        sys.modules, "huggingface_hub.constants", types.SimpleNamespace(HF_HUB_CACHE=str(cache))
    )
    return cache


def keep_times(path: Path, write: str | bytes) -> None:
    """Replaces the content of a file but keeps its size and mtime, as container images, cp -p and rsync
    do.
    """
    before = path.stat()
    data = write.encode() if isinstance(write, str) else write
    assert len(data) == before.st_size
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_content_with_the_same_size_and_mtime_differs(folder: Path) -> None:
    before = content_of(folder)
    assert content_of(folder) == before
    keep_times(folder / "model.safetensors", bytes(LARGE - 1) + b"x")
    after = content_of(folder)
    assert after != before
    keep_times(folder / "config.json", "[]")
    assert len({before, after, content_of(folder)}) == 3


def test_times_do_not_count(folder: Path, tmp_path: Path) -> None:
    before = content_of(folder)
    for path in folder.rglob("*"):
        os.utime(path, ns=(1, 1))
    assert content_of(folder) == before
    copy = tmp_path / "copy"
    (copy / "deep").mkdir(parents=True)
    for name in ("config.json", "deep/more.bin", "model.safetensors"):
        (copy / name).write_bytes((folder / name).read_bytes())
    assert content_of(copy) == before


def test_names_and_places_of_files_count(folder: Path) -> None:
    found = [content_of(folder)]
    (folder / "deep" / "more.bin").rename(folder / "more.bin")
    found.append(content_of(folder))
    (folder / "more.bin").rename(folder / "other.bin")
    found.append(content_of(folder))
    (folder / "empty").write_bytes(b"")
    found.append(content_of(folder))
    (folder / "broken").symlink_to("nowhere")
    found.append(content_of(folder))
    assert len(set(found)) == len(found)


def test_files_that_no_engine_reads_do_not_count(folder: Path) -> None:
    before = content_of(folder)
    (folder / "README.md").write_text("text")
    (folder / "LICENSE.txt").write_text("text")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref")
    (folder / ".cache" / "huggingface").mkdir(parents=True)
    (folder / ".cache" / "huggingface" / "model.lock").write_text("1")
    assert content_of(folder) == before
    (folder / "modeling.py").write_text("")
    assert content_of(folder) != before


def test_links_of_a_snapshot_are_followed(folder: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / COMMITS[0]
    blobs.mkdir()
    (snapshot / "deep").mkdir(parents=True)
    for number, name in enumerate(("config.json", "deep/more.bin", "model.safetensors")):
        (blobs / str(number)).write_bytes((folder / name).read_bytes())
        (snapshot / name).symlink_to(blobs / str(number))
    assert content_of(snapshot) == content_of(folder)
    keep_times(blobs / "1", "MORE")
    assert content_of(snapshot) != content_of(folder)


def test_a_folder_that_contains_itself_ends(folder: Path) -> None:
    (folder / "deep" / "again").symlink_to(folder, target_is_directory=True)
    assert content_of(folder) == content_of(folder)


def test_a_pipe_is_not_read(folder: Path) -> None:
    before = content_of(folder)
    os.mkfifo(folder / "pipe")
    assert content_of(folder) != before


def test_a_second_start_reads_no_large_file(
    folder: Path, remembered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content_of(folder)
    assert stat.S_IMODE(remembered.stat().st_mode) == 0o600
    read: list[str] = []
    digest = hashlib.file_digest

    def watched(file: io.BufferedReader, name: str) -> object:
        read.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", watched)
    assert content_of(folder) == before
    assert sorted(read) == ["config.json", "more.bin"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"a": 1}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_memory_counts_as_an_empty_one(folder: Path, remembered: Path, damage: bytes) -> None:
    before = content_of(folder)
    remembered.write_bytes(damage)
    assert content_of(folder) == before
    assert len(json.loads(remembered.read_text())) == 1


def test_a_digest_file_that_others_can_write_is_not_used(folder: Path, remembered: Path) -> None:
    before = content_of(folder)
    (key,) = json.loads(remembered.read_text())
    remembered.write_text(json.dumps({key: "0" * 64}))
    assert content_of(folder) != before
    remembered.chmod(0o666)
    assert content_of(folder) == before


def test_a_memory_that_cannot_be_written_fails_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content_of(folder)
    monkeypatch.setenv(REMEMBERED, "/proc/nowhere/content.json")
    assert content_of(folder) == before


def test_a_file_that_has_just_changed_is_not_remembered(
    folder: Path, remembered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is changed twice within one tick of the clock has the same times after both changes."""
    monkeypatch.setattr(weights, "_SETTLED", 3_600 * 1_000_000_000)
    content_of(folder)
    assert not remembered.exists()


def test_a_file_system_with_whole_seconds_is_read_at_every_start(
    folder: Path, remembered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If container images set fixed times, a file has the same device, inode and times in two images."""
    os.utime(folder / "model.safetensors", ns=(1, 1))
    facts = (folder / "model.safetensors").stat()
    whole = types.SimpleNamespace(st_ctime_ns=facts.st_ctime_ns // 1_000_000_000 * 1_000_000_000)
    assert weights._is_exact(facts)
    assert not weights._is_exact(whole)  # type: ignore[arg-type]
    monkeypatch.setattr(weights, "_is_exact", lambda facts: False)
    content_of(folder)
    assert not remembered.exists()


def test_a_stamp_changes_with_any_change(folder: Path) -> None:
    before = stamp_of(folder)
    assert stamp_of(folder) == before
    keep_times(folder / "model.safetensors", bytes(LARGE - 1) + b"x")
    assert stamp_of(folder) != before


@pytest.mark.parametrize("name", ["nowhere", ""])
def test_what_does_not_exist_is_refused(tmp_path: Path, name: str, hub: Path) -> None:
    with pytest.raises(InvalidArgumentError, match='"weights": "'):
        weights_of(str(tmp_path / name) if name else "")


def test_a_folder_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot read the weights in"):
        content_of(tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match="cannot read the weights in"):
        stamp_of(tmp_path / "nowhere")


def test_a_hub_model_is_named_by_the_commit_that_is_served(hub: Path) -> None:
    assert weights_of("org/name") == f"commit {COMMITS[0]}"
    assert weights_of("org/name", "main") == f"commit {COMMITS[0]}"
    assert weights_of("org/name", "branch") == f"commit {COMMITS[1]}"
    assert weights_of("org/name", "pr/1") == f"commit {COMMITS[2]}"
    (hub / "models--org--name" / "refs" / "branch").write_text(COMMITS[2])
    assert weights_of("org/name", "branch") == f"commit {COMMITS[2]}"


def test_a_pinned_commit_needs_no_main_in_the_cache(hub: Path) -> None:
    assert weights_of("org/other", COMMITS[1]) == f"commit {COMMITS[1]}"
    with pytest.raises(InvalidArgumentError, match="at revision 'tag'"):
        weights_of("org/other", "tag")


def test_the_download_folder_of_the_engine_counts(hub: Path, tmp_path: Path) -> None:
    refs = tmp_path / "downloads" / "models--org--name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(f"{COMMITS[2]}\n")
    assert commit_of("org/name", cache_dir=tmp_path / "downloads") == COMMITS[2]
    (refs / "main").write_text("damaged")
    assert commit_of("org/name", cache_dir=tmp_path / "downloads") is None


def test_a_model_that_is_a_folder_is_named_by_content(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert weights_of(str(folder)) == weights_of(str(folder), "main") == content_of(folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    assert weights_of("~/model") == content_of(folder)
    assert weights_of(str(folder / "model.safetensors")) == content_of(folder / "model.safetensors")
