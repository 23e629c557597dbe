"""Tests ``kvpool trace``, and every format of a trace on the command line: numbers, conversions,
one-line errors, exit codes.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import resource
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.cli import main
from tests.command import ENVIRONMENT, json_of, run

if TYPE_CHECKING:
    from pathlib import Path

    from kvpool._core import TraceFormat

pytestmark = pytest.mark.usefixtures("plain_output")

SESSIONS = """\
{"session_id": "a", "timestamp": 1000, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}
{"session_id": "a", "delay": 250, "input_length": 1100, "output_length": 2, "hash_ids": [0, 2, 3]}
{"session_id": "b", "timestamp": 400, "input_length": 20, "output_length": 3, "hash_ids": [8]}
"""
BAILIAN = (
    '{"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "output_length": 5, '
    '"type": "text", "turn": 1, "hash_ids": [9, 8, 7]}\n'
    '{"chat_id": 8, "parent_chat_id": 7, "timestamp": 2.25, "input_length": 64, "output_length": 5, '
    '"type": "file", "turn": 2, "hash_ids": [9, 8, 6, 9]}\n'
)
DOCUMENT = """\
{"id": "s", "block_size": 64, "requests": [
 {"t": 0, "type": "s", "in": 200, "out": 7, "hash_ids": [1, 2, 3], "model": "m"},
 {"t": 2, "type": "subagent", "agent_id": "x", "requests": [\
{"t": 3, "in": 128, "out": 1, "hash_ids": [1, 4]}]},
 {"t": 9, "type": "n", "in": 260, "out": 2, "hash_ids": [1, 2, 3, 5], "think_time": 0.5}]}
