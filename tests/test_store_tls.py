"""Tests Redis over TLS, through a proxy. If a server that supports TLS is available, tests it directly,
too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import trustme

from kvpool.errors import InvalidArgumentError, StoreError
from kvpool.store import Arena, Redis, Store, backend_from_url
from tests.dripping import dripping
from tests.store_servers import connects, free_port, redis_server, running
from tests.test_store import AGES, PATIENT, finish, key, namespace, payload

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Number of bytes that is larger than a TLS record, and larger than one write of a socket.
LONG = 1 << 18
PASSWORD = "of-nobody-else"


class Certificates:
    """A certificate authority, and two certificates that it has signed: one for 127.0.0.1, and one for
    a client.
    """

    def __init__(self, folder: Path) -> None:
        authority, self.folder = trustme.CA(), folder
        folder.mkdir()
        self.authority = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        self.server = self._of("server", authority.issue_cert("127.0.0.1", "cache.internal"))
        self.client = self._of("client", authority.issue_cert("client.internal"))

    def _of(self, name: str, issued: trustme.LeafCert) -> tuple[Path, Path]:
        certificate, own = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(own))
        return certificate, own


class Proxy:
    """A proxy between clients that use TLS and a server on a Unix socket."""

    def __init__(self, path: Path, certificates: Certificates, *, asks: bool, newest: ssl.TLSVersion) -> None:
        self._path = path
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificates.server)
        self._context.maximum_version = newest
        if asks:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(certificates.authority)
        self.heard = bytearray()
        self.versions: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context))
        self.port = self._server.sockets[0].getsockname()[1]

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.versions.add(writer.get_extra_info("ssl_object").version())
        own = asyncio.current_task()
        assert own is not None
        self._tasks.add(own)
        inner, outer = await asyncio.open_unix_connection(str(self._path))
        try:
            await asyncio.gather(
                self._pass_on(reader, outer, heard=True), self._pass_on(inner, writer, heard=False)
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(own)
            writer.transport.abort()
            outer.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, heard: bool
    ) -> None:
        while some := await reader.read(1 << 16):
            if heard:
                self.heard += some
            writer.write(some)
            await writer.drain()
        raise ConnectionResetError

    def cut(self) -> None:
        """Closes all connections abruptly."""

        async def cut() -> None:
            for task in list(self._tasks):
                task.cancel()

        self._call(cut())

    def close(self) -> None:
        self.cut()

        async def close() -> None:
            self._server.close()
            # Wait until the cancelled tasks have ended, before the event loop ends.
            while self._tasks:
                await asyncio.sleep(0)

        self._call(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "mine")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with redis_server(tmp_path_factory.mktemp("redis"), "--requirepass", PASSWORD) as path:
        yield path


@contextlib.contextmanager
def proxied(
    path: Path,
    certificates: Certificates,
    *,
    asks: bool = False,
    newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED,
) -> Iterator[Proxy]:
    proxy = Proxy(path, certificates, asks=asks, newest=newest)
    try:
        yield proxy
    finally:
        proxy.close()


def url(port: int, certificates: Certificates, query: str = "", host: str = "127.0.0.1") -> str:
    return f"rediss://:{PASSWORD}@{host}:{port}?ca={quote(str(certificates.authority))}{query}"


def opened(address: str, **settings: Any) -> tuple[Store, Arena]:
    arena = Arena(4, LONG)
    backend = backend_from_url(address, 64 * (LONG + 4096), timeout=AGES)
    return Store(backend, arena, namespace(), **PATIENT | settings), arena


def moves(store: Store, arena: Arena, numbers: range) -> None:
    for number in numbers:
        arena.write(0, payload(number, LONG))
        assert finish(store, store.put([key(number)], [0])) == ["ok"]
    for number in numbers:
        assert finish(store, store.get([key(number)], [1])) == ["ok"], store.stats().last_error
        assert arena.read(1) == payload(number, LONG)


@pytest.mark.parametrize(("newest", "spoken"), [("TLSv1_2", "TLSv1.2"), ("TLSv1_3", "TLSv1.3")])
def test_objects_go_there_and_back(
    server: Path, certificates: Certificates, newest: str, spoken: str
) -> None:
    with proxied(server, certificates, newest=ssl.TLSVersion[newest]) as proxy:
        store, arena = opened(url(proxy.port, certificates))
        with store:
            moves(store, arena, range(5))
            proxy.cut()  # connections are opened again
            moves(store, arena, range(5, 8))
        assert proxy.versions == {spoken}
        assert PASSWORD.encode() in proxy.heard


def test_an_untrusted_server_receives_nothing(
    server: Path, certificates: Certificates, tmp_path: Path
) -> None:
    stranger = Certificates(tmp_path / "strangers")
    with proxied(server, certificates) as proxy:
        for address, why in (
            (url(proxy.port, stranger), "invalid peer certificate: UnknownIssuer"),
            (f"rediss://:{PASSWORD}@127.0.0.1:{proxy.port}", "invalid peer certificate: UnknownIssuer"),
            (url(proxy.port, certificates, "&name=other.internal"), "certificate not valid for name"),
            (url(proxy.port, certificates, host="localhost"), "certificate not valid for name"),
        ):
            with pytest.raises(StoreError, match=why) as refused:
                opened(address)
            assert PASSWORD not in str(refused.value)
        assert not proxy.heard
        store, arena = opened(url(proxy.port, certificates, "&name=cache.internal", host="localhost"))
        with store:
            moves(store, arena, range(1))


def test_a_server_may_require_a_client_certificate(server: Path, certificates: Certificates) -> None:
    with proxied(server, certificates, asks=True) as proxy:
        with pytest.raises(StoreError):
            opened(url(proxy.port, certificates))
        certificate, own = (quote(str(path)) for path in certificates.client)
        store, arena = opened(url(proxy.port, certificates, f"&cert={certificate}&key={own}"))
        with store:
            moves(store, arena, range(2))


def test_a_handshake_that_drips_ends_after_the_timeout(certificates: Certificates) -> None:
    """The deadline has to apply to the socket below TLS, because TLS reads until a record is complete."""
    with dripping(b"\x16\x03\x03\x3f\xff", b"x") as port:
        backend = backend_from_url(url(port, certificates), 1 << 24, timeout=0.3)
        arena = Arena(1, LONG)
        with pytest.raises(StoreError, match="asking the server failed"):
            Store(backend, arena, namespace(), deadline=AGES)


def test_a_server_without_tls_receives_no_password(certificates: Certificates) -> None:
    """Such a server may be configured wrongly, or an attacker between client and server."""
    heard = bytearray()

    def answer(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            heard.extend(connection.recv(1 << 16))
            connection.sendall(b"+OK\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        with pytest.raises(StoreError, match="asking the server failed"):
            opened(url(listening.getsockname()[1], certificates))
        thread.join()
    assert heard
    assert PASSWORD.encode() not in heard


def test_files_that_are_none_are_named(certificates: Certificates, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    certificate, own = certificates.client
    for settings, named in (
        ({"tls_ca": tmp_path / "none.pem"}, "none.pem"),
        ({"tls_ca": empty}, "empty.pem: no certificate in it"),
        ({"tls_ca": certificates.authority, "tls_certificate": (certificate, empty)}, "empty.pem"),
        (
            {"tls_ca": certificates.authority, "tls_certificate": (own, own)},
            "client.key: no certificate in it",
        ),
        ({"tls_ca": certificates.authority, "tls_server_name": "no name"}, "not the name of a server"),
    ):
        backend = Redis(1 << 24, password=PASSWORD, tls=True, **settings)
        with pytest.raises(StoreError, match="reading certificates failed") as refused:
            Store(backend, Arena(1, 4096), namespace())
        assert named in str(refused.value)
        assert PASSWORD not in str(refused.value) + repr(backend)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tls": True, "unix_socket": "/run/redis"}, "tls and unix_socket are both given"),
        ({"tls_ca": "/ca.pem"}, "are for tls=True"),
        ({"tls_server_name": "a"}, "are for tls=True"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        Redis(1 << 24, **settings)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("rediss://:secret@host?cert=/c.pem", "one of cert and key"),
        ("rediss://:secret@host?verify=no&ca=/c.pem", "has verify: ca, cert, key and name"),
        ("rediss://:secret@host/1#part", "fragment"),
        ("redis://:secret@host?ca=/c.pem", "has a query or a fragment"),
    ],
)
def test_urls_with_inconsistent_or_unsupported_parts_are_refused(address: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why) as refused:
        backend_from_url(address, 1 << 30)
    assert "secret" not in str(refused.value)


def speaking_tls() -> str | None:
    """Returns a Redis server that supports TLS itself, as Debian's does. Otherwise returns None."""
    for program in (
        os.environ.get("KVPOOL_REDIS_SERVER"),
        Path(sys.executable).parent / "redis-server",
        "redis-server",
    ):
        path = shutil.which(program) if program else None
        if path:
            done = subprocess.run([path, "--tls-port", "x"], capture_output=True, text=True, check=False)
            if "Bad directive" not in done.stdout + done.stderr:
                return path
    return None


def test_a_redis_that_speaks_tls_itself(certificates: Certificates, tmp_path: Path) -> None:
    program = speaking_tls()
    if program is None:
        pytest.skip(
            "NOT TESTED: no redis-server here speaks TLS by itself (apt-get install redis-server); "
            "a proxy does"
        )
    port = free_port()
    certificate, own = map(str, certificates.server)
    command = [program, "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", ""]
    command += [
        "--tls-cert-file",
        certificate,
        "--tls-key-file",
        own,
        "--tls-ca-cert-file",
        str(certificates.authority),
    ]
    command += ["--requirepass", PASSWORD]
    with running(command, lambda: connects(("127.0.0.1", port)), tmp_path):
        with pytest.raises(StoreError):  # the server asks for a client certificate
            opened(url(port, certificates))
        mine, key_file = (quote(str(path)) for path in certificates.client)
        store, arena = opened(url(port, certificates, f"&cert={mine}&key={key_file}"))
        with store:
            moves(store, arena, range(20))
