#!/usr/bin/env python3
"""Checks that `vllm serve` on the CPU can be recorded as a trace, and that the trace gives a pool size.

    python tools/vllm_trace_check.py

Needs the environment of tools/vllm_env.py, and `kvpool` with `kvpool[cli,events,metrics]` outside of
it. The server has a made-up model of two layers. Clients send completions: prompts with a common
prefix, and repeated prompts, which events do not show. Runs the four commands of docs/traces.md:
`vllm serve`, `kvpool trace record`, `kvpool trace stats`, `kvpool size`. Exit code 0: the trace has the
blocks of the prompts, and the recorder reports the share of requests that it has recorded. 1: a check
failed. 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # the folder tools/ contains a folder named vllm

from tools.vllm.common import ConformanceError, read_settings  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK: Final = 32
# Number of prompts with different last tokens. The first `REPEATED` of them are sent once more, when
# all their blocks are cached.
DISTINCT: Final = 24
REPEATED: Final = 8
#: Number of requests that ask vLLM to publish the blocks that they hit.
REPORTING: Final = 8
PREFIX: Final = 4 * BLOCK
TAIL: Final = 3 * BLOCK
MAKE_MODEL: Final = """
import pathlib, sys
from tokenizers import Tokenizer, models, pre_tokenizers
from tools.vllm.check_engine import VOCABULARY, write_model
folder = pathlib.Path(sys.argv[1])
write_model(folder, "full")
words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.save(str(folder / "tokenizer.json"))
(folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def environment(settings: dict[str, Any]) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("KVPOOL_VLLM", "VLLM_"))}
    kept.update(settings["environment"])
    kept.update(OMP_NUM_THREADS="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
    return kept


@contextlib.contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """Stops a process and the processes that it started, at the end of the context."""
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(url: str, process: subprocess.Popen[Any], seconds: float) -> None:
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.5)
    raise ConformanceError(f"the server does not answer at {url}")


def prompts() -> list[tuple[list[int], bool]]:
    """Yields the token ids of each prompt, and whether its request asks vLLM to publish its hits."""
    source = random.Random(44)
    shared = [source.randrange(3, 500) for _ in range(PREFIX)]
    made = [(shared + [source.randrange(3, 500) for _ in range(TAIL + 5)], False) for _ in range(DISTINCT)]
    repeated = [(prompt, False) for prompt, _ in made[:REPEATED]]
    return made + repeated + [(prompt, True) for prompt, _ in made[-REPORTING:]]


def ask(url: str, prompt: list[int], full: bool) -> None:
    body: dict[str, Any] = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 2,
        "temperature": 0,
        "ignore_eos": True,
    }
    if full:
        body["vllm_xargs"] = {"kv_cache_report_mode": "full"}
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def check(options: argparse.Namespace) -> list[str]:
    """Runs the four commands. Returns the problems."""
    settings = read_settings(options.venv)
    python, port = settings["python"], free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="kvpool-trace-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        events = f"ipc://{folder}/events"  # over TCP, vLLM can only bind all interfaces
        model, trace, log = folder / "tiny", folder / "day.jsonl", folder / "vllm.log"
        model.mkdir()
        subprocess.run(
            [python, "-c", MAKE_MODEL, str(model)], check=True, cwd=ROOT, env=environment(settings)
        )
        publish = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events}
        serve = [str(Path(python).with_name("vllm")), "serve", str(model), "--served-model-name", "tiny"]
        serve += [
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--max-model-len",
            "384",
            "--block-size",
            str(BLOCK),
        ]
        serve += ["--dtype", "float32", "--enforce-eager", "--kv-events-config", json.dumps(publish)]
        output = stack.enter_context(log.open("wb"))
        server = stack.enter_context(
            ended(
                subprocess.Popen(
                    serve, stdout=output, stderr=output, env=environment(settings), start_new_session=True
                )
            )
        )
        try:
            wait_for(f"{url}/health", server, options.timeout)
        except ConformanceError as error:
            return [f"{error}:\n{log.read_text(errors='replace')[-3000:]}"]
        record = [*options.kvpool, "trace", "record", events, str(trace), "--metrics", f"{url}/metrics"]
        recorder = stack.enter_context(
            ended(
                subprocess.Popen(
                    [*record, "--json"],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        )
        assert recorder.stderr is not None
        first = recorder.stderr.readline()
        if "recording" not in first:
            return [f"the recorder does not reach the server: {first}"]
        asked = prompts()
        for prompt, full in asked:
            ask(url, prompt, full)
        time.sleep(2)  # vLLM's publisher and its counters lag behind its answers
        recorder.send_signal(signal.SIGINT)
        told, errors = recorder.communicate(timeout=60)
        print(" ".join(record), told, errors, sep="\n")
        if recorder.returncode:
            return [f"kvpool trace record ended with {recorder.returncode}"]
        return list(judged(json.loads(told), trace, options.kvpool, len(asked)))


def judged(recorded: dict[str, Any], trace: Path, kvpool: list[str], asked: int) -> Iterator[str]:
    def run(*arguments: str) -> str:
        done = subprocess.run([*kvpool, *arguments], capture_output=True, text=True, check=False)
        print("$ kvpool", *arguments, done.stdout, done.stderr, sep="\n")
        if done.returncode:
            raise ConformanceError(f"kvpool {arguments[0]} ended with {done.returncode}")
        return done.stdout

    stats = json.loads(run("trace", "stats", str(trace), "--json"))
    blocks = (PREFIX + DISTINCT * TAIL) // BLOCK
    shown = asked - REPEATED
    expected = {
        "different blocks": (stats["unique_blocks"], blocks),
        "requests in the trace": (recorded["requests"], shown),
        "requests that the server counted": (recorded["server"]["finished_requests"], asked),
        "share of requests": (round(recorded["server"]["reconstructed_share"], 6), round(shown / asked, 6)),
        "batches that were lost": (recorded["missed"] + recorded["unreadable"], 0),
    }
    for name, (found, right) in expected.items():
        if found != right:
            yield f"{name}: {found}, not {right}"
    sized = json.loads(run("size", str(trace), "--capacities", "50%,100%", "--policies", "lru", "--json"))
    run("size", str(trace), "--capacities", "50%,100%")
    most = sized["policies"][0]["hits"][-1]["block_hit_rate"]
    right = 1 - blocks / stats["block_references"]
    if abs(most - right) > 1e-9:
        yield f"hits of a cache that holds all blocks: {most}, not {right}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-vllm", help="environment with vLLM")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds that the server may take to start"
    )
    options = parser.parse_args(arguments)
    beside = Path(sys.executable).with_name("kvpool")
    options.kvpool = [str(beside)] if beside.exists() else [sys.executable, "-m", "kvpool"]
    try:
        problems = check(options)
    except ConformanceError as error:
        problems = [str(error)]
    except KeyboardInterrupt:
        return 130
    for problem in problems:
        print(f"vllm_trace_check: {problem}", file=sys.stderr)
    print("vllm_trace_check:", "failed" if problems else "a server's traffic became a trace and a size")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
