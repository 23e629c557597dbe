"""Tests ``kvpool top``: a page and a journal show the manager's numbers. Also tests live readings, exit
codes and hostile pages.

Runs the commands of docs/metrics.md on a journal of its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shlex
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

import kvpool
from kvpool.cli import main, top
from kvpool.cli.top_reading import PageError, of_samples, read_url, summary
from kvpool.cli.top_view import _count, _seconds, screen
from kvpool.journal import Journal, observe_journal
from kvpool.metrics import Metrics
from tests.test_metrics import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).resolve().parent.parent / "docs"


def run(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["top", *arguments])
    return code, out.getvalue(), err.getvalue()


def worked(journal: Path | None = None, seed: int = 11, steps: int = 250) -> kvpool.CacheManager:
    """Returns a manager after a number of steps, which its journal contains."""
    manager = kvpool.CacheManager(
        48,
        4,
        host_blocks=24,
        retention=True,
        advisor=True,
        explain=True,
        metrics=True,
        watermark=0.05,
        journal=None if journal is None else Journal(journal),
    )
    traffic = Traffic(manager, seed)
    for _ in range(steps):
        traffic.step()
    manager.journal.flush()
    return manager


@contextlib.contextmanager
def served(pages: list[bytes | int], kind: str = "text/plain") -> Iterator[str]:
    """Starts a server that answers each request with the next page, and later always with the last one.
    A number is a status code.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.pop(0) if len(pages) > 1 else pages[0]
            if isinstance(page, int):
                self.send_error(page)
                return
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


def test_a_page_says_what_the_manager_says() -> None:
    manager, metrics = worked(), Metrics(labels={"rank": "0"}, also=("vllm",))
    metrics.add("main", manager)
    told = summary(of_samples(metrics.collect()))
    stats = manager.stats()
    pool = told["pools"]["main"]
    assert pool["tiers"]["device"]["capacity_blocks"] == stats.pool.usable
    assert sum(pool["tiers"]["device"]["blocks"].values()) == stats.pool.usable
    assert pool["hit_ratio"] == stats.hit_tokens / stats.prompt_tokens
    assert sum(pool["missed_tokens"].values()) == stats.computed_tokens
    assert pool["swapped"] == {"out": stats.swapped_out, "in": stats.swapped_in}
    assert (
        pool["advice"]["curve"]["1"]
        == (
            manager.diagnose.advice()["curve"][4]["block_hit_rate"]  # type: ignore[index]
        )
    )
    with metrics.start_http(0) as server:
        assert summary(read_url(server.url, 30)) == told
        code, out, err = run(server.url, "--once", "--json", "--interval", "30")
        assert (code, err) == (0, "")
        assert json.loads(out) == {"source": server.url, **told}
        code, out, err = run(server.url, "--once", "--interval", "30")
        assert (code, err) == (0, "")
        for words in (
            "misses by reason",
            "evictions by cause",
            "tenants",
            "advice",
            "policies",
            "idle before eviction",
        ):
            assert words in out


