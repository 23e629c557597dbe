"""Tests that commands which inspect shared stores have limits. The stores have servers that list keys
without end, links and pipes in a folder, and objects that report a large size.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.cli import main
from kvpool.errors import StoreError
from kvpool.store import Arena, Disk, Namespace, SharedFolder, SlotHeaders, Store
from kvpool.store import inspect as inspection
from kvpool.store.inspect import SharedFolderInspector, StoreServerInspector, opened_regular
from tests.store_servers import cannot_be_had

if TYPE_CHECKING:
    from pathlib import Path

    from kvpool.store.pages import Page

SLOT = 4096


def namespace() -> Namespace:
    return Namespace(
        model="m",
        weights="w",
        kv_dtype="bf16",
        scales="",
        layouts=[],
        block_size=16,
        layers=(0, 1),
        heads=(0, 1),
        hash_algorithm="sha256",
        hash_seed=b"",
        extra={},
    )


class Lists:
    """A server that lists keys page by page, with these cursors. It repeats the last cursor forever."""

    def __init__(self, cursors: list[int], others: int) -> None:
        self.cursors, self.others, self.asked = cursors, others, 0

    def scan(self, _cursor: int, *, verify: bool) -> tuple[int, list[Any], dict[str, Any], int]:
        assert not verify
        self.asked += 1
        cursor = self.cursors.pop(0) if len(self.cursors) > 1 else self.cursors[0]
        return (cursor if cursor >= 0 else self.asked), [], {}, self.others


def pages_of(lists: Lists) -> list[Page]:
    inspector = StoreServerInspector.__new__(StoreServerInspector)
    inspector._server = lists  # type: ignore[assignment]
    return list(inspector.pages(verify=False))


@pytest.mark.parametrize(
    ("cursors", "others", "most"),
    [([7], 0, 2), ([5, 9, 5], 1, 3), ([-1], 0, 12), ([-1], 1, 22)],
    ids=["one cursor", "a circle", "empty pages", "pages"],
)
def test_a_server_that_lists_without_end_is_an_error(
    cursors: list[int], others: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "_MOST_EMPTY", 10)
    monkeypatch.setattr(inspection, "_MOST_PAGES", 20)
    lists = Lists(cursors, others)
    with pytest.raises(StoreError, match="lists its keys without end"):
        pages_of(lists)
    assert lists.asked <= most


def test_a_server_that_ends_is_listed_whole() -> None:
    assert sum(page.others for page in pages_of(Lists([5, 9, 3, 0], 2))) == 8


def kept(folder: Path, name: str = "shared") -> Path:
    """Makes a shared folder with one object. Returns the path of the object's file."""
    arena = Arena(2, SLOT)
    with Store(SharedFolder(folder / name, 1 << 20), arena, namespace(), admission="always") as store:
        store.put([b"k"], [0])
        assert store.wait(60) == [(0, ["ok"])]
    return next(path for path in (folder / name).glob("*/*/*") if not path.suffix)


def test_links_and_pipes_in_a_folder_are_no_objects_and_do_not_block(tmp_path: Path) -> None:
    whole = kept(tmp_path)
    link, pipe = (
        whole.with_name(whole.name.replace("-0", "-1")),
        whole.with_name(whole.name.replace("-0", "-2")),
    )
    link.symlink_to(whole)
    for path, other in ((link, pipe), (pipe, link)):
        other.unlink(missing_ok=True)
        if path is pipe:
            os.mkfifo(pipe)
        with pytest.raises(OSError, match=r"symbolic|regular"):
            opened_regular(path)
        inspector = SharedFolderInspector(tmp_path / "shared")
        found: list[Any] = []

        def look(inspector: SharedFolderInspector = inspector, found: list[Any] = found) -> None:
            found.extend(one for page in inspector.pages(verify=True) for one in page.objects)

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        looking.join(60)
        assert sorted(one[1] is None for one in found) == [False, True], "the object, and one that is damaged"
        inspector.remove([one[0] for one in found if one[1] is None])
        assert whole.read_bytes()
        assert not path.is_symlink()
        assert not path.exists()
    # The command skips a folder that is a symbolic link.
    (tmp_path / "shared" / ("ab" * 32)).symlink_to(whole.parent.parent)
    pages = list(SharedFolderInspector(tmp_path / "shared").pages(verify=True))
    assert [sum(len(page.objects) for page in pages), sum(page.others for page in pages)] == [1, 1]


def test_files_of_python_stores_are_the_owners_and_links_are_refused_by_name(tmp_path: Path) -> None:
    whole = kept(tmp_path)
    assert whole.stat().st_mode & 0o777 == 0o600
    assert whole.parent.stat().st_mode & 0o777 == 0o700
    victim = tmp_path / "victim"
    victim.write_text("precious")
    slots, folder = tmp_path / "slots", tmp_path / "disk"
    slots.symlink_to(victim)
    with pytest.raises(StoreError, match=f"{slots} is a symbolic link"):
        SlotHeaders(slots, Arena(2, SLOT), namespace())
    folder.mkdir()
    (folder / "lock").symlink_to(victim)
    with pytest.raises(StoreError, match=f"{folder}/lock is a symbolic link"):
        Store(Disk(folder, 1 << 20, free_floor_bytes=0), Arena(2, SLOT), namespace())
    assert victim.read_text() == "precious"


def test_a_user_group_shares_a_folder_if_that_is_set(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with Store(
            SharedFolder(tmp_path / "g", 1 << 20, group=True), Arena(2, SLOT), namespace(), admission="always"
        ) as store:
            store.put([b"k"], [0])
            assert store.wait(60) == [(0, ["ok"])]
    finally:
        os.umask(before)
    modes = {path.is_dir(): path.stat().st_mode & 0o7777 for path in (tmp_path / "g").rglob("*")}
    assert modes == {True: 0o2770, False: 0o660}


def test_what_an_object_of_a_bucket_claims_is_not_read() -> None:
    try:
        import obstore.store

        from kvpool.store.s3 import S3
    except ImportError:
        cannot_be_had("there is no obstore")
    bucket = obstore.store.MemoryStore()
    obstore.put(bucket, "kvpool/long", b"x" * 100_000)
    backend = S3(bucket)
    assert backend._whole("long", 1000) == b"x" * 1000
    assert backend._whole("long", 1 << 20) == b"x" * 100_000
    assert backend._whole("absent", 1000) is None


def test_a_bucket_is_asked_by_a_bounded_number_of_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        import obstore.store

        from kvpool.store import s3
    except ImportError:
        cannot_be_had("there is no obstore")
    now, most = 0, 0

    async def head(_bucket: object, path: str) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(3):
            await asyncio.sleep(0)  # lets the other tasks continue
        now -= 1
        if path.endswith("7"):
            raise FileNotFoundError

    monkeypatch.setattr(obstore, "head_async", head)
    names = [str(n) for n in range(1000)]
    assert s3.S3(obstore.store.MemoryStore()).exist(names) == [not name.endswith("7") for name in names]
    assert most == s3._AT_ONCE


def test_a_hostile_server_is_one_line_of_the_command(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import kvpool.cli.store_servers as servers

    inspector = StoreServerInspector.__new__(StoreServerInspector)
    inspector._server = Lists([7], 0)  # type: ignore[assignment]
    monkeypatch.setattr(inspector, "total", lambda: 4, raising=False)
    monkeypatch.setattr(servers, "inspector_from_url", lambda _url: inspector)
    assert main(["store", "show", "redis://h"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: redis://h: the server lists its keys without end")
    assert "Traceback" not in error
