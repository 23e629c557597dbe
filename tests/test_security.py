"""Tests the promises of SECURITY.md that no other test checks: kvpool opens no connection, starts no
program, and prints no secret.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvpool

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]

#: An audit hook that ends the process when it opens a connection, starts a program, or loads code from
#: data. CPython notifies hooks of all these events.
GUARD = """
import sys

WHOLE = {"socket", "subprocess", "pickle", "urllib", "ftplib", "http", "smtplib", "webbrowser"}
PARTS = {"os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"}

def guard(event, arguments):
    if event.partition(".")[0] in WHOLE or event in PARTS:
        raise SystemExit(f"{event} {arguments}")

sys.addaudithook(guard)
"""
#: Modules that can open connections, start programs, or make objects from bytes.
REACHES_OUT = (
    {"socket", "socketserver", "ssl", "http", "urllib", "ftplib", "smtplib", "xmlrpc", "asyncio", "selectors"}
    | {"subprocess", "multiprocessing", "pty", "webbrowser"}
    | {"pickle", "marshal", "shelve", "dbm", "dill", "cloudpickle", "yaml", "runpy", "code", "ctypes"}
)
RUNS_TEXT = {"eval", "exec", "compile", "__import__", "system", "popen", "execv", "execve", "spawnv"}


def guarded(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", GUARD + code, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('127.0.0.1', 1))",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import pickle; pickle.loads(pickle.dumps(sys.path))\nclass A: pass\npickle.loads(pickle.dumps(A()))",
    ],
)
def test_the_guard_guards(code: str) -> None:
    done = guarded(code)
    assert done.returncode == 1
    assert re.match(r"(socket|subprocess|os|pickle)\.", done.stderr)


def test_an_import_opens_no_connection_and_starts_no_program() -> None:
    modules = (
        "kvpool, kvpool.cli, kvpool.lineage, kvpool.sizing, kvpool.transfer, kvpool.integrations.vllm, "
        "kvpool.testing"
    )
    done = guarded(f"import {modules}; print('imported')")
    assert (done.stdout, done.stderr, done.returncode) == ("imported\n", "", 0)


@pytest.mark.parametrize("command", [("trace", "stats"), ("trace", "validate"), ("size",), ("replay",)])
def test_a_trace_is_read_and_never_run(command: tuple[str, ...], tmp_path: Path) -> None:
    trace = tmp_path / "$(touch ran) `touch ran`; __import__('os').mkdir('ran').jsonl"
    line = {
        "timestamp": 0,
        "input_length": 1024,
        "output_length": 1,
        "hash_ids": [1, 7],
        "x": "!!python/object:os.x",
    }
    lines = [line | {"timestamp": at, "hash_ids": [at // 2, at // 2 + 50]} for at in range(20)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    code = (
        "import os; os.chdir(sys.argv[1]); sys.argv[1:] = sys.argv[2:]; "
        "from kvpool.cli import main; sys.exit(main())"
    )
    done = guarded(code, str(tmp_path), *command, str(trace))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [trace.name]


def test_no_source_of_the_package_reaches_out_or_runs_text() -> None:
    found: list[str] = []
    for path in sorted((ROOT / "python" / "kvpool").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [(node.module or "").partition(".")[0]]
            elif isinstance(node, ast.Call):
                called = node.func
                name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
                # A call of re.compile does not compile Python code.
                owner = getattr(getattr(called, "value", None), "id", "")
                names = [name] if name in RUNS_TEXT and (name, owner) != ("compile", "re") else []
            found += [
                f"{path.name}: {ast.unparse(node)}" for name in names if name in REACHES_OUT | RUNS_TEXT
            ]
    assert found == [
        # A publisher of KV events uses the socket module to close connections beyond its limit. It
        # exists only if a caller makes one.
        "zmq_bounds.py: import socket as sockets",
        "zmq_bounds.py: from urllib.parse import urlsplit",
        # `kvpool top` and `kvpool store show mooncake://` read a page from the URL that the user
        # passes.
        "fetch.py: import http.client",
        "fetch.py: import urllib.error",
        "fetch.py: import urllib.request",
        # kvpool.metrics serves a page only if a caller starts the server.
        "bounds.py: import http.client",
        "bounds.py: import socket",
        "bounds.py: from socketserver import ThreadingMixIn",
        # These files are back ends of a store that a caller requests. The packages that they import move
        # the bytes. Splitting a URL opens no connection.
        "mooncake.py: import ctypes",
        "s3.py: import asyncio",
        "s3.py: import ctypes",
        "urls.py: from urllib.parse import parse_qsl, unquote, unquote_to_bytes, urlsplit",
        "urls.py: from urllib.parse import SplitResult",
    ]


def test_one_source_opens_connections_and_none_starts_a_program() -> None:
    reaches = re.compile(
        r"std::net\b|std::os::unix::net\b|process::Command|\bCommand::new\b|TcpStream|UdpSocket|UnixStream"
    )
    sources = [
        path
        for path in (ROOT / "rust").glob("*/src/**/*.rs")
        if reaches.search(path.read_text(encoding="utf-8"))
    ]
    assert sources == [ROOT / "rust/kvpool-store/src/redis/stream.rs"]


#: Crates with unsafe code, and the files that may contain it.
UNSAFE = {
    "kvpool-transfer": {
        "cpu.rs",
        "driver/api.rs",
        "driver/context.rs",
        "driver/enqueue.rs",
        "driver/mod.rs",
        "driver/objects.rs",
        "engine/calibrate.rs",
        "memory.rs",
        "store/mod.rs",
    },
    "kvpool-store": {"arena.rs", "disk/ring.rs"},
    "kvpool-prefetch": {"lib.rs"},
    "kvpool-py": {
        "convert.rs",
        "python/exit.rs",
        "store/arena.rs",
        "transfer/mapping.rs",
        "transfer/store.rs",
    },
}


def test_unsafe_code_is_where_security_md_says() -> None:
    unsafe = re.compile(r"^(?!\s*//).*\bunsafe\s*(\{|fn\b|impl\b|extern\b)", re.MULTILINE)
    for crate in sorted((ROOT / "rust").iterdir()):
        sources = crate / "src"
        has = {
            str(path.relative_to(sources))
            for path in sources.rglob("*.rs")
            # Leave out the tests at the end of a file, which are not part of the wheel.
            if unsafe.search(path.read_text(encoding="utf-8").partition("#[cfg(test)]")[0])
        }
        assert has <= UNSAFE.get(crate.name, set()), crate.name
        # A crate without sources of its own compiles the sources of another crate.
        if crate.name not in UNSAFE and sources.exists():
            assert "#![forbid(unsafe_code)]" in (sources / "lib.rs").read_text(encoding="utf-8"), crate.name


SECRETS = ("salt-of-the-gateway", "tenant-acme", "user-mallory", "seed-of-them-all", "k" * 32)
FIRST_TOKEN = 4_070_809_000


def told_secrets(text: str) -> list[str]:
    tokens = (str(token) for token in range(FIRST_TOKEN, FIRST_TOKEN + 10))
    return [secret for secret in (*SECRETS, *tokens) if secret in text]


def test_printed_text_contains_no_secret() -> None:
    salt, tenant, user, seed, key = SECRETS
    extra = kvpool.ExtraKeys(salt=salt, tenant=tenant, user=user, multimodal=[(user, 1, 2)])
    settings: dict[str, Any] = {"algorithm": "blake3", "verify": "tokens", "key": key.encode(), "seed": seed}
    manager = kvpool.CacheManager(20, 4, event_capacity=10, **settings)
    hasher = kvpool.BlockHasher("blake3", 4, verify="tokens", key=key.encode(), seed=seed)
    prompt = range(FIRST_TOKEN, FIRST_TOKEN + 10)
    cursor = manager.prepare(prompt, extra)
    admission = manager.admit("request", cursor)
    manager.commit("request", 9)
    objects = [
        extra,
        manager,
        hasher,
        cursor,
        admission,
        cursor.chain(),
        manager.stats(),
        manager.request("request"),
    ]
    objects += [manager.probe(cursor), *manager.take_events()]
    assert manager.probe(cursor).cached_blocks == 2
    for thing in objects:
        assert told_secrets(f"{thing!r} {thing!s}") == []

    refusals: list[Callable[[], object]] = [
        lambda: manager.admit("request", cursor),
        lambda: manager.admit("other", cursor, extra),
        lambda: kvpool.BlockHasher("sha256", 4, key=key.encode(), seed=seed),
        lambda: kvpool.BlockHasher("blake3", 4, key=key.encode() + b"k", seed=seed),
        lambda: kvpool.BlockHasher("vllm-sha256", 4, seed=seed).hash_tokens(prompt, extra),
        lambda: kvpool.CacheManager(20, 8, **settings).admit("request", cursor),
    ]
    for refused in refusals:
        with pytest.raises(kvpool.KvpoolError) as raised:
            refused()
        assert told_secrets(f"{raised.value!r} {raised.value}") == []


def test_a_tenant_for_accounting_separates_no_prompts_and_extra_keys_do() -> None:
    manager = kvpool.CacheManager(40, 4, retention=True)
    prompt = range(10)
    manager.admit("a", prompt, tenant=1)
    manager.commit("a", 10)
    assert manager.admit("b", prompt, tenant=2).cached_tokens == 8
    assert manager.admit("c", prompt, kvpool.ExtraKeys(tenant="2"), tenant=2).cached_tokens == 0
    assert manager.admit("d", prompt, kvpool.ExtraKeys(salt="2"), tenant=1).cached_tokens == 0


def test_every_test_that_security_md_names_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+\.(?:rs|py))::(\w+)`", text)
    assert len(named) > 20
    for file, test in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^\s*(?:fn|def) {test}\b", source, re.MULTILINE), f"{file}::{test}"
    for file in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", text):
        assert (ROOT / file).is_file(), file
