"""The command line: its numbers equal those of the library, errors are one line, and exit codes are
stable.
"""

from __future__ import annotations

import doctest
import gzip
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.cli import main
from kvpool.models import kv_shape, model_names
from tests.command import ENVIRONMENT, json_of, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvpool._core import HashAlgorithm

pytestmark = pytest.mark.usefixtures("plain_output")

SMALL = ["replay", "--limit", "40", "--capacity-blocks", "2000"]


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(kvpool.traces.Trace.generate(60, seed=3).to_jsonl())
    return path


def library_report(trace: kvpool.traces.Trace, **settings: Any) -> dict[str, Any]:
    replay = kvpool.traces.Replay(trace, **settings)
    replay.advance()
    report: dict[str, Any] = json.loads(replay.report_json())
    return report


@pytest.mark.parametrize("mode", ["lookup", "engine"])
@pytest.mark.parametrize("block_size", [16, 128])
def test_json_is_the_report_of_the_library(
    capsys: pytest.CaptureFixture[str], trace_file: Path, mode: str, block_size: int
) -> None:
    settings = {"mode": mode, "block_size": block_size, "capacity_blocks": 3000}
    options = ["--mode", mode, "--block-size", str(block_size), "--capacity-blocks", "3000"]
    printed = json_of(capsys, "replay", trace_file, *options)
    trace = kvpool.traces.Trace.read(trace_file)
    report = library_report(trace, **settings)
    assert {key: printed[key] for key in report} == report
    assert printed["trace"] == {"source": str(trace_file), **trace.summary()}
    assert printed["capacity_tokens"] == 3000 * block_size
    assert printed["saved_prefill_tokens"] == report["hits"]["token_hits"] > 0
    assert printed["wall_seconds"] > 0
    assert printed["peak_memory_bytes"] > 1 << 20
    assert "capacity_gib" not in printed


def test_every_engine_option_reaches_the_engine(capsys: pytest.CaptureFixture[str], trace_file: Path) -> None:
    settings: dict[str, Any] = {
        "watermark": 0.05,
        "max_running": 3,
        "step_tokens": 1000,
        "step_ms": 5.5,
        "prefill_tokens_per_s": 9000.0,
    }
    options = [
        text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))
    ]
    printed = json_of(capsys, "replay", trace_file, "--capacity-blocks", "9000", "--threads", "1", *options)
    trace = kvpool.traces.Trace.read(trace_file)
    report = library_report(trace, mode="engine", capacity_blocks=9000, **settings)
    assert printed["engine"] == report["engine"]
    for name in settings:
        others = {other: value for other, value in settings.items() if other != name}
        without = library_report(trace, mode="engine", capacity_blocks=9000, **others)
        if name != "watermark":
            assert without["engine"] != report["engine"], name


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("blake3", []),
        ("xxh3", ["--verify", "fingerprint", "--seed", "s"]),
        ("xxh3", ["--verify", "tokens"]),
        ("vllm-sha256-cbor", []),
        ("vllm-xxhash", ["--verify", "tokens", "--seed", "0"]),
    ],
)
def test_hash_algorithms_agree_on_hits(
    capsys: pytest.CaptureFixture[str], algorithm: str, options: list[str]
) -> None:
    printed = json_of(capsys, *SMALL, "--hash", algorithm, *options)
    assert printed["algorithm"] == algorithm
    assert printed["hits"] == json_of(capsys, *SMALL)["hits"]


def test_without_a_trace_one_is_made_up(capsys: pytest.CaptureFixture[str]) -> None:
    printed = json_of(capsys, *SMALL)
    trace = kvpool.traces.Trace.generate(40)
    assert printed["trace"] == {"source": "generated", **trace.summary()}
    assert printed["hits"] == library_report(trace, mode="engine", capacity_blocks=2000)["hits"]
    assert main(SMALL) == 0
    assert "generated" in capsys.readouterr().out


def test_size_in_gib_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--capacity-gib", "4", "--model", "llama-3.1-8b", "--dtype", "fp8"]
    printed = json_of(capsys, "replay", "--limit", "5", *options)
    shape = kv_shape("llama-3.1-8b", "fp8")
    assert printed["capacity_blocks"] == shape.blocks_in(4, 16) == 4096
    assert printed["capacity_gib"] == 4.0
    assert printed["kv_shape"] == {"name": "Llama-3.1-8B", "bytes_per_token": 65536, "bytes_per_state": 0}
    assert printed["saved_kv_gib"] == printed["saved_prefill_tokens"] * 65536 / 2**30


