"""Tests replays: numbers in lookup mode that were computed by hand, sums and determinism in engine
mode, and invalid traces.
"""

from __future__ import annotations

import gzip
import json
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

import kvpool

if TYPE_CHECKING:
    from pathlib import Path

    from kvpool._core import ReplayMode


def line(ids: list[int], tokens: int | None = None, *, at: float = 0, output: int = 1, block: int = 4) -> str:
    length = len(ids) * block if tokens is None else tokens
    return json.dumps({"timestamp": at, "input_length": length, "output_length": output, "hash_ids": ids})


def trace(*lines: str, block: int = 4) -> kvpool.traces.Trace:
    return kvpool.traces.Trace.parse("\n".join(lines).encode(), block_tokens=block)


def report(trace: kvpool.traces.Trace, **settings: Any) -> dict[str, Any]:
    replay = kvpool.traces.Replay(trace, **settings)
    assert replay.advance() == replay.total == len(trace)
    replay.check_invariants()
    found: dict[str, Any] = json.loads(replay.report_json())
    return found


def test_a_prompt_seen_before_is_a_full_hit() -> None:
    found = report(trace(line([1, 2, 3]), line([1, 2, 3])), block_size=4, capacity_blocks=10)
    hits = found["hits"]
    assert (hits["requests"], hits["blocks"], hits["block_hits"]) == (2, 6, 3)
    assert (hits["tokens"], hits["token_hits"]) == (24, 12)
    assert (found["block_hit_rate"], found["token_hit_rate"]) == (0.5, 0.5)
    assert (found["last_half"]["block_hits"], found["last_half"]["blocks"]) == (3, 3)
    assert found["last_half_token_hit_rate"] == 1.0
    assert (found["allocated"], found["evicted"], found["collisions"]) == (3, 0, 0)


def test_hits_end_at_the_first_block_that_differs() -> None:
    found = report(trace(line([1, 2, 3]), line([1, 2, 4, 5]), line([6])), block_size=4, capacity_blocks=10)
    assert (found["hits"]["blocks"], found["hits"]["block_hits"]) == (8, 2)
    assert found["block_hit_rate"] == 0.25


def test_a_partial_last_block_weighs_its_tokens() -> None:
    # Ten tokens are two and a half blocks of 4. The second request also hits the half block, which
    # counts as two tokens.
    found = report(trace(line([1, 2, 3], 10), line([1, 2, 3], 10)), block_size=4, capacity_blocks=10)
    hits = found["hits"]
    assert (hits["blocks"], hits["block_hits"]) == (6, 3)
    assert (hits["full_blocks"], hits["full_block_hits"]) == (4, 2)
    assert (hits["tokens"], hits["token_hits"]) == (20, 10)
    assert (found["full_block_hit_rate"], found["token_hit_rate"]) == (0.5, 0.5)


def test_blocks_that_the_trace_does_not_name_are_never_hit() -> None:
    # The ids of such a trace leave partial blocks out. So ten tokens have only two ids.
    found = report(trace(line([1, 2], 10), line([1, 2], 10)), block_size=4, capacity_blocks=10)
    hits = found["hits"]
    assert (hits["blocks"], hits["block_hits"], hits["tokens"], hits["token_hits"]) == (4, 2, 20, 8)


@pytest.mark.parametrize(
    ("last", "hits"),
    [
        # The pool has three blocks, which contain the trace's blocks 1, 2 and 3. Then the trace uses block 1
        # again, so block 4 replaces the least recently used one, block 2.
        ([1], 2),
        ([2], 1),
        ([3], 2),
        ([4], 2),
    ],
)
def test_the_least_recently_used_block_goes_first(last: list[int], hits: int) -> None:
    found = report(
        trace(line([1]), line([2]), line([3]), line([1]), line([4]), line(last)),
        block_size=4,
        capacity_blocks=3,
    )
    assert found["hits"]["block_hits"] == hits
    assert found["evicted"] == 1 + (last == [2])


@pytest.mark.parametrize(("last", "hits"), [([1], 1), ([1, 2], 2), ([1, 2, 3], 2)])
def test_the_deepest_block_of_a_prompt_is_evicted_first(last: list[int], hits: int) -> None:
    found = report(trace(line([1, 2, 3]), line([9]), line(last)), block_size=4, capacity_blocks=3)
    assert found["hits"]["block_hits"] == hits