"""
ROWS = """\
{"block_size": 64, "hash_ids": [5, 6], "input_length": 128}
{"block_size": 16, "hash_ids": [1, 2, 3, 4, 5], "input_length": 80, "timestamp": 7}
"""
STORED = '{"type": "BlockStored", "block_hashes": [%s], "parent_block_hash": %s, "block_size": 16}'
REMOVED = '{"type": "BlockRemoved", "block_hashes": [3]}'
EVENTS = (
    f'{{"ts": 100.0, "events": [{STORED % ("1, 2", "null")}]}}\n'
    f'{{"ts": 101.0, "events": [{STORED % ("3", "2")}, {REMOVED}]}}\n'
    f'{{"ts": 120.0, "events": [{STORED % ("4", "2")}]}}\n'
)
#: A trace in each format, with its numbers of requests, of tokens per block, and of references to
#: blocks.
GOOD = {
    "mooncake": (kvpool.traces.Trace.generate(30, seed=4).to_jsonl().decode(), 30, 512, None),
    "mooncake-sessions": (SESSIONS, 3, 512, 6),
    "bailian": (BAILIAN, 2, 16, 7),
    "kv-cache-tester": (DOCUMENT, 3, 64, 9),
    "block-rows": (ROWS, 2, 64, 4),
    "kv-events": (EVENTS, 2, 16, 6),
}


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.trace"
    path.write_text(GOOD[name][0])
    return path


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 1) -> tuple[str, str]:
    """Runs a command that fails. Returns its error and its hint."""
    assert main([str(argument) for argument in arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [*captured.err.splitlines(), "hint: "]
    assert lines[0].startswith("error: ")
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert len(lines) <= 3
    return lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ")


def test_every_format_is_covered_here() -> None:
    assert list(GOOD) == kvpool.traces.trace_formats()


@pytest.mark.parametrize("name", GOOD)
def test_reading(tmp_path: Path, name: TraceFormat) -> None:
    text, requests, block_tokens, references = GOOD[name]
    trace = kvpool.traces.Trace.parse(text.encode())
    assert (trace.format, len(trace), trace.block_tokens) == (name, requests, block_tokens)
    assert references is None or trace.summary()["block_references"] == references
    assert trace.notes()["records"] == (1 if name == "kv-cache-tester" else len(text.splitlines()))
    path = written(tmp_path, name)
    for again in (
        kvpool.traces.Trace.read(path),
        kvpool.traces.Trace.read(path, format=name),
        kvpool.traces.Trace.parse(gzip.compress(text.encode()), format=name),
    ):
        assert again.to_jsonl("mooncake-sessions") == trace.to_jsonl("mooncake-sessions")
        assert again.notes() == trace.notes()
    assert len(kvpool.traces.Trace.read(path, limit=1)) == 1


def test_a_made_up_trace_was_not_read() -> None:
    trace = kvpool.traces.Trace.generate(3)
    assert trace.format is None
    assert set(trace.notes().values()) == {0}


def test_reading_in_slices(tmp_path: Path) -> None:
    path = written(tmp_path, "mooncake")
    size = path.stat().st_size
    reader = kvpool.traces.TraceReader(path)
    seen = [reader.bytes_read]
    while not reader.advance(500):
        seen.append(reader.bytes_read)
    assert reader.total_bytes == reader.bytes_read == size
    assert seen == sorted(seen)
    assert reader.finish().to_jsonl() == path.read_bytes()
    for call in (reader.advance, reader.finish):
        with pytest.raises(kvpool.KvpoolError, match="has given its trace"):
            call()
    path.write_text('{"timestamp": 0}\n')
    reader = kvpool.traces.TraceReader(path)
    with pytest.raises(kvpool.errors.TraceError, match='line 1: "input_length" is missing'):
        reader.advance()
    with pytest.raises(kvpool.KvpoolError, match="or has failed"):
        reader.finish()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"format": "weka"}, kvpool.errors.InvalidArgumentError, 'unknown format "weka", known: mooncake, '),
        ({"block_tokens": -1}, kvpool.errors.InvalidArgumentError, "block_tokens is -1"),
        ({"event_gap_s": -0.5}, kvpool.errors.InvalidArgumentError, "event_gap_s is -0.5: must be 0 or more"),
        ({"event_gap_s": float("nan")}, kvpool.errors.InvalidArgumentError, "event_gap_s is NaN"),
        (
            {"sessions_at_once": 0},
            kvpool.errors.TraceError,
            "sessions_at_once is 0; allowed: 1 or more sessions",
        ),
        ({"limit": 0}, kvpool.errors.TraceError, "limit is 0; allowed: 1 or more requests"),
    ],
)
def test_bad_options(tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    path = written(tmp_path, "kv-events")
    for call in (
        lambda: kvpool.traces.Trace.read(path, **arguments),
        lambda: kvpool.traces.Trace.parse(EVENTS.encode(), **arguments),
        lambda: kvpool.traces.TraceReader(path, **arguments),
    ):
        with pytest.raises(error, match=re.escape(message)):
            call()


def test_event_gap() -> None:
    assert len(kvpool.traces.Trace.parse(EVENTS.encode(), event_gap_s=0.5)) == 3
    # In these events, blocks 3 and 4 both follow block 2. One request cannot have both, so block 4 belongs to
    # another request, whatever the allowed gap in time is.
    assert len(kvpool.traces.Trace.parse(EVENTS.encode(), event_gap_s=float("inf"))) == 2


def test_only_some_formats_are_written() -> None:
    trace = kvpool.traces.Trace.generate(3)
    for name in ("kv-cache-tester", "block-rows", "kv-events"):
        with pytest.raises(kvpool.errors.InvalidArgumentError, match=f"{name} is not written"):
            trace.to_jsonl(name)
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="one must divide the other"):
        trace.with_block_tokens(48)
    with pytest.raises(kvpool.errors.TraceError, match="block_tokens is 0"):
        trace.with_block_tokens(0)


def test_stats_by_hand(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stats = json_of(capsys, "trace", "stats", written(tmp_path, "mooncake-sessions"))
    assert stats["format"] == "mooncake-sessions"
    assert (stats["requests"], stats["sessions"], stats["span_s"]) == (3, 2, 0.85)
    assert (stats["block_references"], stats["unique_blocks"], stats["blocks_used_once"]) == (6, 5, 4)
    # The last request hits block 0 of the request before. That is 1 of 6 blocks, and 512 of 1,720
    # tokens.
    assert stats["ideal_block_hit_rate"] == pytest.approx(1 / 6)
    assert stats["ideal_token_hit_rate"] == pytest.approx(512 / 1720)
    assert stats["ideal_last_half_token_hit_rate"] == pytest.approx(512 / 1700)
    assert stats["ideal_full_block_hit_rate"] == pytest.approx(1 / 3)
    assert stats["input_length"] == {
        "mean": 1720 / 3,
        "p50": 600.0,
        "p90": 1000.0,
        "p99": 1090.0,
        "max": 1100.0,
    }
    assert stats["reuse_time_s"]["p50"] == 0.25
    assert (stats["prefix_violations"], stats["kinds"], stats["notes"]["untimed"]) == (0, [], 1)


def test_stats_counts_broken_prefixes_instead_of_refusing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "broken.jsonl"
    line = '{{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [{}, 9]}}\n'
    path.write_text(line.format(1) + line.format(2) + line.format(2))
    assert json_of(capsys, "trace", "stats", path)["prefix_violations"] == 2
    assert "line 2: id 9 follows id 2" in error_of(capsys, "trace", "validate", path)[0]


@pytest.mark.parametrize("name", GOOD)
def test_stats_to_read(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name)
    assert main(["trace", "stats", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    stats = json_of(capsys, "trace", "stats", path)
    figures = [f"{100 * stats[rate]:.2f} %" for rate in stats if rate.startswith("ideal_")]
    assert len(figures) == 4
    figures += [
        f"{stats[count]:,}" for count in ("requests", "block_references", "unique_blocks", "input_tokens")
    ]
    figures += [f"{stats['input_length'][point]:,.0f}" for point in ("mean", "p50", "p90", "p99", "max")]
    figures += [kind for kind, _ in stats["kinds"]]
    assert [figure for figure in [*figures, name] if figure not in captured.out] == []
    assert "\x1b" not in captured.out
    lines = captured.out.splitlines()
    assert max(map(len, lines[1:])) <= 80


def test_stats_of_stdin_and_of_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for number in range(3):
        (folder / f"trace_{number}.json").write_text(DOCUMENT.replace('"s"', f'"s{number}"', 1))
    stats = json_of(capsys, "trace", "stats", folder)
    assert (stats["requests"], stats["sessions"], stats["notes"]["records"]) == (9, 6, 3)
    one_by_one = json_of(capsys, "trace", "stats", folder, "--sessions-at-once", "1")
    assert (stats["span_s"], one_by_one["span_s"]) == (9.0, 27.0)
    piped = run(
        "trace",
        "stats",
        "-",
        "--json",
        stdin=b"".join(path.read_bytes() for path in sorted(folder.iterdir())),
    )
    assert (piped.returncode, piped.stderr) == (0, b"")
    assert {**json.loads(piped.stdout), "source": None} == {**stats, "source": None}


@pytest.mark.parametrize("name", GOOD)
def test_validate(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name)
    text, requests, block_tokens, _ = GOOD[name]
    assert main(["trace", "validate", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    first, *remarks = captured.out.splitlines()
    assert first == f"{path}: valid, {name}, {requests:,} requests in blocks of {block_tokens} tokens"
    notes = kvpool.traces.Trace.parse(text.encode()).notes()
    assert len(remarks) == sum(bool(count) for what, count in notes.items() if what != "records")
    facts = json_of(capsys, "trace", "validate", path)
    assert (facts["valid"], facts["format"], facts["notes"]) == (True, name, notes)


@pytest.mark.parametrize(
    ("name", "change", "message", "hint"),
    [
        ("bailian", ("2.25", "0.25"), "line 2: timestamp 250 ms is before 500 ms", "--sort puts"),
        (
            "bailian",
            ('"chat_id": 8', '"chat_id": []'),
            'line 2: "chat_id" is an array; allowed: a whole',
            "--format NAME",
        ),
        (
            "kv-cache-tester",
            ('"in": 260', '"in": -1'),
            'line 1: "requests[2].in" is -1; allowed: a whole',
            "--format NAME",
        ),
        (
            "block-rows",
            ('"block_size": 16', '"block_size": 48'),
            "line 2: blocks of 48 tokens cannot",
            "--format NAME",
        ),
        ("kv-events", ("[4]", "[4, 4]"), "line 3: block 4 was stored after another block", "--format NAME"),
        (
            "mooncake",
            ('"timestamp"', '"time"'),
            'line 1: "timestamp" is missing; needed: timestamp,',
            "kvpool generate",
        ),
    ],
)
def test_validate_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
    change: tuple[str, str],
    message: str,
    hint: str,
) -> None:
    path = written(tmp_path, name)
    path.write_text(GOOD[name][0].replace(*change, 1))
    error, said = error_of(capsys, "trace", "validate", path)
    assert error.startswith(f"{path}: {message}")
    assert said.startswith(hint)


def test_mixed_formats(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_text(BAILIAN + SESSIONS)
    error, hint = error_of(capsys, "trace", "validate", path)
    assert error == (
        f"{path}: line 3: a record of mooncake-sessions in a trace that begins as bailian; "
        "a trace has one format"
    )
    assert hint.startswith("--format NAME")


@pytest.mark.parametrize("command", ["stats", "validate", "convert"])
def test_files_that_are_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    rest: list[str | Path] = [tmp_path / "out", "--to", "bailian"] if command == "convert" else []
    error, _ = error_of(capsys, "trace", command, tmp_path / "none", *rest)
    assert error.startswith(f"cannot open {tmp_path}/none: No such file")
    error, _ = error_of(capsys, "trace", command, tmp_path, *rest)
    assert error == f"{tmp_path}: no .json or .jsonl file, plain or .gz, in this folder"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("to", ["mooncake", "mooncake-sessions", "bailian"])
def test_convert(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, to: TraceFormat) -> None:
    path, out = written(tmp_path, name), tmp_path / "out.jsonl.gz"
    assert main(["trace", "convert", str(path), str(out), "--to", to]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    trace = kvpool.traces.Trace.read(path)
    block = 16 if to == "bailian" else trace.block_tokens
    expected = trace.with_block_tokens(block)
    assert gzip.decompress(out.read_bytes()) == expected.to_jsonl(to)
    said = captured.err.splitlines()
    facts = expected.summary()
    assert said[0] == (
        f"{facts['requests']:,} requests, {facts['block_references']:,} blocks of {block} tokens, "
        f"{facts['unique_blocks']:,} different"
    )
    usual = 16 if to == "bailian" else 512
    assert (f"--trace-block-size {block}" in said[-1]) == (block != usual)
    knows_sessions = name in {"mooncake-sessions", "bailian", "kv-cache-tester"}
    assert any("which of" in line for line in said) == (to == "mooncake" and knows_sessions)
    stats = json_of(capsys, "trace", "stats", path)
    again = json_of(capsys, "trace", "stats", out, "--format", to, "--trace-block-size", str(block))
    for figure in ("requests", "input_tokens", "output_tokens", "span_s"):
        assert again[figure] == stats[figure]
    if stats["block_tokens"] % block == 0:
        assert again["ideal_token_hit_rate"] == pytest.approx(stats["ideal_token_hit_rate"])


def test_convert_to_larger_blocks_on_stdout(tmp_path: Path) -> None:
    path = written(tmp_path, "bailian")
    done = run("trace", "convert", path, "-", "--to", "mooncake-sessions", "--block-size", "32")
    assert done.returncode == 0
    assert done.stdout == kvpool.traces.Trace.read(path).with_block_tokens(32).to_jsonl("mooncake-sessions")
    assert b'"session_id": "7", "timestamp": 2250' in done.stdout
    assert b"lost: the kind of a request (text, file" in done.stderr


def test_convert_refuses_sizes_that_do_not_divide(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, out = written(tmp_path, "bailian"), tmp_path / "out"
    error, _ = error_of(
        capsys, "trace", "convert", path, out, "--to", "mooncake", "--block-size", "24", code=2
    )
    assert (
        error == "--block-size is 24: blocks of 16 tokens cannot be made into blocks of 24: "
        "one must divide the other"
    )
    assert not out.exists()


def convert(*arguments: str | Path) -> list[str]:
    return ["trace", "convert", *map(str, arguments), "--to", "bailian"]


def test_convert_never_overwrites_what_it_reads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "mooncake")
    before = path.read_bytes()
    (tmp_path / "folder").mkdir()
    part = tmp_path / "folder" / "part.jsonl"
    part.write_bytes(before)
    hard, soft, folder = tmp_path / "hard", tmp_path / "soft", tmp_path / "links"
    hard.hardlink_to(path)
    soft.symlink_to(path)
    folder.symlink_to(tmp_path / "folder")
    monkeypatch.chdir(tmp_path)
    for source, out in (
        (path, path),
        (path, hard),
        (path, soft),
        (soft, path),
        (path, path.name),
        (path, tmp_path / "folder" / ".." / path.name),
        (tmp_path / "folder", part),
        (folder, part),
    ):
        error, hint = error_of(capsys, *convert(source, out), code=2)
        assert error == f"{out} is what is read from {source}: nothing is overwritten"
        assert hint == "give another name"
        assert path.read_bytes() == part.read_bytes() == before
    # Any other existing file is overwritten. A new file may be written into the folder with the input
    # files.
    other = tmp_path / "other"
    other.write_text("old")
    for out in (other, tmp_path / "folder" / "new.txt"):
        assert main(convert(tmp_path / "folder", out)) == 0
        assert out.read_bytes() == kvpool.traces.Trace.read(path).with_block_tokens(16).to_jsonl("bailian")


def test_convert_never_overwrites_standard_input(tmp_path: Path) -> None:
    path = written(tmp_path, "mooncake")
    before = path.read_bytes()
    command = [sys.executable, "-m", "kvpool", *convert("-", path)]
    with path.open("rb") as stdin:
        done = subprocess.run(command, stdin=stdin, capture_output=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 2
    assert b"is what is read from standard input: nothing is overwritten" in done.stderr
    assert path.read_bytes() == before
    # If the output were appended to the input, the file would be no valid trace any more.
    with path.open("ab") as stdout:
        command = [sys.executable, "-m", "kvpool", *convert(path, "-")]
        assert subprocess.run(command, stdout=stdout, env=ENVIRONMENT, check=False).returncode == 2
    assert path.read_bytes() == before


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_no_picture_is_drawn_over_the_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    path = tmp_path / f"trace.{option[2:]}"
    path.write_text(SESSIONS)
    for command in ("size", "replay")[: 2 if option == "--png" else 1]:
        assert "is what is read from" in error_of(capsys, command, path, option, path, code=2)[0]
    assert path.read_text() == SESSIONS


@pytest.mark.parametrize("name", ["mooncake", "block-rows"])
def test_two_lines_that_stand_for_2_to_the_28_blocks(tmp_path: Path, name: str) -> None:
    """The two lines need 2 GiB for block ids, but only 2 GiB of memory are allowed. The result is a
    readable error, and the process does not crash.
    """
    path, out = tmp_path / "trace.jsonl", tmp_path / "out.jsonl"
    line = {"timestamp": 0, "input_length": 2**31, "output_length": 1, "hash_ids": [1]}
    if name == "block-rows":
        line["block_size"] = 2**31
    path.write_text(f"{json.dumps(line)}\n" * 2)
    size = ("--trace-block-size", str(2**31)) if name == "mooncake" else ("--trace-block-size", "16")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    command = [
        sys.executable,
        "-m",
        "kvpool",
        "trace",
        "convert",
        path,
        out,
        "--to",
        "bailian",
        *size,
        "--no-progress",
    ]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, env=ENVIRONMENT, check=False, preexec_fn=limited
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert (
        b"no memory for 134217728 block references in blocks of 16 tokens; larger blocks take less"
        in done.stderr
    )
    assert not out.exists()


@pytest.mark.parametrize("to", ["mooncake", "mooncake-sessions", "bailian"])
def test_a_trace_is_written_in_pieces(to: TraceFormat) -> None:
    trace = kvpool.traces.Trace.generate(3000, seed=6)

    class File:
        def __init__(self) -> None:
            self.pieces: list[bytes] = []

        def write(self, piece: bytes) -> int:
            # Like a raw file, this file may write fewer bytes than it was given.
            taken = piece[: max(1, len(piece) - 7)]
            self.pieces.append(taken)
            return len(taken)

    file = File()
    trace.write_jsonl(file, to)
    assert b"".join(file.pieces) == trace.to_jsonl(to)
    assert len(file.pieces) > 10
    assert max(map(len, file.pieces)) <= 1 << 17


def test_an_error_of_a_file_object_reaches_the_caller() -> None:
    trace = kvpool.traces.Trace.generate(3000)

    class Full:
        def write(self, _: bytes) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        trace.write_jsonl(Full())
    with pytest.raises(AttributeError, match="write"):
        trace.write_jsonl(object())  # type: ignore[arg-type]
    with pytest.raises(kvpool.errors.InvalidArgumentError, match="kv-events is not written"):
        trace.write_jsonl(io.BytesIO(), "kv-events")


@pytest.mark.parametrize("name", GOOD)
def test_replay_takes_every_format(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name)
    stats = json_of(capsys, "trace", "stats", path)
    for options in ([], ["--format", name]):
        printed = json_of(capsys, "replay", path, "--mode", "lookup", "--capacity-blocks", "100000", *options)
        assert printed["hits"]["requests"] == stats["requests"]
        # Nothing is evicted, so the hit rate equals the ideal hit rate.
        assert printed["token_hit_rate"] == pytest.approx(stats["ideal_token_hit_rate"])
        assert printed["last_half_token_hit_rate"] == pytest.approx(stats["ideal_last_half_token_hit_rate"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("trace nothing", "kvpool trace has no command 'nothing'"),
        ("trace stats", "TRACE is missing"),
        ("trace stats - --format weka", "--format is 'weka': must be one of mooncake"),
        ("replay - --format weka", "--format is 'weka': must be one of mooncake"),
        ("trace convert - -", "--to is missing"),
        ("trace convert - - --to weka", "weka"),
        ("trace convert - - --to kv-events", "kv-events"),
        ("trace convert - - --to bailian --block-size 0", "--block-size is "),
        ("trace stats - --sessions-at-once 0", "--sessions-at-once is "),
        ("trace validate - --trace-block-size 0", "--trace-block-size is "),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    assert main(arguments.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert words in captured.err
    assert len(captured.err.splitlines()) <= 2


def test_no_command_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace"]) == 0
    assert "Usage: kvpool trace" in capsys.readouterr().out