@pytest.mark.parametrize("seed", range(3))
def test_a_journal_gives_the_figures_of_its_manager(tmp_path: Path, seed: int) -> None:
    """All numbers equal those of the page, except the reasons of misses, because a journal has no
    tokens. The sum over all reasons is equal.
    """
    path = tmp_path / "run.kvj"
    manager, metrics = worked(path, seed), Metrics()
    metrics.add("manager", manager)
    live = summary(of_samples(metrics.collect()))
    code, out, err = run(str(path), "--once", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told.pop("source") == str(path)
    operations = told.pop("operations")
    assert operations == kvpool.journal.read_journal(path).operations
    missed = [one["pools"]["manager"].pop("missed_tokens") for one in (live, told)]
    assert told == live
    assert sum(missed[0].values()) == sum(missed[1].values())


def test_the_views_of_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "run.kvj"
    manager = worked(path)
    views, report = observe_journal(path, every=100, explain=True)
    assert report.is_exact
    assert [view.operations for view in views] == [*range(100, report.operations, 100), report.operations]
    assert views[-1].stats is not None
    assert views[-1].pool == manager.stats().pool
    assert views[-1].host == manager.swaps.host_stats()
    assert views[-1].metrics == manager.diagnose.metrics()
    assert views[-1].advice == manager.diagnose.advice()
    (early,), _ = observe_journal(path, until=100, metrics=False)
    assert (early.operations, early.metrics, early.subject) == (100, [], "manager")
    assert early.pool == views[0].pool


def test_a_pool_knows_no_requests(tmp_path: Path) -> None:
    path = tmp_path / "pool.kvj"
    pool = kvpool.BlockPool(16, 4, journal=Journal(path))
    chain = kvpool.BlockHasher(block_size=4).cursor(range(16)).chain()
    blocks = pool.allocate(4)
    pool.register(blocks, chain)
    pool.mark_computed(blocks)
    pool.match_and_acquire(chain)
    pool.journal.flush()
    code, out, _ = run(str(path), "--once")
    assert code == 0
    assert "blocks that lookups asked for" in out
    assert "100.0 %" in out
    assert "preemptions" not in out


class EnoughError(Exception):
    """Ends a loop that only Ctrl-C would end otherwise."""


def test_readings_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are computed from the clock. If a counter is lower than before, the server has restarted.
    If a page is missing, the command waits for it.
    """

    def page(prompt: int, hit: int) -> bytes:
        return (
            f'# TYPE kvpool_capacity_blocks gauge\nkvpool_capacity_blocks{{pool="main",tier="device"}} 9\n'
            f'# TYPE kvpool_prompt_tokens counter\nkvpool_prompt_tokens_total{{pool="main"}} {prompt}\n'
            f'# TYPE kvpool_hit_tokens counter\nkvpool_hit_tokens_total{{pool="main"}} {hit}\n'
        ).encode()

    times = iter([10.0, 14.0, 15.0, 16.0, 20.0])
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 4:
            raise EnoughError

    monkeypatch.setattr(top, "time", SimpleNamespace(monotonic=lambda: next(times), sleep=sleep))
    out, err = io.StringIO(), io.StringIO()
    with (
        served([page(100, 50), page(300, 90), 503, page(40, 10)]) as url,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(EnoughError),
    ):
        main(["top", url, "--json", "--interval", "30"])
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert slept == [30.0] * 4
    assert [one["seconds"] for one in told] == [None, 4.0, 2.0]
    last = [one["pools"]["main"]["last"] for one in told]
    assert last[0] is None
    assert (last[1]["hit_ratio"], last[1]["prompt_tokens_per_second"]) == (0.2, 50.0)
    assert (last[2]["hit_ratio"], last[2]["prompt_tokens_per_second"]) == (0.25, 20.0)
    assert "503" in err.getvalue()


def test_a_journal_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.kvj"
    worked(path)
    slept: list[float] = []
    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=slept.append))
    code, out, _ = run(str(path), "--frames", "5", "--interval", "0.25")
    assert code == 0
    assert slept == [0.25] * 4
    assert out.count("kvpool top") == 5
    code, out, _ = run(str(path), "--frames", "7", "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert (code, len(told), len(slept)) == (0, 7, 4)
    assert told[0]["pools"]["manager"]["last"] is None
    admitted = [one["pools"]["manager"]["tokens"]["prompt"] for one in told]
    assert admitted == sorted(admitted)
    assert told[3]["pools"]["manager"]["last"]["prompt_tokens_per_second"] is None


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    (block,) = re.findall(
        r"<!-- run by tests/test_cli_top.py -->\n```console\n(.*?)```", page, flags=re.DOTALL
    )
    worked(tmp_path / "run.kvj", steps=60)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=lambda _: None))
    commands = [shlex.split(line)[3:] for line in block.splitlines()]
    assert commands
    for command in commands:
        assert run(*command)[0] == 0, command


def test_how_it_ends(tmp_path: Path) -> None:
    code, out, err = run("http://127.0.0.1:1/metrics", "--once")
    assert (code, out) == (1, "")
    assert "refused" in err
    with served([b"# TYPE up gauge\nup 1\n"]) as url:
        code, out, err = run(url, "--once")
        assert (code, out) == (1, "")
        assert "no metric of kvpool's" in err
    with served([404]) as url:
        assert run(url)[0] == 1
    code, _, err = run("ftp://127.0.0.1/metrics")
    assert code == 2
    assert "http" in err
    for missing in (str(tmp_path / "none.kvj"), str(DOCS / "metrics.md")):
        assert run(missing, "--once")[0] == 2
    assert run(missing, "--frames", "0")[0] == 2
    empty = tmp_path / "empty.kvj"
    kvpool.CacheManager(9, 4, journal=Journal(empty)).journal.flush()
    code, _, err = run(str(empty), "--once")
    assert code == 2
    assert "no operations" in err


def test_a_different_answer_of_this_build_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.kvj"
    worked(path, steps=30)
    views, _ = observe_journal(path)

    class Differs:
        operations = views[-1].operations
        difference = type("Difference", (), {"operation": 1234})

    monkeypatch.setattr(kvpool.journal, "observe_journal", lambda *_, **__: (views, Differs))
    code, out, err = run(str(path), "--once")
    assert code == 1
    assert "kvpool top" in out
    assert "from operation 1,234 on" in err


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_server_sends_is_a_page_or_refused(seed: int) -> None:
    draw = random.Random(seed)
    metrics = Metrics()
    metrics.add("main", kvpool.CacheManager(16, 4, metrics=True))
    page = bytearray(metrics.render().encode())
    for _ in range(draw.randrange(1, 8)):
        at = draw.randrange(len(page))
        kind = draw.randrange(3)
        if kind == 0:
            page[at] = draw.randrange(256)
        elif kind == 1:
            del page[at : at + draw.randrange(200)]
        else:
            page[at:at] = draw.randbytes(draw.randrange(20))
    form = draw.choice(["text/plain", "application/openmetrics-text"])
    with served([bytes(page)], form) as url, contextlib.suppress(PageError):
        screen(summary(read_url(url, 30)), url)


def test_text_of_a_page_is_shown_and_not_obeyed() -> None:
    metrics = Metrics()
    metrics.add("a\x1b]0;title\x07", kvpool.CacheManager(16, 4, metrics=True))
    with metrics.start_http(0) as server:
        code, out, _ = run(server.url, "--once", "--interval", "30")
    assert code == 0
    assert "\x1b" not in out
    assert r"a\x1b]0;title\x07" in out


def test_numbers_in_words() -> None:
    assert [_count(value) for value in (0, 999, 1234, 45_600_000, 3e12)] == [
        "0",
        "999",
        "1.2 k",
        "45.6 M",
        "3.0 T",
    ]
    ages = [None, 0.25, 42.0, 600.0, 7200.0, 200_000.0]
    assert [_seconds(value) for value in ages] == ["-", "0.25 s", "42 s", "10 min", "2.0 h", "2.3 d"]


def test_a_poisoned_pool_is_reported() -> None:
    metrics: Any = Metrics()
    metrics.add("main", kvpool.CacheManager(16, 4))
    samples = metrics.collect()
    samples.values["kvpool_poisoned"] = [(("main",), 1.0)]
    told = summary(of_samples(samples))
    assert told["pools"]["main"]["poisoned"]
    out = io.StringIO()
    Console(file=out, width=120).print(screen(told, "here"))
    assert "refuses all work" in out.getvalue()