def test_a_prompt_larger_than_the_pool_is_stored_up_to_its_capacity() -> None:
    found = report(trace(line([1, 2, 3, 4, 5]), line([1, 2, 3, 4, 5])), block_size=4, capacity_blocks=3)
    assert (found["hits"]["block_hits"], found["hits"]["blocks"]) == (3, 10)


def test_smaller_blocks_hit_what_larger_ones_hit() -> None:
    lines = [line([1, 2, 3], 10), line([1, 2, 4]), line([1, 2, 3], 10)]
    # A block has two tokens, so the requests have 5, 6 and 5 blocks. The second request hits 4 blocks,
    # and the third one 5.
    found = report(trace(*lines), block_size=2, capacity_blocks=100)
    assert (found["hits"]["blocks"], found["hits"]["block_hits"], found["hits"]["token_hits"]) == (16, 9, 18)
    found = report(trace(*lines), block_size=4, capacity_blocks=100)
    assert (found["hits"]["blocks"], found["hits"]["block_hits"], found["hits"]["token_hits"]) == (9, 5, 18)


def test_the_figures_do_not_depend_on_algorithm_or_verification() -> None:
    made = kvpool.traces.Trace.generate(60, seed=5)
    hits = [
        report(made, capacity_blocks=3000, algorithm=algorithm, verify=verify, seed=seed)["hits"]
        for algorithm, verify, seed in [
            ("sha256", "none", None),
            ("blake3", "fingerprint", None),
            ("xxh3", "tokens", "x"),
            ("vllm-sha256-cbor", "none", "0"),
        ]
    ]
    assert hits == [hits[0]] * 4


def test_an_endless_pool_finds_everything_that_was_there_before() -> None:
    made = kvpool.traces.Trace.generate(80, seed=2, block_tokens=16)
    seen: set[int] = set()
    blocks = found = 0
    for text in made.to_jsonl().splitlines():
        ids = json.loads(text)["hash_ids"]
        blocks += len(ids)
        found += sum(one in seen for one in ids)
        seen |= set(ids)
    summary = made.summary()
    assert (summary["block_references"], summary["unique_blocks"]) == (blocks, len(seen))
    hits = report(made, block_size=16, capacity_blocks=blocks)["hits"]
    assert (hits["blocks"], hits["block_hits"]) == (blocks, found)


def test_progress_is_in_requests() -> None:
    made = kvpool.traces.Trace.generate(10, seed=1)
    replay = kvpool.traces.Replay(made, capacity_blocks=10_000)
    assert [replay.advance(n) for n in (0, 3, 3, 3, 3, 3)] == [0, 3, 6, 9, 10, 10]
    assert json.loads(replay.report_json())["hits"] == report(made, capacity_blocks=10_000)["hits"]


@pytest.mark.parametrize("threads", [1, 2, 0])
def test_engine_mode_is_deterministic(threads: int) -> None:
    made = kvpool.traces.Trace.generate(60, seed=7, rate_per_s=50.0)
    settings: dict[str, Any] = {"mode": "engine", "capacity_blocks": 3000, "step_tokens": 2048}
    assert report(made, **settings, threads=threads) == report(made, **settings, threads=1)


def test_the_whole_report_of_lookup_mode_is_deterministic() -> None:
    made = kvpool.traces.Trace.generate(60, seed=7)
    assert report(made, capacity_blocks=1000, threads=1) == report(made, capacity_blocks=1000, threads=2)


def test_every_request_is_finished_and_counted_once() -> None:
    made = kvpool.traces.Trace.generate(60, seed=3, rate_per_s=50.0)
    summary = made.summary()
    found = report(made, mode="engine", capacity_blocks=100_000)
    hits, engine = found["hits"], found["engine"]
    assert (hits["requests"], hits["tokens"]) == (60, summary["input_tokens"])
    assert engine["decode_appends"] == summary["output_tokens"]
    assert (engine["rejected"], engine["preemptions"], engine["resumed_tokens"]) == (0, 0, 0)
    assert 0 < engine["peak_running"] <= 60
    assert 0 < hits["token_hits"] < hits["tokens"]
    assert hits["token_hits"] == 16 * hits["block_hits"]
    assert engine["virtual_seconds"] * 1000 >= summary["span_ms"]


