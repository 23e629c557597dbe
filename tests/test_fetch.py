"""A page is read over HTTP with one deadline and one limit of bytes, whatever the server sends and
however slowly.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING

import pytest

from kvpool.cli import main
from kvpool.cli import top as top_module
from kvpool.fetch import FetchError, fetch
from tests.dripping import dripping

if TYPE_CHECKING:
    from pathlib import Path

OK = b"HTTP/1.0 200 OK\r\n"
#: Seconds after which a test fails. It is far longer than the deadline of any read here.
AGES = 60.0
SECONDS = 0.3


@pytest.mark.parametrize(
    ("begin", "drip"),
    [
        (OK + b"\r\n", b"#"),
        (OK + b"Content-Length: 100000\r\n\r\n", b"#"),
        (OK.replace(b"1.0", b"1.1") + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n#\r\n"),
        (OK, b"X: y\r\n"),
        (OK, b"X"),
        (b"", b"H"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b""),
    ],
    ids=["body", "body of a length", "chunks", "headers", "one header", "status", "continue", "nothing"],
)
def test_a_page_that_drips_ends_at_the_deadline(begin: bytes, drip: bytes) -> None:
    began = time.monotonic()
    with (
        dripping(begin, drip) as port,
        pytest.raises(FetchError, match=r"in time|timed out|more than 100 headers"),
    ):
        fetch(f"http://127.0.0.1:{port}/", seconds=SECONDS, most_bytes=1 << 20, direct=True)
    assert time.monotonic() - began < AGES


@pytest.mark.parametrize("claim", [b"", b"Content-Length: 99999999999999\r\n"])
def test_a_page_without_end_is_read_up_to_the_limit(claim: bytes) -> None:
    page = dripping(OK + claim + b"\r\n", b"#" * 65536, pace=0)
    with page as port, pytest.raises(FetchError, match="more than 1 MiB"):
        fetch(f"http://127.0.0.1:{port}/", seconds=AGES, most_bytes=1 << 20, direct=True)


def test_redirections_share_the_deadline_and_end() -> None:
    with (
        dripping(b"HTTP/1.0 302 Found\r\nLocation: /again\r\n\r\n") as port,
        pytest.raises(FetchError, match=r"302|loop"),
    ):
        fetch(f"http://127.0.0.1:{port}/", seconds=AGES, most_bytes=1 << 20, direct=True)


def test_a_page_and_its_type_are_returned() -> None:
    with dripping(OK + b"Content-Type: text/x\r\nContent-Length: 4\r\n\r\npage") as port:
        page = fetch(f"http://127.0.0.1:{port}/", seconds=AGES, most_bytes=4, direct=True)
    assert (page.body, page.content_type) == (b"page", "text/x")


def test_top_ends_at_its_deadline_and_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top_module, "_LEAST_SECONDS", SECONDS)
    with dripping(OK + b"\r\n", b"#") as port:
        url = f"http://127.0.0.1:{port}/metrics"
        assert main(["top", f"{url}?token=secret", "--once", "--interval", "0.1"]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"error: {url}: ")
    assert "secret" not in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://[x]/", "http://h:x/", "http://", "http://me:secret@host/metrics"]
)
def test_top_refuses_what_is_no_url_of_a_page(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", url, "--once"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "secret" not in error


def test_a_page_that_is_shown_as_json_has_no_query_of_its_url(capsys: pytest.CaptureFixture[str]) -> None:
    page = b'# TYPE kvpool_capacity_blocks gauge\nkvpool_capacity_blocks{pool="a",tier="device"} 4\n'
    head = OK + f"Content-Type: text/plain\r\nContent-Length: {len(page)}\r\n\r\n".encode()
    with dripping(head + page) as port:
        assert main(["top", f"http://127.0.0.1:{port}/metrics?token=secret", "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == f"http://127.0.0.1:{port}/metrics"


@pytest.mark.parametrize("command", ["show", "verify", "gc"])
def test_a_store_whose_url_is_none_is_bad_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for url in (
        "redis://[::1",
        "redis://h/" + "9" * 5000,
        "disk://h/x",
        "disk:///a?b",
        "redis:me:secret@host",
    ):
        assert main(["store", command, url]) == 2, url
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert "secret" not in error


def test_a_look_at_a_server_ends_after_its_timeout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "show", f"folder://{tmp_path}", "--timeout", "0.1"]) == 0
    capsys.readouterr()
    clock = itertools.count(0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: next(clock))
        assert main(["store", "show", f"folder://{tmp_path}", "--timeout", "0.5", "--no-progress"]) == 1
    assert "--timeout SECONDS allows more" in capsys.readouterr().err
