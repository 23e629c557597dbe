"""Tests output on a terminal. It contains no control sequences, in any encoding and at any width. No
words are missing in help pages.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer
from rich.console import Console
from rich.text import Text

import kvpool
from kvpool.cli import _app, main, terminal
from tests.command import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")

#: A name that would set the title, clear the screen, change colours (with ESC and with a C1 control),
#: and reverse the direction of the line.
HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb"
SHOWN = "a\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202eb"
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


def bailian(kind: str) -> bytes:
    record = {"chat_id": 7, "timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [9, 8, 7]}
    return (json.dumps(record | {"type": kind}) + "\n").encode()


def agents(model: str) -> bytes:
    request = {"t": 0, "in": 200, "out": 7, "hash_ids": [1, 2, 3], "model": model}
    return json.dumps({"id": "s", "block_size": 64, "requests": [request]}).encode()


@pytest.mark.parametrize("content", [bailian(HOSTILE), agents(HOSTILE)], ids=["type", "model"])
@pytest.mark.parametrize("command", ["stats", "validate", "convert"])
def test_names_in_a_trace_are_shown_and_not_obeyed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, content: bytes
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    rest = [str(tmp_path / "out"), "--to", "mooncake"] if command == "convert" else []
    assert main(["trace", command, str(path), *rest]) == 0
    captured = capsys.readouterr()
    said = captured.out + captured.err
    assert not CONTROLS.search(said)
    assert (SHOWN in said) == (command != "validate")


@pytest.mark.parametrize("command", ["stats", "convert"])
def test_a_name_of_megabytes_is_cut(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(bailian("x" * 3_000_000))
    rest = [str(tmp_path / "out"), "--to", "mooncake"] if command == "convert" else []
    assert main(["trace", command, str(path), *rest]) == 0
    captured = capsys.readouterr()
    assert len(captured.out + captured.err) < 10_000
    assert "x..." in "".join((captured.out + captured.err).split())


def test_paths_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / HOSTILE
    path.write_bytes(bailian("text"))
    for command in (
        ["trace", "stats", str(path)],
        ["trace", "validate", str(path)],
        ["trace", "convert", str(path), str(path), "--to", "mooncake"],
        ["replay", str(path), "--no-progress"],
        ["size", str(path), "--no-progress", "--hints", "none", "--capacities", "2"],
        ["size", str(path), "--html", str(path)],
        ["trace", "stats", str(path) + "-is-none"],
        ["trace", "stats", str(path), "--format", HOSTILE],
        ["replay", "--model", HOSTILE],
        ["hash", HOSTILE],
        [HOSTILE],
    ):
        main(command)
        captured = capsys.readouterr()
        said = captured.out + captured.err
        assert said, command
        assert not CONTROLS.search(said), (command, said)


def test_errors_about_what_is_in_a_trace_are_one_short_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    long = HOSTILE + "x" * 2_000_000
    stored = {"type": "stored", "hash": long, "block_size": 16}
    request = {"input_length": 9, "output_length": 1, "hash_ids": [1]}
    for content in (
        "\n".join(json.dumps(stored | {"parent": parent}) for parent in ("a", "b")),
        json.dumps(request | {"timestamp": long}),
        json.dumps({long: 1}),
        f"[{HOSTILE * 10_000}",
    ):
        path.write_text(content)
        assert main(["trace", "validate", str(path)]) == 1
        error, *hints = capsys.readouterr().err.splitlines()
        assert error.startswith("error: ")
        assert len(error) < 500 + len(str(path))
        assert not CONTROLS.search(error)
        assert len(hints) <= 1


@pytest.mark.parametrize("field", ["model_type", "_name_or_path", "architectures", "torch_dtype"])
def test_names_in_a_configuration_are_shown_and_not_obeyed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, field: str
) -> None:
    path = tmp_path / "config.json"
    config = {"model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 256}
    # kvpool knows the architecture, so it finds the layers although the name of the family is hostile.
    config |= {
        "architectures": ["LlamaForCausalLM"],
        field: [HOSTILE] if field == "architectures" else HOSTILE,
    }
    path.write_text(json.dumps(config))
    pool = ["--config", str(path)]
    printed = 0
    for command in (
        ["models", *pool],
        ["models", *pool, "--csv"],
        ["models", *pool, "--json"],
        ["models", *pool, "--capacity-gib", "10"],
        ["size", "example", *pool, "--capacities", "10GiB", "--no-progress"],
        ["size", "example", *pool, "--capacities", "10GiB", "--html", str(tmp_path / "page.html")],
        ["replay", "example", *pool, "--capacity-gib", "1", "--limit", "9", "--no-progress"],
    ):
        assert main(command) == (field == "architectures")
        text = "".join(capsys.readouterr())
        assert not CONTROLS.search(text), command
        printed += SHOWN[:5] in text
    # An unknown architecture is an error, whose message shows the name.
    assert (printed > 3) == (field != "torch_dtype")


def test_text_that_no_command_has_cleaned_reaches_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    streams = sys.stdout, sys.stderr
    with terminal.prepared():
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
        typer.echo(HOSTILE)
        Console(force_terminal=False).print(Text(HOSTILE))
        sys.stdout.writelines(["tabs\tand ", "größer\n"])
    captured = capsys.readouterr()
    # The libraries Click and Rich have removed some of the control characters, and kvpool has replaced the
    # others.
    assert captured.out.splitlines()[0] == SHOWN
    assert captured.out.endswith("\ntabs\tand größer\n")
    assert captured.err == f"{SHOWN}\n"
    assert not CONTROLS.search(captured.out.replace("\t", ""))
    assert (sys.stdout, sys.stderr) == streams


def test_a_terminal_gets_colours_and_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with terminal.prepared():
        print("\x1b[1;32mgreen\x1b[0m \x1b[2K\x1b[1A\x1b]0;title\x07\x1b]8;;http://x\x1b\\ \x9b31m\u202e")
    assert capsys.readouterr().out == (
        "\x1b[1;32mgreen\x1b[0m \x1b[2K\x1b[1A\\x1b]0;title\\x07\\x1b]8;;http://x\\x1b\\ \\x9b31m\\u202e\n"
    )


def test_good_text_is_printed_as_it_is() -> None:
    for text in ("trace.jsonl", "Qwen 3, größer", "中文/日本語", ""):
        assert terminal.shown(text) == text
    assert terminal.shown("a\udcffb\n\x7f") == "a\\xffb\\n\\x7f"
    results = doctest.testmod(terminal)
    assert (results.failed, results.attempted > 0) == (0, True)


@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {}]
)
def test_any_encoding_and_any_file_name_will_do(tmp_path: Path, environment: dict[str, str]) -> None:
    """Every command that reads or writes a file gets names outside ASCII, and a name that is not UTF-8."""
    names = (b"caf\xe9\xff.jsonl", b"bad\xff.jsonl", b"none\xff")
    trace, bad, none = (tmp_path / os.fsdecode(name) for name in names)
    names_out = (b"out\xff", b"out\xff.gz", b"page\xff.html", b"run\xff.kvj")
    out, packed, page, journal = (tmp_path / os.fsdecode(name) for name in names_out)
    nonsense = os.fsdecode(b"\xff")
    trace.write_bytes(bailian("größer 中") + bailian("text"))
    bad.write_bytes(b"{oops")
    quick = (
        "--no-progress",
        "--hints",
        "none",
        "--capacities",
        "1,2",
        "--policies",
        "lru",
        "--form",
        "stream",
    )
    cases: list[tuple[int, tuple[str | Path, ...]]] = [
        (0, ("trace", "stats", trace)),
        (0, ("trace", "stats", trace, "--json")),
        (0, ("trace", "validate", trace)),
        (1, ("trace", "validate", bad)),
        (1, ("trace", "validate", none)),
        (2, ("trace", "convert", trace, trace, "--to", "mooncake")),
        (0, ("trace", "convert", trace, out, "--to", "mooncake-sessions")),
        (0, ("generate", "--requests", "3", "-o", packed)),
        (0, ("replay", trace, "--capacity-blocks", "50")),
        (0, ("replay", trace, "--capacity-blocks", "50", "--journal", journal, "--no-progress")),
        (0, ("journal", "show", journal)),
        (0, ("size", trace, "--html", page, "--model", "gpt-2", *quick)),
        (0, ("size", trace, "--json", *quick)),
        (2, ("size", trace, "--html", none)),
        (2, ("replay", trace, "--model", nonsense)),
        (2, ("journal", "show", trace)),
        (2, ("hash", nonsense)),
        (2, (nonsense,)),
    ]
    program = tmp_path / "all.py"
    calls = [list(map(str, arguments)) for _, arguments in cases]
    program.write_text(ALL_IN_ONE.replace("CALLS", ascii(calls)))
    done = subprocess.run(
        [sys.executable, program], capture_output=True, env=ENVIRONMENT | environment, check=False
    )
    said = (done.stdout + done.stderr).decode()  # always valid UTF-8
    assert "Traceback" not in said
    parts = said.partition("codes: ")
    assert json.loads(parts[2].splitlines()[0]) == [code for code, _ in cases], said
    assert "\\xff.jsonl</h1>" in page.read_text(encoding="utf-8")
    assert out.stat().st_size > 0
    assert packed.stat().st_size > 0


#: A program that runs many commands in one process, and then prints their exit codes.
ALL_IN_ONE = """
from kvpool.cli import main
codes = [main(call) for call in CALLS]
print("codes:", codes)
"""


def test_a_picture_of_a_trace_with_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    trace = tmp_path / os.fsdecode(b"\xff$x$_\x1b.jsonl")
    trace.write_bytes(kvpool.traces.Trace.generate(10).to_jsonl())
    picture = tmp_path / "size.png"
    quick = ["--no-progress", "--hints", "none", "--capacities", "20", "--policies", "lru"]
    for command in (
        ["size", str(trace), *quick],
        ["replay", str(trace), "--no-progress", "--capacity-blocks", "900"],
    ):
        assert main([*command, "--png", str(picture)]) == 0
        assert picture.read_bytes().startswith(b"\x89PNG")
        picture.unlink()


def test_a_width_that_is_none_is_80(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(kvpool.traces.Trace.generate(20).to_jsonl())
    quick = ("--no-progress", "--hints", "none", "--capacities", "20", "--policies", "lru")
    journal = tmp_path / "run.kvj"
    assert (
        main(["replay", str(path), "--no-progress", "--capacity-blocks", "900", "--journal", str(journal)])
        == 0
    )
    capsys.readouterr()
    for command in (["trace", "stats", str(path)], ["models"], ["journal", "show", str(journal)], ["--help"]):
        printed = []
        for columns in ("80", "0", "00", "-5", "wide", ""):
            monkeypatch.setenv("COLUMNS", columns)
            assert main(command) == 0
            printed.append(capsys.readouterr().out)
            assert os.environ["COLUMNS"] == columns
        assert len(printed[0]) > 500
        assert len(set(printed)) == 1
    assert main(["size", str(path), *quick]) == 0
    assert "Block hit rate" in capsys.readouterr().out


def commands() -> Iterator[tuple[list[str], Any]]:
    """Yields each command and group of commands, with the words that call it."""

    def walk(path: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
        yield path, command
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk([*path, name], inner)

    yield from walk([], typer.main.get_command(_app))


COMMANDS = list(commands())


EACH_COMMAND = pytest.mark.parametrize(
    ("path", "command"), COMMANDS, ids=[" ".join(path) or "kvpool" for path, _ in COMMANDS]
)


@EACH_COMMAND
def test_every_help_page_teaches_by_examples_that_are_whole(
    capsys: pytest.CaptureFixture[str], path: list[str], command: Any
) -> None:
    assert main([*path, "--help"]) == 0
    text, error = capsys.readouterr()
    assert (error, "\x1b" in text, "…" in text) == ("", False, False)
    assert max(map(len, text.splitlines())) <= 80
    examples = re.findall(r"^ +(.*\bkvpool .*)$", text.split("Examples:")[1], re.MULTILINE)
    assert len(examples) >= 2
    assert any(example.startswith(f"kvpool {' '.join(path)}".strip()) for example in examples)


@EACH_COMMAND
def test_every_example_is_of_a_command_with_these_options(path: list[str], command: Any) -> None:
    named = {tuple(path): one for path, one in COMMANDS}
    for line in re.findall(r"kvpool [^;|>\n]*", command.epilog or ""):
        words = line.split()[1:]
        of = next(tuple(words[:count]) for count in (2, 1, 0) if tuple(words[:count]) in named)
        known = {option for parameter in named[of].params for option in parameter.opts}
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= known | {"--help"}, line


@EACH_COMMAND
def test_no_help_page_loses_words_in_brackets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, path: list[str], command: Any
) -> None:
    texts = [command.help or "", command.epilog or ""]
    texts += [getattr(parameter, "help", None) or "" for parameter in command.params]
    # If Rich reads a text as markup, the text has a span, and words are lost.
    assert [text for text in texts if Text.from_markup(text).spans] == []
    monkeypatch.setenv("COLUMNS", "300")
    assert main([*path, "--help"]) == 0
    page = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    bracketed = [words for text in texts for words in re.findall(r"\S*\[\S*", text.replace("\\[", "["))]
    assert [words for words in bracketed if words not in page] == []


def test_the_help_of_replay_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--help"]) == 0
    assert "kvpool[plot]" in capsys.readouterr().out