def server(arrivals: list[float], outputs: list[int] | None = None) -> dict[str, Any]:
    """Replays requests on an engine that runs one request at a time, with 10 ms per output token and no
    time for the prompt. Returns the engine's part of the report.
    """
    outputs = outputs or [10] * len(arrivals)
    lines = [
        line([one], at=at, output=output)
        for one, (at, output) in enumerate(zip(arrivals, outputs, strict=True))
    ]
    settings: dict[str, Any] = {"max_running": 1, "step_ms": 10.0, "prefill_tokens_per_s": float("inf")}
    engine: dict[str, Any] = report(
        trace(*lines), mode="engine", block_size=4, capacity_blocks=1000, **settings
    )["engine"]
    return engine


def test_more_arrive_than_are_served() -> None:
    # The engine can serve ten requests per second, but twenty arrive. At 950 ms, when the last request
    # arrives, nine are finished and one is running.
    engine = server([50 * one for one in range(20)])
    assert engine["overloaded"] is True
    assert engine["arrivals_per_s"] == pytest.approx(20 / 0.95)
    # From 50 ms to 1,900 ms some requests wait, and nineteen are finished in that time.
    assert engine["served_per_s"] == pytest.approx(19 / 1.85)
    assert (engine["waiting_at_last_arrival"], engine["peak_waiting"]) == (10, 10)
    assert engine["virtual_seconds"] == pytest.approx(2.0)


def test_no_request_waits_for_a_server_without_overload() -> None:
    engine = server([200 * one for one in range(20)])
    assert (engine["overloaded"], engine["served_per_s"], engine["peak_waiting"]) == (False, None, 0)
    assert engine["arrivals_per_s"] == pytest.approx(20 / 3.8)


@pytest.mark.parametrize(
    ("arrivals", "outputs"),
    [
        ([0, 0, 0, 0, 0, *range(1000, 6000, 500)], None),
        # Several requests arrive together at the end. This is no overload, because the engine could
        # serve this number over time.
        ([*range(0, 5000, 500), 5000, 5000, 5000], None),
        # One request takes ten seconds, and others wait for it. Their first tokens are late, but all of them
        # are finished when the last request arrives, so this is no overload.
        ([float(at) for at in range(0, 60_000, 1000)], [10] * 20 + [1000] + [10] * 39),
    ],
    ids=["at the beginning", "at the end", "behind a long one"],
)
def test_a_rush_is_no_overload(arrivals: list[float], outputs: list[int] | None) -> None:
    engine = server(arrivals, outputs)
    assert engine["overloaded"] is False
    assert engine["peak_waiting"] >= 2


def test_all_at_once_has_no_rate() -> None:
    engine = server([7.0] * 20)
    assert (engine["overloaded"], engine["arrivals_per_s"]) == (False, None)
    assert engine["waiting_at_last_arrival"] == 19
    assert engine["served_per_s"] == pytest.approx(10)


def test_what_can_never_fit_takes_no_time() -> None:
    made = trace(
        *(line([one] if one % 2 else list(range(90, 99)), at=100 * one, output=9) for one in range(20))
    )
    settings: dict[str, Any] = {"max_running": 1, "step_ms": 10.0, "prefill_tokens_per_s": float("inf")}
    engine = report(made, mode="engine", block_size=4, capacity_blocks=8, **settings)["engine"]
    assert (engine["rejected"], engine["overloaded"]) == (10, False)
    assert engine["arrivals_per_s"] == pytest.approx(10 / 1.9)


def test_a_tiny_pool_preempts_and_still_finishes_all() -> None:
    lines = [line([10 * one, 10 * one + 1], at=one, output=24) for one in range(6)]
    made = trace(*lines)
    found = report(made, mode="engine", block_size=4, capacity_blocks=14)
    engine = found["engine"]
    assert engine["preemptions"] > 0
    assert engine["rejected"] == 0
    # Every output token is computed exactly once, however often its request was preempted.
    assert engine["decode_appends"] == 6 * 24
    assert (found["hits"]["requests"], found["hits"]["tokens"], found["hits"]["token_hits"]) == (6, 48, 0)
    assert engine["resumed_tokens"] >= 8 * engine["preemptions"]
    assert 0 <= engine["resumed_token_hits"] <= engine["resumed_tokens"]
    roomy = report(made, mode="engine", block_size=4, capacity_blocks=100)
    assert roomy["engine"]["preemptions"] == 0
    assert roomy["engine"]["steps"] < engine["steps"]


def test_a_request_that_never_fits_is_rejected_and_the_others_run() -> None:
    made = trace(line([1, 2]), line(list(range(10, 20))), line([1, 2], at=500))
    found = report(made, mode="engine", block_size=4, capacity_blocks=8)
    assert found["engine"]["rejected"] == 1
    assert (found["hits"]["requests"], found["hits"]["tokens"]) == (2, 16)
    # The last token of a prompt must be computed, so only one of its two blocks is a hit.
    assert found["hits"]["block_hits"] == 1
    assert found["engine"]["decode_appends"] == 2


