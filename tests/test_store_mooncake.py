"""Tests commands that inspect a Mooncake Store. They use a stand-in for Mooncake's client, and a
made-up master that lists keys over HTTP.

``make store-servers-check`` tests this with a real server.
"""

from __future__ import annotations

import contextlib
import http.server
import socket
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.cli import main
from kvpool.errors import InvalidArgumentError, MissingPackageError, StoreError
from kvpool.store import Arena, Custom, Store
from kvpool.store.inspect import inspector_from_url
from kvpool.store.mooncake_keys import MooncakeInspector, keys_of_master
from tests.test_cli_store_servers import facts
from tests.test_store import PATIENT, SLOT, fill, namespace
from tests.test_store_backends import Dictionary

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Number of keys. It is larger than one page of a listing.
MANY = 300


class StandIn:
    """Stands in for ``MooncakeDistributedStore``, with the methods that the commands use."""

    values: dict[str, bytes]
    arguments: tuple[Any, ...] = ()

    def setup(self, *arguments: Any) -> int:
        type(self).arguments = arguments
        return 0 if arguments[6].startswith("127.0.0.1:") else -900

    def get(self, key: str) -> bytes:
        return self.values.get(key, b"")

    def get_size(self, key: str) -> int:
        return len(self.values[key]) if key in self.values else -704

    def batch_remove(self, keys: list[str], force: bool) -> list[int]:
        assert force
        return [0 if self.values.pop(key, None) is not None else -704 for key in keys]


@contextlib.contextmanager
def master(values: dict[str, bytes], status: int = 200) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/get_all_keys"
            body = "".join(f"{key}\n" for key in values).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Makes values: three objects as a store writes them, the text of their namespace, and two values
    that are not kvpool's.
    """
    shared = Dictionary()
    arena = Arena(4, SLOT)
    with Store(Custom(shared, 1 << 20), arena, namespace(), **PATIENT) as store:
        fill(store, arena, range(3))
        text = store.namespace
    found = {f"kvpool/{name}": value for name, value in shared.values.items()}
    found[f"kvpool/{text.digest.hex()}.json"] = text.to_json().encode()
    found |= {"model@0@abc": b"of vLLM", "kvpool/notes": b"of somebody"}
    StandIn.values = found
    package, module = types.ModuleType("mooncake"), types.ModuleType("mooncake.store")
    module.MooncakeDistributedStore = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mooncake", package)
    monkeypatch.setitem(sys.modules, "mooncake.store", module)
    return found


@pytest.mark.usefixtures("plain_output")
def test_show_verify_and_gc(values: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    with master(values) as port:
        url = f"mooncake://127.0.0.1:50055?metrics={port}"
        shown = facts(capsys, "show", url)
        assert (shown["objects"], shown["others"], shown["damaged"]) == (3, 2, 0)
        assert shown["namespaces"][0]["payload_bytes"] == 3 * SLOT
        assert shown["namespaces"][0]["namespace"]["model"] == "llama"
        assert StandIn.arguments[1:3] == ("P2PHANDSHAKE", 0), "it lends no memory"
        assert StandIn.arguments[6] == "127.0.0.1:50055"
        damaged = next(name for name in values if name.endswith("-0"))
        values[damaged] = values[damaged][:-1] + b"?"
        assert main(["store", "verify", url]) == 1
        assert "2 objects are intact, 1 are not" in capsys.readouterr().out
        assert facts(capsys, "gc", url, "--verify", "--dry-run")["damaged"] == 1
        assert len(values) == 7
        assert facts(capsys, "gc", url, "--verify")["kept"] == 2
        assert damaged not in values
        assert len(values) == 6


def test_pages_are_of_everything_once(values: dict[str, bytes]) -> None:
    name, value = next((name, value) for name, value in values.items() if name.endswith("-0"))
    values |= {f"{name.rpartition('-')[0]}-{group}": value for group in range(1, MANY)}
    inspector = MooncakeInspector(StandIn(), lambda: list(values))
    pages = list(inspector.pages(verify=True))
    assert len(pages) > 1
    # The header of each copied object has group 0, whatever the group in its name.
    assert [sum(one[1] is None for page in pages for one in page.objects), inspector.total()] == [
        MANY - 1,
        len(values),
    ]
    assert sum(page.things for page in pages) == len(values) - 1, "all but the record of the generation"
    with pytest.raises(InvalidArgumentError, match="no name of an object"):
        inspector.remove(["model@0@abc"])
    with pytest.raises(InvalidArgumentError, match="no digest"):
        inspector.forget("../x")


@pytest.mark.usefixtures("values")
def test_what_cannot_be_reached_or_read_is_said() -> None:
    for url in (
        "mooncake://",
        "mooncake://host?verify=no",
        "mooncake://host/path",
        "mooncake://host?metrics=x",
    ):
        with pytest.raises(InvalidArgumentError, match="must be mooncake://host:50051"):
            inspector_from_url(url)
    with pytest.raises(InvalidArgumentError, match="a port that is none"):
        inspector_from_url("mooncake://host:99999")
    with pytest.raises(StoreError, match="error -900"):
        inspector_from_url("mooncake://elsewhere")
    with master({}, 503) as port, pytest.raises(StoreError, match="status 503"):
        keys_of_master("127.0.0.1", port)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # the port is taken, but nothing listens on it
        with pytest.raises(StoreError, match="Mooncake's master lists no keys at"):
            keys_of_master("127.0.0.1", nobody.getsockname()[1])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(MissingPackageError, match="mooncake-transfer-engine"):
        inspector_from_url("mooncake://127.0.0.1")
