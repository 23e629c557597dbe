"""Errors of wrong arguments contain the value, the limit and a hint, in kvpool's own words.

The table has a row for each mistake: the command, the exit code, the error and the hint, word for word.
"""

from __future__ import annotations

import gzip
import re
from typing import TYPE_CHECKING

import pytest

from kvpool.cli import main
from kvpool.cli.problems import plain
from tests.printing_commands import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")

#: Words from errors of Rust, pydantic, Python and the operating system. kvpool's errors must not
#: contain them.
THEIRS = re.compile(
    r"os error|Errno|Input should|Value error|unable to parse|Traceback|\[type=|Expecting"
    r"|validation error|panicked|expected value|Invalid value|requires an argument|unexpected extra"
    r"|Some\(|None\b"
)
LINE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'

#: The wrong commands, and their errors. {} stands for the folder ``prepared``.
TABLE: list[tuple[str, int, str, str | None]] = [
    (
        "replay {}/nope.jsonl",
        1,
        "cannot open {}/nope.jsonl: No such file or directory",
        "give the path of a trace; example is the trace that ships with kvpool, - is standard input",
    ),
    (
        "replay {}/empty",
        1,
        "{}/empty: the trace is empty: no request in 0 lines; expected one JSON object a line",
        "kvpool generate --requests 1 shows what a line of a trace looks like",
    ),
    (
        "replay {}/binary",
        1,
        "{}/binary: line 1, column 1: no JSON here; a record is a JSON object on a line of its own",
        "kvpool generate --requests 1 shows what a line of a trace looks like",
    ),
    (
        "replay {}/cut.gz",
        1,
        "{}/cut.gz: line 1: the gzip stream ends too early; the file is truncated",
        "copy it again, or make it again: what is there is not the whole file",
    ),
    ("replay {}/bad.jsonl", 1, '{}/bad.jsonl: line 2: "timestamp" is a string; allowed: ms, 0 or more', None),
    (
        "replay {}/neg.jsonl",
        1,
        '{}/neg.jsonl: line 1: "input_length" is -5; allowed: a whole number from 0 to 4294967295',
        None,
    ),
    (
        "replay {}/t.jsonl --capacity-blocks 0",
        2,
        "--capacity-blocks is 0: must be at least 1",
        "see kvpool replay --help",
    ),
    (
        "replay {}/t.jsonl --capacity-blocks many",
        2,
        "--capacity-blocks is 'many': must be a whole number",
        "see kvpool replay --help",
    ),
    (
        "replay {}/t.jsonl --capacity-gib 60GiB --model llama-3.1-8b",
        2,
        "--capacity-gib is '60GiB': must be a number",
        "did you mean 60? see kvpool replay --help",
    ),
    (
        "replay {}/t.jsonl --modl engine",
        2,
        "kvpool replay has no option --modl",
        "did you mean --model or --mode? see kvpool replay --help",
    ),
    (
        "replay {}/t.jsonl --mode engin",
        2,
        "--mode is 'engin': must be one of engine, lookup",
        "did you mean engine? see kvpool replay --help",
    ),
    (
        "replay {}/t.jsonl --eviction lruu",
        2,
        "--eviction is 'lruu': must be one of lru, last-accessed, s3-fifo, arc, adaptive, hazard",
        "did you mean lru?",
    ),
    (
        "replay {}/t.jsonl --hash sha1",
        2,
        "--hash is 'sha1': must be one of sha256, blake3, xxh3, vllm-sha256, vllm-sha256-cbor, "
        "vllm-xxhash, vllm-xxhash-cbor",
        "did you mean sha256?",
    ),
    ("replay {}/t.jsonl --watermark", 2, "--watermark needs a value", "see kvpool replay --help"),
    (
        "replay {}/t.jsonl --format mooncak",
        2,
        "--format is 'mooncak': must be one of mooncake, mooncake-sessions, bailian, "
        "kv-cache-tester, block-rows, kv-events",
        "did you mean mooncake?",
    ),
    (
        "replay {}/t.jsonl --layers 99999999999999999999999 --kv-heads 8 --head-dim 128 --capacity-gib 3",
        2,
        "--layers is 99999999999999999999999: must be at most 1,000,000",
        None,
    ),
    (
        "replay {}/t.jsonl {}/bad.jsonl",
        2,
        "one argument too many: '{}/bad.jsonl'",
        "kvpool replay TRACE, see kvpool replay --help",
    ),
    (
        "size {}/t.jsonl --capacities 5TB",
        2,
        "--capacities is '5TB': must be like 5%, 60GiB or 9139 (blocks), above 0",
        None,
    ),
    (
        "size {}/t.jsonl --capacities 5%,,",
        2,
        "--capacities is '5%,,': there is nothing between two commas, or at an end",
        "leave a comma out",
    ),
    (
        "replay {}/t.jsonl --eviction lfu",
        2,
        "--eviction is 'lfu': must be one of lru, last-accessed, s3-fifo, arc, adaptive, hazard",
        "kvpool no longer has lfu, use s3-fifo",
    ),
    (
        "size {}/t.jsonl --policies lru,arcc",
        2,
        "--policies is 'arcc': must be one of lru, s3-fifo, arc, adaptive, hazard",
        "did you mean arc?",
    ),
    (
        "size {}/t.jsonl --policies lru,2q",
        2,
        "--policies is '2q': must be one of lru, s3-fifo, arc, adaptive, hazard",
        "kvpool no longer has 2q, use s3-fifo",
    ),
    (
        "compare lru gdsf --trace {}/t.jsonl",
        2,
        "--policies is 'gdsf': must be one of lru, s3-fifo, arc, adaptive, hazard",
        "kvpool no longer has gdsf, use arc",
    ),
    (
        "size {}/t.jsonl --gpu h1000 --weights-gib 3 --model llama-3.1-8b",
        2,
        "--gpu is 'h1000': must be one of l4, a10, l40s, rtx-4090, rtx-5090, a100-40, a100, h20, h100, "
        "h100-nvl, gh200, h200, b200, gb200, mi250x, mi300x, mi325x, mi350x, mi355x",
        "did you mean h100? --capacity-gib takes any size",
    ),
    ("size {}/t.jsonl --html /nope/x.html", 2, "--html /nope/x.html: there is no directory /nope", None),
    (
        "size {}/t.jsonl --jobs 99999999999999999999",
        2,
        "--jobs is 99999999999999999999: must be at most 1024",
        "see kvpool size --help",
    ),
    ("compare {}/t.jsonl", 2, "B is missing", "kvpool compare A B, see kvpool compare --help"),
    (
        "compare {}/a.json {}/a.json",
        2,
        "{}/a.json and {}/a.json: a report has another form than this version prints",
        "make both again with kvpool replay --json",
    ),
    (
        "trace stat {}/t.jsonl",
        2,
        "kvpool trace has no command 'stat'",
        "did you mean stats? see kvpool trace --help",
    ),
    (
        "trace convert {}/t.jsonl {}/o.jsonl",
        2,
        "--to is missing",
        "one of mooncake, mooncake-sessions, bailian; see kvpool trace convert --help",
    ),
    (
        "trace convert {}/t.jsonl {}/o.jsonl --to bailian --block-size 7",
        2,
        "--block-size is 7: blocks of 512 tokens cannot be made into blocks of 7: one must divide the other",
        "--block-size 512 keeps the trace's size",
    ),
    (
        "trace convert {}/t.jsonl /nope/x --to bailian",
        1,
        "/nope/x: there is no directory /nope",
        "check the path; a relative one begins in this directory",
    ),
    (
        "trace record nope {}/o2",
        2,
        "ENDPOINT is 'nope': must be like tcp://127.0.0.1:5557",
        "vLLM publishes at port 5557 unless --kv-events-config names another",
    ),
    (
        "trace record 127.0.0.1:1 {}/out.jsonl",
        2,
        "{}/out.jsonl exists: nothing is overwritten",
        "remove it, or give another name",
    ),
    (
        "trace make {}/ids.jsonl {}/o3",
        1,
        "{}/ids.jsonl: line 1: has text, which needs --tokenizer, the tokenizer.json of the model",
        "add --tokenizer, the model's folder",
    ),
    (
        "trace make {}/ids.jsonl {}/o3 --tokenizer {}/nope",
        2,
        "--tokenizer {}/nope: no tokenizer.json that can be read",
        "give the model's folder, or its tokenizer.json",
    ),
    ("trace make {}/dir {}/o3", 2, "{}/dir is a directory: give one file of JSON lines", None),
    (
        "journal show {}/t.jsonl",
        2,
        "{}/t.jsonl: not a journal of kvpool",
        'CacheManager(..., journal=kvpool.journal.Journal("run.kvj")) records one, '
        "and kvpool replay --journal run.kvj",
    ),
    (
        "journal show {}/nope",
        2,
        "{}/nope: No such file or directory",
        "give the path of a journal; kvpool replay TRACE --journal run.kvj records one",
    ),
    (
        "journal show {}/dir",
        2,
        "{}/dir: Is a directory",
        "give the path of a journal; kvpool replay TRACE --journal run.kvj records one",
    ),
    (
        "store show {}/nope",
        2,
        "{}/nope has no objects of a store: no such folder, or nothing was ever stored there",
        "give the folder that the engine's configuration names",
    ),
    (
        "store show redis://127.0.0.1:1",
        1,
        "redis://127.0.0.1:1: asking the server failed: Connection refused",
        "check that the server runs, and that this is its address",
    ),
    (
        "store bench {}/dir --object-kib 1",
        2,
        "--object-kib is 1: must be at least 4",
        "see kvpool store bench --help",
    ),
    ("store gc {}/dir --keep", 2, "--keep needs a value", "see kvpool store gc --help"),
    (
        "top 127.0.0.1:1",
        1,
        "http://127.0.0.1:1/metrics: Connection refused",
        "an engine serves it with kvpool.metrics.start_http(PORT)",
    ),
    (
        "top {}/nope",
        2,
        "{}/nope: no such journal",
        "give HOST:PORT of a page of metrics, or a journal's path",
    ),
    (
        "top http://127.0.0.1:notaport/x --once",
        2,
        "http://127.0.0.1:notaport/x has a port that is none: it must be from 1 to 65535",
        None,
    ),
    (
        "generate --requests 1e3",
        2,
        "--requests is '1e3': must be a whole number",
        "did you mean 1000? see kvpool generate --help",
    ),
    (
        "generate -o /nope/x",
        1,
        "/nope/x: there is no directory /nope",
        "check the path; a relative one begins in this directory",
    ),
    (
        "models llama-3.1-8b --dtype int3",
        2,
        "--dtype is 'int3': must be one of fp32, float32, bf16, bfloat16, fp16, float16, half, fp8, "
        "fp8_e4m3, fp8_e5m2, int8, fp8_per_token_head, int8_per_token_head, nvfp4, int4, "
        "int4_per_token_head, fp8_ds_mla, nvfp4_ds_mla",
        "did you mean int8?",
    ),
    (
        "models --block-size 99999999999999",
        2,
        "--block-size is 99999999999999: must be at most 1048576",
        "see kvpool models --help",
    ),
    ("hash 1 2 x", 2, "token 'x' at position 2 is no whole number from 0 to 4294967295", None),
    (
        "completion fishy",
        2,
        "SHELL is 'fishy': must be one of bash, zsh, fish, powershell",
        "did you mean fish? see kvpool completion --help",
    ),
    ("nope", 2, "kvpool has no command 'nope'", "see kvpool --help"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("wrong")
    (made / "t.jsonl").write_text(LINE)
    (made / "bad.jsonl").write_text(LINE + LINE.replace("0,", '"x",', 1))
    (made / "neg.jsonl").write_text(LINE.replace("600", "-5"))
    (made / "empty").write_text("")
    (made / "binary").write_bytes(bytes(range(256)) * 50)
    (made / "cut.gz").write_bytes(gzip.compress((LINE * 50).encode())[:60])
    (made / "a.json").write_text('{"mode": "engine", "hits": {}}')
    (made / "ids.jsonl").write_text('{"prompt": "hi"}\n')
    (made / "out.jsonl").write_text("is here")
    (made / "dir").mkdir()
    return made


@pytest.mark.parametrize(("command", "code", "error", "hint"), TABLE, ids=[row[0] for row in TABLE])
def test_a_wrong_argument_is_answered_so(
    folder: Path, command: str, code: int, error: str, hint: str | None
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    expected = f"error: {error}\n" + (f"hint: {hint}\n" if hint else "")
    assert run(command, folder) == (code, "", expected.replace("{}", str(folder)))
    assert not THEIRS.search(expected)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before, (
        "nothing changes"
    )


def test_every_command_is_in_the_table() -> None:
    commands = {row[0].split()[0] for row in TABLE}
    assert commands >= {
        "replay",
        "size",
        "compare",
        "trace",
        "journal",
        "store",
        "top",
        "generate",
        "models",
        "hash",
    }
    assert len(TABLE) >= 30


def test_words_of_libraries_are_ours() -> None:
    assert plain("asking failed: Connection refused (os error 111)") == "asking failed: Connection refused"
    assert plain("[Errno 13] Permission denied: 'x'") == "Permission denied: 'x'"
    assert (
        plain("a.json: no JSON: Expecting value: line 3 column 1 (char 9)")
        == "a.json: no JSON, from line 3 column 1 on"
    )


def test_a_panic_is_one_line_and_says_whose_fault_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class PanicException(BaseException):
        """An exception with the name of the class that PyO3 raises for a panic."""

    def broken(*_arguments: object, **_options: object) -> None:
        raise PanicException("index out of bounds: the len is 0")

    monkeypatch.setattr("kvpool.cli.generate.write_trace", broken)
    assert main(["generate"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: a fault of kvpool's: index out of bounds")
    assert "\nhint: please report it" in error