def test_output_that_outgrows_the_pool_is_rejected() -> None:
    found = report(trace(line([1], output=100)), mode="engine", block_size=4, capacity_blocks=5)
    # Five blocks have 20 slots, for the 4 tokens of the prompt and for 16 more.
    assert (found["engine"]["rejected"], found["engine"]["decode_appends"]) == (1, 16)


def test_prefill_takes_as_many_steps_as_its_budget_needs() -> None:
    made = trace(line(list(range(10)), output=1))
    one = report(made, mode="engine", block_size=4, capacity_blocks=50, step_tokens=40)["engine"]
    four = report(made, mode="engine", block_size=4, capacity_blocks=50, step_tokens=10)["engine"]
    assert four["steps"] == one["steps"] + 3
    assert one["mean_time_to_first_token_ms"] == pytest.approx(20 + 40 / 50)
    assert four["mean_time_to_first_token_ms"] == pytest.approx(4 * 20 + 40 / 50)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_more_requests_run_than_allowed(most: int) -> None:
    made = trace(*[line([one], output=8) for one in range(8)])
    engine = report(made, mode="engine", block_size=4, capacity_blocks=100, max_running=most)["engine"]
    assert engine["peak_running"] == most


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "both"}, "both"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": 3}, "block_size is 3.*divisor of the trace's 4"),
        ({"capacity_blocks": 0}, "capacity_blocks is 0"),
        ({"capacity_blocks": -1}, "capacity_blocks is -1"),
        ({"mode": "engine", "max_running": 0}, "max_running is 0"),
        ({"mode": "engine", "step_tokens": 0}, "step_tokens is 0"),
        ({"mode": "engine", "step_ms": 0.0}, "step_ms is 0"),
        ({"mode": "engine", "step_ms": float("inf")}, "step_ms is inf"),
        ({"mode": "engine", "prefill_tokens_per_s": float("nan")}, "prefill_tokens_per_s is NaN"),
        ({"mode": "engine", "watermark": 1.5}, "watermark is 1.5"),
        ({"threads": -1}, "threads is -1"),
        ({"algorithm": "md5"}, "md5"),
        ({"eviction": "newest"}, "newest"),
    ],
    ids=str,
)
def test_settings_out_of_range(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(kvpool.errors.InvalidArgumentError, match=words):
        kvpool.traces.Replay(trace(line([1])), **{"block_size": 4, **settings})


GOOD = line([1, 2])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("{", "line 3"),
        ("not json", "line 3"),
        ("[1, 2]", "line 3.*an array"),
        ("5", "line 3.*a number"),
        ('{"timestamp": 0}', "line 3.*input_length"),
        (GOOD.replace('"timestamp": 0', '"timestamp": "0"'), "line 3.*timestamp.*a string"),
        (GOOD.replace('"timestamp": 0', '"timestamp": -1'), "line 3.*timestamp.*-1"),
        (GOOD.replace('"input_length": 8', '"input_length": -8'), "line 3.*input_length.*-8"),
        (GOOD.replace('"input_length": 8', '"input_length": 8.5'), "line 3.*input_length.*8.5"),
        (GOOD.replace('"input_length": 8', f'"input_length": {2**32}'), f"line 3.*input_length.*{2**32}"),
        (GOOD.replace('"input_length": 8', '"input_length": 0'), "line 3.*input_length"),
        (GOOD.replace('"output_length": 1', '"output_length": null'), "line 3.*output_length.*null"),
        (GOOD.replace("[1, 2]", "[1, -2]"), r"line 3.*hash_ids\[1\].*-2"),
        (GOOD.replace("[1, 2]", '[1, "2"]'), r"line 3.*hash_ids\[1\].*a string"),
        (GOOD.replace("[1, 2]", "7"), "line 3.*hash_ids.*a number"),
        (GOOD.replace("[1, 2]", "[1, 2, 3]"), "line 3"),
        (GOOD.replace("[1, 2]", "[]"), "line 3"),
        (line([5, 2]), "line 3.*2"),
        (line([2, 1]), "line 3"),
        (line([7, 7]), "line 3.*7"),
    ],
    ids=lambda one: one[:40],
)
def test_a_bad_line_is_named(bad: str, words: str) -> None:
    data = "\n".join([GOOD, "", bad, GOOD]).encode()
    with pytest.raises(kvpool.errors.TraceError, match=words) as raised:
        kvpool.traces.Trace.parse(data, block_tokens=4)
    assert isinstance(raised.value, ValueError)
    assert not isinstance(raised.value, OSError)


