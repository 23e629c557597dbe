"""Tests ``kvpool journal``. Its numbers equal those of the library, each exit code has one meaning, and
every result suggests the next command.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.cli import main
from tests.command import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")

MAGIC = b"KVPJRN04"


def record(path: Path, *, blocks: int = 9, last: int = 7, digests: int = 0) -> Path:
    """Records a journal of a pool with 43 operations. Operation 40 allocates ``last`` blocks."""
    pool = kvpool.BlockPool(blocks, 2, journal=kvpool.journal.Journal(path, digest_every=digests))
    for _ in range(20):
        pool.release(pool.allocate(2))
    if last < blocks:
        pool.release(pool.allocate(last))
    pool.allocate(1)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return record(tmp_path / "good.kvj", digests=4)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """Makes a journal whose replay differs at operation 40. Its header describes a pool of 7 blocks,
    but its operations are from a pool of 9.
    """
    header, operations = (
        record(tmp_path / f"{blocks}.kvj", blocks=blocks, digests=0).read_bytes() for blocks in (7, 9)
    )

    def begin(image: bytes) -> int:
        return len(MAGIC) + 12 + int.from_bytes(image[len(MAGIC) : len(MAGIC) + 4], "little")

    path = tmp_path / "bad.kvj"
    path.write_bytes(header[: begin(header)] + operations[begin(operations) :])
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> tuple[str, str]:
    assert main(["journal", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    out, err = run(capsys, *arguments, "--json", code=code)
    assert err == ""
    parsed = json.loads(out)
    assert isinstance(parsed, dict)
    return parsed


def test_show_as_json_is_what_the_library_reads(capsys: pytest.CaptureFixture[str], good: Path) -> None:
    printed = json_of(capsys, "show", good, "--from", "38", "--count", "3")
    info = kvpool.journal.read_journal(good, start=38, count=3)
    names = [
        "subject",
        "version",
        "settings",
        "bytes",
        "first_operation",
        "operations",
        "digest_every",
        "digests",
        "calls",
        "cut_at",
        "cut_bytes",
    ]
    assert printed == {
        "source": str(good),
        **{name: getattr(info, name) for name in names},
        "lines": [{"operation": number, "call": call, "asked": asked} for number, call, asked in info.lines],
    }
    assert [line["operation"] for line in printed["lines"]] == [38, 39, 40, 40]
    assert printed["calls"] == {"allocate": 22, "release": 21}


def test_show_to_read(capsys: pytest.CaptureFixture[str], good: Path) -> None:
    out, err = run(capsys, "show", good, "--count", "2")
    assert err == ""
    size = good.stat().st_size
    for words in (
        "pool", "9   blocks of 2 tokens", "operations         43", "10   one in 4 operations", f"{size:,}",
        f"{size / 43:.1f} per operation", "complete",
    ):  # fmt: skip
        assert words in out, words
    assert re.search(r"^ +allocate +22 *$", out, re.MULTILINE)
    # The last two lines are the two operations: no line for a digest is between or after them.
    assert out.splitlines()[-2:] == [
        "        41  release  7 blocks: 1 2 3 4 5 6 7",
        "        42  allocate  1 block",
    ]
    assert max(map(len, out.splitlines())) <= 80


def test_a_journal_gives_the_terminal_no_orders(
    capsys: pytest.CaptureFixture[str], good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text in a header or a record cannot change the terminal's title, clipboard or colours, use C1
    controls, or reverse the direction of writing.
    """
    order = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"
    info = kvpool.journal.read_journal(good, count=1)
    facts = {name: getattr(info, name) for name in dir(info) if not name.startswith("_")}
    facts |= {
        "subject": "manager" + order,
        "version": order,
        "calls": {order: 1},
        "lines": [(0, order, order)],
    }
    facts["settings"] = {
        name: order if isinstance(value, str) else value for name, value in info.settings.items()
    }
    monkeypatch.setattr(kvpool.journal, "read_journal", lambda *_, **__: types.SimpleNamespace(**facts))
    for width in ("80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        out, err = run(capsys, "show", good)
        assert err == ""
        assert "\\x1b]0;owned\\x07\\x1b[31m\\x9b2J\\u202e" in out
        assert all(letter.isprintable() or letter == "\n" for letter in out)
    difference = types.SimpleNamespace(kind="answer", operation=0, since=None, asked=order, found=order)
    report = types.SimpleNamespace(difference=difference, cut_at=None, operations=1, digests=0)
    monkeypatch.setattr(kvpool.journal, "replay_journal", lambda *_, **__: report)
    out, _ = run(capsys, "replay", good, code=1)
    assert out.count("\\x1b]0;owned") == 2
    assert all(letter.isprintable() or letter == "\n" for letter in out)


def test_show_of_a_manager_and_of_a_cut_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.kvj"
    manager = kvpool.CacheManager(
        20, 4, host_blocks=5, verify="fingerprint", journal=kvpool.journal.Journal(path, frame_bytes=64)
    )
    manager.admit("[bold]a[/bold]", range(9))
    for _ in range(9):
        manager.append(["[bold]a[/bold]"], [3])
    del manager
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    out, _ = run(capsys, "show", path)
    for words in (
        "manager",
        "fingerprint compared",
        "host tier",
        "cut   behind byte",
        "are of no whole frame",
    ):
        assert words in out, words
    assert 'admit  "[bold]a[/bold]": 9 tokens' in out


def test_show_of_a_ring_that_dropped_its_beginning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pool = kvpool.BlockPool(9, 2, journal=kvpool.journal.Journal(ring_bytes=400, frame_bytes=100))
    for _ in range(200):
        pool.release(pool.allocate(2))
    path = tmp_path / "ring.kvj"
    pool.journal.save(path)
    first = kvpool.journal.read_journal(path).first_operation
    out, _ = run(capsys, "show", path)
    assert f"from number {first:,} on: what was" in out
    _, err = run(capsys, "replay", path, code=2)
    assert err.startswith(f"error: {path}: the journal begins with operation {first}")
    assert "hint: kvpool journal show lists what it holds" in err


def test_a_replay_that_is_exact(capsys: pytest.CaptureFixture[str], good: Path) -> None:
    out, err = run(capsys, "replay", good)
    assert out.startswith(f"{good}: bit-exact: 43 operations, 10 digests in ")
    assert err == ""
    printed = json_of(capsys, "replay", good, "--until", "9", "--check-every", "2")
    seconds = printed.pop("seconds")
    assert seconds > 0
    assert printed == {
        "source": str(good), "exact": True, "operations": 9, "digests": 2, "difference": None, "cut_at": None,
        "cut_bytes": 0,
    }  # fmt: skip


def test_a_replay_that_differs(capsys: pytest.CaptureFixture[str], bad: Path) -> None:
    found = kvpool.journal.replay_journal(bad).difference
    assert found is not None
    out, err = run(capsys, "replay", bad, code=1)
    assert out == (
        f"{bad}: operation 40 is answered otherwise\n  asked: allocate 7 blocks\n"
        f"  this build answers: {found.found}\n"
    )
    assert err == f"next: kvpool journal shrink {bad} -o small.kvj\n"
    printed = json_of(capsys, "replay", bad, code=1)
    assert (printed["exact"], printed["operations"]) == (False, 41)
    assert printed["difference"] == {
        "kind": "answer", "operation": 40, "since": None, "asked": "allocate 7 blocks", "found": found.found,
    }  # fmt: skip


def test_a_state_that_differs(capsys: pytest.CaptureFixture[str], bad: Path, tmp_path: Path) -> None:
    # This journal is made like the fixture `bad`, from a pool of 9 blocks and the header of a pool of 7, but
    # with digests. The free lists of the two pools differ from the start, so the first digest differs.
    paths = [record(tmp_path / f"{blocks}-4.kvj", blocks=blocks, digests=4) for blocks in (7, 9)]
    header, operations = (path.read_bytes() for path in paths)
    begin = len(MAGIC) + 12 + int.from_bytes(header[len(MAGIC) : len(MAGIC) + 4], "little")
    path = tmp_path / "state.kvj"
    path.write_bytes(header[:begin] + operations[begin:])
    out, err = run(capsys, "replay", path, code=1)
    assert out.startswith(f"{path}: the state differs at operation 4, and was the same at operation 0\n")
    assert err == f"next: kvpool journal show {path} --from 0 --count 4\n"
    _, err = run(capsys, "shrink", path, code=1)
    assert "only a digest differs, at operation 4" in err


def test_a_cut_end_is_reported(capsys: pytest.CaptureFixture[str], good: Path) -> None:
    whole = good.read_bytes()
    good.write_bytes(whole + b"cut")
    out, err = run(capsys, "replay", good)
    assert out.startswith(f"{good}: bit-exact: 43 operations")
    assert err == f"{good}: cut behind byte {len(whole):,}: 3 bytes of no whole frame are left out\n"


@pytest.mark.parametrize("command", [["show"], ["replay"], ["bisect"], ["shrink"], ["export", "--rust"]])
def test_what_is_no_journal_is_bad_usage(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0}\n')
    out, err = run(capsys, *command, path, code=2)
    assert out == ""
    error, hint = err.splitlines()
    assert error.startswith(f"error: {path}: not a journal of kvpool")
    assert "records one" in hint
    _, err = run(capsys, *command, tmp_path / "none", code=2)
    error, hint = err.splitlines()
    assert error == f"error: {tmp_path}/none: No such file or directory"
    assert "records one" in hint


def test_stdin(good: Path) -> None:
    command = [sys.executable, "-m", "kvpool", "journal", "replay", "-"]
    done = subprocess.run(command, input=good.read_bytes(), capture_output=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"-: bit-exact: 43 operations")


def test_bisect(capsys: pytest.CaptureFixture[str], good: Path, bad: Path) -> None:
    out, _ = run(capsys, "bisect", good)
    assert out == f"{good}: bit-exact: 43 operations, 10 digests\n"
    out, _ = run(capsys, "bisect", bad, code=1)
    assert out.startswith(f"{bad}: operation 40 is answered otherwise\n")
    assert json_of(capsys, "bisect", bad, code=1)["difference"]["operation"] == 40


def test_bisect_of_two(capsys: pytest.CaptureFixture[str], good: Path, tmp_path: Path) -> None:
    other = record(tmp_path / "other.kvj", last=6, digests=4)
    out, err = run(capsys, "bisect", good, other, code=1)
    first, one, two = out.splitlines()
    assert first == "operation 40 is the first that differs"
    assert one.startswith(f"  {good}: allocate 7 blocks, answered ")
    assert two.startswith(f"  {other}: allocate 6 blocks, answered ")
    printed = json_of(capsys, "bisect", good, other, code=1)
    assert (printed["same"], printed["operation"], printed["operations"]) == (False, 40, [43, 43])
    assert json_of(capsys, "bisect", good, good)["same"] is True
    assert run(capsys, "bisect", good, good)[0] == "43 and 43 operations: the same\n"
    _, err = run(capsys, "bisect", good, record(tmp_path / "x.kvj", blocks=8), code=2)
    assert "different settings" in err


def test_shrink(capsys: pytest.CaptureFixture[str], bad: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.kvj"
    out, err = run(capsys, "shrink", bad, "-o", small)
    lines = out.splitlines()
    assert lines[0].startswith("41 operations, 1 of them needed (")
    assert lines[1].startswith("    0  allocate 7 blocks -> refused: ")
    assert lines[2].startswith("what goes wrong: refused: ")
    assert err == f"next: kvpool journal export {small} --python\n"
    assert kvpool.journal.read_journal(small).operations == 1
    _, err = run(capsys, "shrink", bad, "-o", small, code=2)
    assert err.startswith(f"error: {small} exists")
    printed = json_of(capsys, "shrink", bad, "--operation", "40")
    assert (printed["before"], printed["after"]) == (41, 1)


def test_nothing_to_shrink(capsys: pytest.CaptureFixture[str], good: Path) -> None:
    out, err = run(capsys, "shrink", good, code=1)
    assert out == ""
    assert err.startswith(f"error: {good}: nothing goes wrong on this build\nhint: ")
    _, err = run(capsys, "shrink", good, "--operation", "99", code=1)
    assert err.startswith(f"error: {good}: nothing goes wrong on this build\nhint: ")


def test_export(capsys: pytest.CaptureFixture[str], good: Path, tmp_path: Path) -> None:
    for language in ("rust", "python"):
        text = kvpool.journal.export_journal(good, language)
        assert run(capsys, "export", good, f"--{language}") == (text, "")
        path = tmp_path / language
        assert run(capsys, "export", good, f"--{language}", "-o", path) == ("", "")
        assert path.read_text() == text
        assert json_of(capsys, "export", good, f"--{language}")["test"] == text
    _, err = run(capsys, "export", good, "--python", "-o", tmp_path / "python", code=2)
    assert "nothing is overwritten" in err


@pytest.mark.parametrize("language", ["--rust", "--python"])
def test_an_export_of_too_much_is_refused(
    capsys: pytest.CaptureFixture[str], good: Path, tmp_path: Path, language: str
) -> None:
    path = tmp_path / "test_it"
    for more in ([], ["--json"], ["-o", path]):
        out, err = run(capsys, "export", good, language, "--limit", "42", *more, code=2)
        assert out == ""
        assert "has 43 operations, and a test has at most 42: bisect and shrink it first" in err
        assert "--limit N allows more" in err
        assert not path.exists()
    assert run(capsys, "export", good, language, "--limit", "43", "-o", path) == ("", "")
    assert path.exists()


@pytest.mark.parametrize("language", ["--rust", "--python"])
def test_the_size_of_a_long_test_is_said_before_it_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, language: str
) -> None:
    journal, output = tmp_path / "long.kvj", tmp_path / "test.txt"
    pool = kvpool.BlockPool(9, 2, journal=kvpool.journal.Journal(journal))
    for _ in range(500):
        pool.release(pool.allocate(2))
    del pool
    out, err = run(capsys, "export", journal, language, "-o", output)
    written = output.read_text()
    said = re.fullmatch(r".*test\.txt: 1,000 operations, ([\d,]+) lines, ([\d.]+) MB\n", err)
    assert said is not None, err
    assert int(said[1].replace(",", "")) == written.count("\n")
    assert float(said[2]) == round(len(written) / 1e6, 1)
    out, err = run(capsys, "export", journal, language)
    assert (out, err.startswith("the test: 1,000 operations")) == (written, True)
    # The command states the size of a test only if the test is long.
    assert run(capsys, "export", record(tmp_path / "short.kvj"), language)[1] == ""


#: Commands, and how much memory each may need for a file, as a multiple of the journal's size.
MEMORY = [
    ("replay", 12),
    ("bisect", 12),
    ("shrink", 55),
    ("export --rust", 20),
    ("export --python", 20),
]


@pytest.mark.parametrize(("command", "times"), MEMORY)
def test_what_would_not_fit_into_memory_is_not_read(
    capsys: pytest.CaptureFixture[str], good: Path, command: str, times: int
) -> None:
    most = good.stat().st_size * times / 2**30
    bound = ["--max-gib", repr(most * 0.999)]
    _, err = run(capsys, *command.split(), good, *bound, code=2)
    assert f"good.kvj: {good.stat().st_size:,} bytes may take" in err
    assert err.endswith("hint: --max-gib 1 allows it\n")
    more = ["--operation", "40"] if command == "shrink" else []
    run(capsys, *command.split(), good, "--max-gib", repr(most * 1.001), *more)


def test_what_only_reads_a_file_is_never_too_much(capsys: pytest.CaptureFixture[str], good: Path) -> None:
    run(capsys, "show", good, "--max-gib", "1e-9")
    run(capsys, "bisect", good, good, "--max-gib", "1e-9")


@pytest.mark.parametrize(("command", "times"), [("show", 1), *MEMORY])
def test_standard_input_is_read_no_further_than_it_may(good: Path, command: str, times: int) -> None:
    """Standard input is held in memory, so it counts as one more copy of the journal. The command stops
    at the first byte that is too much.
    """
    words = [sys.executable, "-m", "kvpool", "journal", *command.split(), "-", "--max-gib", "1e-7"]
    with good.open("rb") as file:
        done = subprocess.run(words, stdin=file, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    most = int(1e-7 * 2**30 / (times + (command != "show")))
    assert done.returncode == 2
    assert f"stdin: more than {most + 1} bytes may take" in done.stderr


@pytest.mark.parametrize("most", ["0", "-1", "nan", "inf"])
def test_memory_that_is_none(capsys: pytest.CaptureFixture[str], good: Path, most: str) -> None:
    assert "must be above 0, and finite" in run(capsys, "show", good, "--max-gib", most, code=2)[1]


def test_an_export_that_fails_leaves_no_file(
    capsys: pytest.CaptureFixture[str], good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, write: Callable[[str], object], **__: object) -> None:
        write("half a test")
        raise kvpool.errors.JournalError("operation 3 has no call in Python")

    monkeypatch.setattr(kvpool.journal, "export_journal", fails)
    path = tmp_path / "test_it.py"
    _, err = run(capsys, "export", good, "--python", "-o", path, code=2)
    assert "operation 3 has no call" in err
    assert not path.exists()


def test_operations_that_are_repeated_are_refused(
    capsys: pytest.CaptureFixture[str], good: Path, tmp_path: Path
) -> None:
    image = good.read_bytes()
    begin = len(MAGIC) + 12 + int.from_bytes(image[len(MAGIC) : len(MAGIC) + 4], "little")
    twice = tmp_path / "twice.kvj"
    twice.write_bytes(image + image[begin:])
    for command in ("show", "replay"):
        out, err = run(capsys, command, twice, code=2)
        assert out == ""
        assert f"the frame at byte {len(image)} begins with operation 0, and operation 43 comes next" in err
        assert "head -c BYTES FILE" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("show", "FILE is missing"),
        ("show x --count -1", "--count is "),
        ("replay x --until -1", "--until is "),
        ("export x", "give one of --rust and --python"),
        ("export x --rust --python", "give one of --rust and --python"),
        ("mend x", "kvpool journal has no command 'mend'"),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    out, err = run(capsys, *arguments.split(), code=2)
    assert out == ""
    assert words in err


def test_the_replay_of_a_trace_records(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.kvj"
    options = ["replay", "--limit", "30", "--capacity-blocks", "2000", "--json"]
    assert main([*options, "--journal", str(path)]) == 0
    with_journal = json.loads(capsys.readouterr().out)
    assert main(options) == 0
    assert with_journal["hits"] == json.loads(capsys.readouterr().out)["hits"]
    assert json_of(capsys, "replay", path)["operations"] > 30
    assert main([*options, "--journal", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {path} exists: a journal overwrites nothing")