@pytest.mark.parametrize(
    ("options", "bytes_per_token"),
    [
        (["--layers", "4", "--kv-heads", "2", "--head-dim", "64"], 4 * 2 * 2 * 64 * 2),
        (["--layers", "4", "--kv-heads", "2", "--head-dim", "64", "--dtype", "FP8"], 4 * 2 * 2 * 64),
        (["--layers", "4", "--latent-dim", "576"], 4 * 576 * 2),
    ],
)
def test_size_in_gib_of_a_shape(
    capsys: pytest.CaptureFixture[str], options: list[str], bytes_per_token: int
) -> None:
    printed = json_of(capsys, "replay", "--limit", "2", "--capacity-gib", "1", *options)
    assert printed["kv_shape"]["bytes_per_token"] == bytes_per_token
    assert printed["capacity_blocks"] == 2**30 // (16 * bytes_per_token)
    with_blocks = json_of(capsys, "replay", "--limit", "2", "--capacity-blocks", "64", *options)
    assert with_blocks["capacity_gib"] == 64 * 16 * bytes_per_token / 2**30


@pytest.mark.parametrize("mode", ["lookup", "engine"])
def test_report_to_read(capsys: pytest.CaptureFixture[str], trace_file: Path, mode: str) -> None:
    options = ["--mode", mode, "--capacity-blocks", "3000", "--model", "gpt-2", "--verify", "tokens"]
    assert main(["replay", str(trace_file), *options]) == 0
    captured = capsys.readouterr()
    report = library_report(kvpool.traces.Trace.read(trace_file), mode=mode, capacity_blocks=3000)
    figures = [f"{100 * report[rate]:.2f} %" for rate in report if rate.endswith("hit_rate")]
    assert len(figures) == 4
    figures += [f"{report[count]:,}" for count in ("evicted", "allocated")]
    figures += [f"{count:,}" for name, count in report["hits"].items() if name != "requests"]
    if mode == "engine":
        figures += [f"{report['engine'][name]:,}" for name in ("steps", "preemptions", "peak_running")]
    text = captured.out
    assert [figure for figure in figures if figure not in text] == []
    words = (
        "What the figures mean",
        f"{mode} mode",
        "token hits",
        "peak memory",
        "KiB per token",
        "1.65 GiB",
    )
    assert [word for word in words if word not in text] == []
    # If stderr is no terminal, the progress bar is printed only once, as one line.
    assert len(captured.err.splitlines()) == 1
    assert "60/60 requests" in captured.err
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_replay_reports_an_overloaded_server(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["replay", "--limit", "200", "--no-progress", "--max-running", "2"]
    engine = json_of(capsys, *asked)["engine"]
    assert engine["overloaded"] is True
    assert engine["arrivals_per_s"] > engine["served_per_s"] > 0
    assert main(asked) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        f"The server is overloaded: {engine['arrivals_per_s']:,.3g} requests/s arrive, and "
        f"{engine['served_per_s']:,.3g} are served while others wait."
    ) in text
    assert f"to {engine['waiting_at_last_arrival']:,} when the last one arrives" in text
    assert "mean, of a queue that grows" in text
    assert json_of(capsys, *asked[:-2])["engine"]["overloaded"] is False
    assert main(asked[:-2]) == 0
    assert "overloaded" not in capsys.readouterr().out


def test_gzip_and_stdin_are_the_same_trace(
    capsys: pytest.CaptureFixture[str], trace_file: Path, tmp_path: Path
) -> None:
    plain = trace_file.read_bytes()
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(plain))
    hits = json_of(capsys, "replay", trace_file)["hits"]
    assert json_of(capsys, "replay", packed)["hits"] == hits
    for stdin in (plain, packed.read_bytes()):
        piped = run("replay", "-", "--json", stdin=stdin)
        assert (piped.returncode, piped.stderr) == (0, b"")
        printed = json.loads(piped.stdout)
        assert printed["hits"] == hits
        assert printed["trace"]["source"] == "stdin"


