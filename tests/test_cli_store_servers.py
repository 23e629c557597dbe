"""Tests ``kvpool store show | verify | gc`` for shared back ends. All tests run with Redis, with a
bucket and with a shared folder.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.cli import main
from kvpool.errors import InvalidArgumentError
from kvpool.store import Arena, Namespace, Store, StoreServer, backend_from_url, check_object
from kvpool.store.inspect import inspector_from_url
from tests.store_servers import binary, cannot_be_had, redis_server
from tests.test_store import FIELDS, PATIENT, SLOT, fill, finish, key, namespace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")

OTHER = Namespace(**FIELDS | {"model": "other\x1b[31m"})
#: Number of keys. It is larger than one page of a listing.
MANY = 600


class Place:
    """A back end given by its URL, with methods that damage objects and that add values that are not
    kvpool's.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        #: For each namespace, the digest of it that the names of its objects contain.
        self.digests: dict[Namespace, str] = {}

    def damage(self, digest: str) -> None:
        """Changes a byte in the payload of one object of a namespace."""
        raise NotImplementedError

    def litter(self) -> int:
        """Adds values that are not kvpool's. Returns their number."""
        raise NotImplementedError


class RedisPlace(Place):
    def __init__(self, socket: Path) -> None:
        super().__init__(f"redis+unix://{socket}")
        self._socket = str(socket)

    def ask(self, *arguments: str) -> str:
        done = subprocess.run(
            [binary("redis-cli", "valkey-cli"), "-s", self._socket, *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def damage(self, digest: str) -> None:
        name = self.ask("--scan", "--pattern", f"kvpool/{digest}/*").splitlines()[0]
        self.ask("SETRANGE", name, "1000", "damaged")

    def litter(self) -> int:
        self.ask("SET", "session:1", "of somebody else")
        self.ask("SET", "kvpool/notes", "of somebody else")
        self.ask("RPUSH", "kvpool/list", "of another kind")
        return 3


class FolderPlace(Place):
    def __init__(self, folder: Path) -> None:
        super().__init__(f"folder://{folder}")
        self._folder = folder

    def damage(self, digest: str) -> None:
        path = next((self._folder / digest).glob("*/*"))
        with path.open("r+b") as file:
            file.seek(5000)
            file.write(b"damaged")

    def litter(self) -> int:
        (self._folder / "README").write_text("of somebody else")
        (self._folder / "ab").mkdir()
        (self._folder / "ab" / "cd").mkdir()
        (self._folder / "ab" / "cd" / "notes").write_text("of somebody else")
        return 2


class BucketPlace(Place):
    def __init__(self, store: Any) -> None:
        super().__init__("s3://bucket/here?region=nowhere")
        self._store = store

    def damage(self, digest: str) -> None:
        import obstore

        path = next(meta["path"] for page in obstore.list(self._store, f"kvpool/{digest}/") for meta in page)
        value = bytearray(obstore.get(self._store, path).bytes())
        value[1000] ^= 1
        obstore.put(self._store, path, bytes(value))

    def litter(self) -> int:
        import obstore

        obstore.put(self._store, "kvpool/notes", b"of somebody else")
        obstore.put(self._store, "elsewhere", b"not looked at")
        return 1


@pytest.fixture(params=["redis", "folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Fills a back end with three objects of one namespace and two of another."""
    if request.param == "redis":
        with redis_server(tmp_path) as socket:
            yield filled(RedisPlace(socket))
    elif request.param == "folder":
        yield filled(FolderPlace(tmp_path / "shared folder"))
    else:
        try:
            import obstore
        except ImportError:
            cannot_be_had("there is no obstore")
        bucket = obstore.store.MemoryStore()
        monkeypatch.setattr("obstore.store.from_url", lambda _url, **_options: bucket)
        yield filled(BucketPlace(bucket))


def filled(place: Place) -> Place:
    for of, objects in ((namespace(), 3), (OTHER, 2)):
        arena = Arena(4, SLOT)
        backend = backend_from_url(place.url, 1 << 30)
        with Store(backend, arena, of, **PATIENT) as store:
            fill(store, arena, range(objects))
            place.digests[of] = store.namespace.digest.hex()
    return place


def facts(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main(["store", *arguments, "--json"]) == code, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_show_lists_the_namespaces_of_objects(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    others = place.litter()
    assert main(["store", "show", place.url]) == 0
    out = capsys.readouterr().out
    assert f"5 objects, 40 KiB of KV; {others} things of others" in out
    assert (
        f"namespace {place.digests[namespace()][:12]}: 3 objects, 24 KiB of KV\n  llama, weights rev-1, bf16"
        in out
    )
    assert "\x1b" not in out, "a name is not obeyed"
    shown = facts(capsys, "show", place.url)
    assert (shown["objects"], shown["damaged"], shown["others"]) == (5, 0, others)
    assert {one["digest"]: one["objects"] for one in shown["namespaces"]} == {
        place.digests[namespace()]: 3,
        place.digests[OTHER]: 2,
    }
    mine = shown["namespaces"][0]
    assert mine["payload_bytes"] == 3 * SLOT
    assert mine["namespace"]["extra"].keys() == {"kvpool generation"}
    assert mine["namespace"] | {"extra": {}} == json.loads(namespace().to_json())


def test_verify_finds_what_is_damaged_and_gc_removes_it(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    others = place.litter()
    assert main(["store", "verify", place.url]) == 0
    assert capsys.readouterr().out == "5 objects are intact, 0 are not\n"
    place.damage(place.digests[namespace()])
    assert main(["store", "verify", place.url]) == 1
    out, error = capsys.readouterr()
    assert "4 objects are intact, 1 are not" in out
    assert "the payload's checksum is not" in out
    assert "kvpool store gc --verify" in error
    (damaged,) = facts(capsys, "verify", place.url, code=1)["damaged"]
    assert damaged["name"].startswith(place.digests[namespace()])
    # The command reads only names, sizes and headers, which are intact.
    assert facts(capsys, "gc", place.url)["damaged"] == 0
    assert facts(capsys, "gc", place.url, "--verify", "--dry-run")["damaged"] == 1
    assert main(["store", "gc", place.url, "--verify"]) == 0
    out = capsys.readouterr().out
    assert out == (
        "1 damaged objects and 0 of other namespaces removed, 4 kept; "
        f"{others} things of others are not touched\n"
    )
    assert facts(capsys, "verify", place.url)["intact"] == 4
    assert facts(capsys, "show", place.url)["others"] == others


def test_gc_keeps_the_given_namespaces(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    others, mine = place.litter(), place.digests[namespace()]
    for dry, left in ((["--dry-run"], 5), ([], 3)):
        told = facts(capsys, "gc", place.url, "--keep", mine[:10].upper(), *dry)
        assert (told["of_other_namespaces"], told["kept"], told["dry_run"]) == (2, 3, bool(dry))
        assert told["namespaces_forgotten"] == [place.digests[OTHER]]
        shown = facts(capsys, "show", place.url)
        assert (shown["objects"], shown["others"]) == (left, others)
    assert [one["digest"] for one in shown["namespaces"]] == [mine]
    # An engine finds the objects that the command has kept, and no others.
    for of, expected in ((namespace(), "ok"), (OTHER, "absent")):
        arena = Arena(4, SLOT)
        with Store(backend_from_url(place.url, 1 << 30), arena, of, **PATIENT) as store:
            assert finish(store, store.get([key(1)], [0])) == [expected]


def test_pages_are_of_everything_once(tmp_path: Path) -> None:
    with redis_server(tmp_path) as socket:
        url, arena = f"redis+unix://{socket}", Arena(8, 64)
        with Store(backend_from_url(url, 1 << 30), arena, namespace(), **PATIENT) as store:
            for first in range(0, MANY, 8):
                job = store.put([key(first + nth) for nth in range(8)], list(range(8)))
                assert finish(store, job) == ["ok"] * 8
        inspector = inspector_from_url(url)
        pages = list(inspector.pages(verify=True))
        assert len(pages) > 1
        names = [name for page in pages for name, *_ in page.objects]
        assert len(names) == len(set(names)) == MANY
        # The listing contains the text of the namespace, but not the record of its generation.
        assert sum(page.things for page in pages) == MANY + 1
        assert inspector.total() == MANY + 2
        inspector.remove(names[: MANY - 5])
        assert inspector.total() == 7


def everything(place: Place) -> list[str]:
    """Returns the names of all values in the back end."""
    if isinstance(place, RedisPlace):
        return sorted(place.ask("--scan").split())
    if isinstance(place, FolderPlace):
        return sorted(str(path) for path in place._folder.rglob("*") if path.is_file())
    import obstore

    assert isinstance(place, BucketPlace)
    return sorted(meta["path"] for page in obstore.list(place._store) for meta in page)


def test_bench_leaves_nothing_at_a_place_that_engines_share(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(place)
    assert before
    measured = facts(
        capsys, "bench", place.url, "--gib", "0.001", "--object-kib", "64", "--object-kib", "128"
    )
    assert [one["objects"] for one in measured["sizes"]] == [16, 8]
    assert everything(place) == before


def test_bench_that_fails_leaves_nothing_either(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(place)

    def interrupted(*_arguments: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvpool.cli.store_bench._look_up", interrupted)
    assert main(["store", "bench", place.url, "--gib", "0.001", "--object-kib", "64"]) == 130
    assert everything(place) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "redis://:secret@host?what"], "has a query"),
        (["show", "ftp://user:secret@host"], "no back end is called ftp"),
        (["show", "folder:///no/such/folder"], "no such folder"),
        (["show", "folder://host/path"], "has no path"),
        (["gc", "PLACE", "--keep", "zz"], "no namespace of this server"),
        (["gc", "PLACE", "--keep", ""], "2 namespaces of this server"),
    ],
)
def test_the_error_of_bad_usage_gives_the_next_step(
    tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = filled(FolderPlace(tmp_path / "shared"))
    assert main(["store", *(place.url if one == "PLACE" else one for one in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in " ".join(error.split())
    assert "hint: " in error
    assert "secret" not in error


@pytest.mark.parametrize("command", ["show", "verify", "gc"])
def test_a_server_that_is_not_there_fails_in_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", command, "redis+unix://:secret@/no/such/socket"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        "error: redis+unix:///no/such/socket: asking the server failed: No such file or directory\n"
    )
    assert "secret" not in error


def test_only_names_of_objects_are_removed(tmp_path: Path) -> None:
    with redis_server(tmp_path) as socket:
        backend = backend_from_url(f"redis+unix://{socket}", 1 << 30)
        server = StoreServer(backend)  # type: ignore[arg-type]
        for name in (
            "session:1",
            "../x",
            "ab" * 32 + "/" + "cd" * 32 + "-01",
            "AB" * 32 + "/" + "cd" * 32 + "-0",
        ):
            assert check_object(name, b"", 0) is None
            with pytest.raises(InvalidArgumentError):
                server.remove([name])
            with pytest.raises(InvalidArgumentError):
                server.forget(name)
            with pytest.raises(InvalidArgumentError):
                inspector_from_url(f"folder://{tmp_path}").remove([name])
            with pytest.raises(InvalidArgumentError):
                inspector_from_url(f"folder://{tmp_path}").forget(name)