def test_time_does_not_go_backwards() -> None:
    with pytest.raises(kvpool.errors.TraceError, match=r"line 2.*timestamp"):
        trace(line([1], at=5), line([1], at=4))


def test_an_id_with_two_parents_is_refused_unless_not_checked() -> None:
    data = "\n".join([line([1, 2]), line([3, 2])]).encode()
    with pytest.raises(kvpool.errors.TraceError, match=r"line 2.*2"):
        kvpool.traces.Trace.parse(data, block_tokens=4)
    assert len(kvpool.traces.Trace.parse(data, block_tokens=4, check_prefixes=False)) == 2


# The archives contain no time. The name of a test contains its archive, and all processes of a test run
# must have the same names.
@pytest.mark.parametrize("data", [b"", b"\n\n  \n", gzip.compress(b"", mtime=0), b"\xef\xbb\xbf"])
def test_a_trace_without_requests_is_refused(data: bytes) -> None:
    with pytest.raises(kvpool.errors.TraceError) as raised:
        kvpool.traces.Trace.parse(data)
    assert str(raised.value)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"block_tokens": 0}, kvpool.errors.TraceError, "block_tokens.*0"),
        ({"limit": 0}, kvpool.errors.TraceError, "limit.*0"),
        ({"block_tokens": -1}, kvpool.errors.InvalidArgumentError, "block_tokens is -1"),
        ({"limit": -5}, kvpool.errors.InvalidArgumentError, "limit is -5"),
    ],
    ids=str,
)
def test_options_out_of_range(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        kvpool.traces.Trace.parse(GOOD.encode(), **options)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join([GOOD] * 1000).encode())[:-12])
    with pytest.raises(kvpool.errors.TraceError):
        kvpool.traces.Trace.read(path, block_tokens=4)


@pytest.mark.parametrize("name", ["missing.jsonl", "no/such/folder.jsonl", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(kvpool.errors.TraceFileError) as raised:
        kvpool.traces.Trace.read(tmp_path / name)
    assert isinstance(raised.value, OSError)
    assert isinstance(raised.value, kvpool.KvpoolError)
    assert name == "." or name in str(raised.value)


def test_files_plain_and_gzip_are_the_same_trace(tmp_path: Path) -> None:
    made = kvpool.traces.Trace.generate(30, seed=4)
    data = made.to_jsonl()
    (tmp_path / "plain").write_bytes(data)
    (tmp_path / "zipped").write_bytes(gzip.compress(data))
    for path in (tmp_path / "plain", tmp_path / "zipped", str(tmp_path / "plain")):
        read = kvpool.traces.Trace.read(path)
        assert (read.to_jsonl(), read.summary()) == (data, made.summary())
    assert len(kvpool.traces.Trace.read(tmp_path / "zipped", limit=7)) == 7
    assert (
        data
        == kvpool.traces.Trace.generate(30, seed=4).to_jsonl()
        != kvpool.traces.Trace.generate(30, seed=5).to_jsonl()
    )


@pytest.mark.parametrize("mode", ["lookup", "engine"])
def test_an_advance_can_be_interrupted(mode: ReplayMode) -> None:
    """A signal's handler runs during the replay and raises an error. The replay keeps the requests that
    it has replayed, and can continue.
    """
    made = kvpool.traces.Trace.generate(2000, block_tokens=16)
    whole = kvpool.traces.Replay(made, mode=mode, block_size=16)
    whole.advance()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def attempt() -> kvpool.traces.Replay:
        replay, started = kvpool.traces.Replay(made, mode=mode, block_size=16), threading.Event()

        def send() -> None:
            started.wait()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        sender = threading.Thread(target=send)
        sender.start()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            started.set()
            replay.advance()
            while True:  # the signal arrives here at the latest
                pass
        sender.join()
        return replay

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        # The signal may arrive before the call, or after a quick call. In one of a hundred attempts it
        # has to arrive during the call.
        attempts = (attempt() for _ in range(100))
        replay = next((one for one in attempts if 0 < one.advance(0) < one.total), None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert replay is not None, "no advance was interrupted"
    replay.check_invariants()
    assert replay.advance() == replay.total
    assert json.loads(replay.report_json())["hits"] == json.loads(whole.report_json())["hits"]