def test_limit_and_trace_block_size(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(kvpool.traces.Trace.generate(20, block_tokens=64).to_jsonl())
    printed = json_of(capsys, "replay", path, "--trace-block-size", "64", "--limit", "7")
    assert printed["hits"]["requests"] == 7
    assert printed["trace_block_tokens"] == 64
    assert main(["replay", str(path)]) == 1
    assert "--trace-block-size" in capsys.readouterr().err


def test_prefix_check_can_be_switched_off(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = '{{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [{}, 9]}}\n'
    path.write_text(line.format(1) + line.format(2))
    assert main(["replay", str(path)]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert "line 2: id 9 follows" in error
    assert "--no-check-prefixes" in hint
    assert json_of(capsys, "replay", path, "--no-check-prefixes")["hits"]["requests"] == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the trace is empty"),
        (
            b'{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [1]}\n{oops\n',
            "line 2, column 2",
        ),
        (b'{"timestamp": 0, "input_length": 3, "output_length": 1}\n', 'line 1: "hash_ids" is missing'),
        (
            b'\n{"timestamp": 0, "input_length": -3, "output_length": 1, "hash_ids": []}\n',
            'line 2: "input_length"',
        ),
        (b"\x1f\x8b\x08\x00damaged", "line 1: the gzip stream"),
    ],
)
def test_bad_traces(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    assert main(["replay", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {path}: {message}")
    assert len(captured.err.splitlines()) <= 2


def test_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["replay", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith(f"error: cannot open {tmp_path}/none: No such file")
    assert main(["replay", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{}", "model_type is missing"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (
            b'{"model_type": "llama", "num_hidden_layers": ' + b"9" * 4000 + b"}",
            "a number of more than 60 digits",
        ),
        (
            b'{"model_type": "olmo3", "num_hidden_layers": 2, "layer_types": ["\\u001b[31m", "x"]}',
            "layer_types has",
        ),
        (
            b'{"model_type": "\\u001b[31mlama"}',
            "model_type is '\\x1b[31mlama': must be a family that kvpool knows",
        ),
    ],
)
@pytest.mark.parametrize("command", ["models", "size", "replay"])
def test_a_bad_configuration_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, words: str, command: str
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    assert main([command, "--config", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert words in captured.err
    _, *hints = captured.err.splitlines()
    assert [hint[:6] for hint in hints] in ([], ["hint: "])
    assert "\x1b" not in captured.err
    assert main([command, "--config", str(tmp_path / "none.json")]) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nothing", "kvpool has no command 'nothing'"),
        ("replay --nothing", "kvpool replay has no option --nothing"),
        ("replay --mode sideways", "sideways"),
        ("replay --capacity-blocks 0", "--capacity-blocks is "),
        ("replay --capacity-blocks many", "--capacity-blocks is "),
        ("replay --limit 0", "--limit is "),
        ("replay --capacity-blocks 9 --capacity-gib 1 --model gpt-2", "--capacity-blocks and --capacity-gib"),
        ("replay --capacity-gib 1", "--capacity-gib needs the KV shape of a model"),
        ("replay --capacity-gib nan --model gpt-2", "--capacity-gib is nan"),
        ("replay --capacity-gib=-1 --model gpt-2", "--capacity-gib is -1.0"),
        ("replay --capacity-gib 1e-6 --model gpt-2", "holds no block: one of 16 tokens takes 576.0 KiB"),
        ("replay --model gpt-2 --layers 3 --head-dim 9", "--layers and --head-dim would change it"),
        ("replay --model gpt-2 --latent-dim 3", "--latent-dim would change it"),
        ("replay --layers 3", "--kv-heads and --head-dim missing"),
        ("replay --latent-dim 3", "--layers missing"),
        ("replay --layers 3 --latent-dim 9 --kv-heads 2", "which have no --kv-heads"),
        ("replay --layers 0 --kv-heads 2 --head-dim 64", "--layers is 0"),
        ("replay --layers 2 --kv-heads 0 --head-dim 64", "--kv-heads is 0"),
        ("replay --layers 2 --latent-dim 0", "--latent-dim is 0"),
        ("replay --dtype fp8", "--dtype needs the KV shape of a model"),
        ("replay --model gpt-2 --dtype fp7", "--dtype is 'fp7': must be one of fp32"),
        ("replay --layers 1 --kv-heads 1 --head-dim 8 --dtype fp7", "--dtype is 'fp7': must be one of fp32"),
        ("replay --model llama-3.1-8", "did you mean Llama-3.1-8B"),
        ("replay --model zzzz", "unknown model 'zzzz'\nhint: kvpool models"),
        ("replay --hash md5", "--hash is 'md5': must be one of sha256, blake3"),
        ("replay --hash xxh3", "must verify hits"),
        ("replay --hash xxh3", "hint: add --verify fingerprint"),
        ("replay --hash vllm-xxhash --verify tokens", "needs a seed"),
        ("replay --verify maybe", "--verify is 'maybe': must be one of none"),
        ("replay --eviction nothing", "lru"),
        ("replay --mode lookup --block-size 24", "--block-size is 24: must be a divisor of the trace's 512"),
        ("replay --mode lookup --step-ms 3 --max-running 4", "takes no --max-running, --step-ms"),
        ("replay --watermark 2", "--watermark is 2"),
        ("replay --step-ms 0", "--step-ms is 0"),
        ("replay --prefill-tokens-per-s nan", "--prefill-tokens-per-s is NaN"),
        ("replay --capacity-blocks 4294967294", "must be at most 4,294,967,293"),
        ("replay --threads 99999999999999999999999", "threads is 99999999999999999999999: must be at most"),
        ("generate --requests 0", "--requests is "),
        ("generate --rate-per-s 0", "--rate-per-s is 0; allowed: above 0"),
        ("generate --chat-fraction 1 --agent-fraction 1", "--chat-fraction + --agent-fraction is 2"),
        ("generate --seed 99999999999999999999999", "seed is 99999999999999999999999: must be at most"),
        ("models extra", "unknown model 'extra'"),
        ("models --capacity-gib 3", "--capacity-gib needs a model"),
        ("models --dtype fp7", "--dtype is 'fp7': must be one of fp32"),
        ("models gpt-2 --capacity-gib=-1", "--capacity-gib is -1.0"),
        ("models gpt-2 --config config.json", "--model and --config both give the KV shape"),
        (
            "replay --config config.json --kv-heads 2",
            "--config knows the KV shape, --kv-heads would change it",
        ),
        ("hash 1 two", "token 'two' at position 1"),
        ("hash 1 -1", "token -1 at position 1 is out of range"),
        ("hash 4294967296", "token 4294967296 at position 0"),
        ("hash 1 --algorithm md5", "--algorithm is 'md5': must be one of sha256"),
        ("hash 1 --algorithm vllm-xxhash", "needs a seed"),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    assert main(arguments.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert words in captured.err
    lines = captured.err.splitlines()
    assert len(lines) <= 2
    assert all(line.startswith("hint: ") for line in lines[1:])


def test_a_pool_larger_than_the_machine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    blocks = min(memory // 80 + 2**20, 2**32 - 3)
    if blocks * 80 <= memory:
        pytest.skip("the machine holds the largest pool")
    assert main(["replay", "--capacity-blocks", str(blocks)]) == 2
    assert "bookkeeping" in capsys.readouterr().err


def test_generate_is_deterministic_and_replays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.gz", "d.jsonl")]
    for path, seed in zip(files, (5, 5, 5, 6), strict=True):
        assert main(["generate", "--requests", "30", "--seed", str(seed), "-o", str(path)]) == 0
        captured = capsys.readouterr()
        assert captured.out == ""
        assert re.fullmatch(r"30 requests over [\d,]+ s, [\d,]+ prompt tokens, .* different\n", captured.err)
    plain, packed, again, other = (path.read_bytes() for path in files)
    assert plain == gzip.decompress(packed) == kvpool.traces.Trace.generate(30, seed=5).to_jsonl()
    assert packed == again
    assert plain != other
    settings: dict[str, Any] = {"mode": "engine", "capacity_blocks": 500}
    report = library_report(kvpool.traces.Trace.generate(30, seed=5), **settings)
    assert json_of(capsys, "replay", files[1], "--capacity-blocks", "500")["hits"] == report["hits"]


def test_generate_to_stdout_with_every_option() -> None:
    settings = {"rate_per_s": 2.5, "chat_fraction": 0.25, "agent_fraction": 0.5}
    options = [
        text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))
    ]
    done = run("generate", "--requests", "9", "--seed", "1", "--trace-block-size", "64", *options)
    assert done.returncode == 0
    assert done.stdout == kvpool.traces.Trace.generate(9, seed=1, block_tokens=64, **settings).to_jsonl()
    assert len(done.stderr.splitlines()) == 1


def test_generate_into_nowhere(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["generate", "-o", str(tmp_path / "no" / "t.jsonl")]) == 1
    line = f"error: {tmp_path}/no/t.jsonl: there is no directory {tmp_path}/no\n"
    assert capsys.readouterr().err.startswith(line)


def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    models = {model["name"]: model for model in json_of(capsys, "models")["models"]}
    assert list(models) == model_names()
    assert models["Llama-3.1-8B"]["bytes_per_token"] == 131072
    assert models["DeepSeek-V3"]["layers"] == [
        {
            "kind": "full",
            "layers": 61,
            "span": None,
            "keeps": "MLA 512 + 64",
            "bytes_per_token": 1152,
            "bytes_per_state": 0,
        }
    ]
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^ Llama-3.1-8B +32 full +128.0 +12.21 *$", text, re.MULTILINE)
    assert re.search(r"^ DeepSeek-V3 +61 MLA +68.6 +6.54 *$", text, re.MULTILINE)
    assert re.search(r"^ Gemma-3-27B +10 full, 52 window 1,024 +496.0 +11.86 *$", text, re.MULTILINE)
    assert re.search(r"^ Qwen3-Next-80B-A3B +12 full, 36 state +24.0 +37.7 +2.33 *$", text, re.MULTILINE)
    assert "\u2026" not in text  # no text is cut off
    assert json_of(capsys, "models", "--dtype", "fp8")["models"][0]["bytes_per_token"] == 65536


def test_one_model_with_its_groups(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ["--capacity-gib", "60", "--request-tokens", "32000"]
    printed = json_of(capsys, "models", "gemma-3-27b", *asked)
    groups = kv_shape("Gemma-3-27B").groups(16)
    assert [group["layers"] for group in printed["groups"]] == [10, 9, 9, 9, 9, 8, 8]
    assert printed["bytes_per_block"] == groups.block_bytes
    assert printed["request"] == {
        "tokens": 32000,
        "chunk": 8192,
        "blocks": [2000, 577, 577, 577, 577, 577, 577],
        "bytes": groups.request_bytes(32000),
    }
    assert printed["capacity"] == {"gib": 60.0, "blocks": 49152, "requests": 19, "longest_request": 731040}
    decoding = json_of(capsys, "models", "gemma-3-27b", *asked, "--chunk", "1")
    assert decoding["request"]["blocks"] == [2000, 65, 65, 65, 65, 65, 65]
    assert decoding["capacity"] | {"gib": 0} == {
        "gib": 0,
        "blocks": 49152,
        "requests": 20,
        "longest_request": 780192,
    }
    assert main(["models", "gemma-3-27b", *asked]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "19 such requests" in " ".join(text.split())
    # If the same shape is given as a file, the output is the same.
    config = tmp_path / "config.json"
    text_config = {
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
    }
    config.write_text(json.dumps({"model_type": "gemma3", "text_config": text_config}))
    read = json_of(capsys, "models", "--config", str(config), *asked)
    assert {**read, "name": "", "layers": []} == {**printed, "name": "", "layers": []}
    replayed = json_of(capsys, "replay", "--limit", "3", "--config", str(config), "--capacity-gib", "9")
    assert replayed["kv_shape"]["bytes_per_token"] == 62 * 2 * 16 * 128 * 2
    # If all layers have windows, blocks do not limit the length of a request.
    assert (
        json_of(capsys, "models", "mistral-7b-v0.1", "--capacity-gib", "2")["capacity"]["longest_request"]
        is None
    )
    assert main(["models", "mistral-7b-v0.1", "--capacity-gib", "2"]) == 0
    assert "one of any length" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("algorithm", kvpool.hashing.hash_algorithms())
def test_hash(capsys: pytest.CaptureFixture[str], algorithm: HashAlgorithm) -> None:
    extra = kvpool.ExtraKeys(salt="pepper")
    hasher = kvpool.BlockHasher(algorithm, 4, seed="1")
    digests = [digest.hex() for digest in hasher.hash_tokens(list(range(10)), extra)]
    assert len(digests) == 2
    options = ["--algorithm", algorithm, "--block-size", "4", "--salt", "pepper", "--seed", "1"]
    tokens = ["0,1,2", "3 4", "5", "6", "7,", "8", "9"]
    assert main(["hash", *options, *tokens]) == 0
    captured = capsys.readouterr()
    assert captured.out == "".join(f"{number}  {digest}\n" for number, digest in enumerate(digests))
    assert captured.err.startswith("2 of 10 tokens are in no full block")
    printed = json_of(capsys, "hash", *options, *tokens)
    assert printed["digests"] == digests
    assert printed["tokens_in_partial_block"] == 2


def test_hash_of_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["hash", "--block-size", "2", "7", "8"]) == 0
    expected = capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.StringIO(" 7,\n\t8\n"))
    assert main(["hash", "--block-size", "2"]) == 0
    assert capsys.readouterr() == expected


def test_hash_does_not_wait_for_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert main(["hash"]) == 2
    assert "no tokens" in capsys.readouterr().err


def test_version_and_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kvpool {kvpool.__version__}\n"
    assert main([]) == 0
    assert "Usage: kvpool" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["generate", "--requests", "20000"], ["replay", "--limit", "5"], ["models"], ["--help"]]
)
def test_a_closed_pipe_is_no_error(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "kvpool", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        error = child.stderr.read().decode()
        assert child.wait() == 0
    assert "rror" not in error
    assert "Traceback" not in error


def heed_interrupts() -> None:
    """Restores the default action of SIGINT. A shell starts background jobs with SIGINT ignored, and
    their children inherit this.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupted(*arguments: str | Path, when: Callable[[int], bool]) -> tuple[int, str]:
    """Starts a command, and sends Ctrl-C as soon as ``when(pid)`` is true. Returns its exit code and
    its errors.
    """
    command = [sys.executable, "-m", "kvpool", *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env=ENVIRONMENT, preexec_fn=heed_interrupts
    ) as child:
        deadline = time.monotonic() + 300
        while not when(child.pid):
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        out, error = child.communicate()
    assert out == b""
    return child.returncode, error.decode()


def test_ctrl_c_in_a_replay() -> None:
    def hashes(pid: int) -> bool:
        """Returns whether the threads that hash exist. Then the replay runs, which would take minutes."""
        return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1

    assert interrupted("replay", "--limit", "100000", "--no-progress", when=hashes) == (130, "")


def test_ctrl_c_while_reading() -> None:
    def reads(pid: int) -> bool:
        """Returns whether the process uses the default action of SIGINT. At its start, Python sets a
        handler of its own, which kvpool removes.
        """
        loaded = "_core.abi3" in Path(f"/proc/{pid}/maps").read_text()
        caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        assert caught is not None
        return loaded and not int(caught[1], 16) & 1 << (signal.SIGINT - 1)

    # SIGINT itself ends the process, which a shell reports as exit code 130.
    assert interrupted("replay", "-", when=reads) == (-signal.SIGINT, "")


def test_output_without_unicode() -> None:
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    calls = [["models"], ["replay", "--limit", "3"], ["replay", "--help"]]
    code = f"from kvpool.cli import main; print('codes:', [main(call) for call in {calls}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=False)
    assert done.stdout.endswith(b"codes: [0, 0, 0]\n"), done.stderr


def test_import_of_kvpool_leaves_the_command_line_out() -> None:
    code = "import kvpool, sys; print([name for name in sys.modules if name.startswith(('typer', 'rich'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


@pytest.mark.parametrize("module", ["problems", "capacity", "gpus", "rows"])
def test_examples_in_docstrings(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"kvpool.cli.{module}"))
    assert results.failed == 0
    assert results.attempted > 0


def test_png_draws_the_hit_rate(tmp_path: Path) -> None:
    picture = tmp_path / "hits.png"
    assert main(["replay", "--limit", "200", "--png", str(picture), "--no-progress"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("name", "message"), [("hits.gif", "must end in .png"), ("nowhere/hits.png", "there is no directory")]
)
def test_png_refuses_a_bad_name_before_the_replay(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, message: str
) -> None:
    assert main(["replay", "--limit", "200", "--png", str(tmp_path / name)]) == 2
    out, error = capsys.readouterr()
    assert message in error
    assert not out


def test_size_prints_the_policy_and_the_hints_that_gain_most(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["size", "example", "--capacities", "5%,20%", "--no-progress", "--hints", "1"]
    assert main([*arguments, "--policies", "lru,adaptive"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Most that a policy gains over LRU: +15.05 points, adaptive at 5 %: 517 blocks." in printed
    assert "Most that hints gain: +10.14 points, LRU, hints 100 % at 5 %: 517 blocks." in printed
    assert main([*arguments, "--policies", "lru"]) == 0
    assert "Most that a policy gains" not in capsys.readouterr().out
