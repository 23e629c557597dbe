"""Tests other forms of output (CSV, completion), the trace that is shipped with kvpool, and sizes in
numbers of GPUs.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool.cli import _app, main
from kvpool.cli.completion import proposals
from kvpool.cli.gpus import GPUS, gpu_memory, gpu_named
from kvpool.cli.problems import UsageError
from kvpool.models import kv_shape, model_names
from tests.command import ENVIRONMENT, json_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")

SMALL = ["--limit", "60"]


def csv_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    assert main([*arguments, "--csv"]) == 0
    captured = capsys.readouterr()
    assert "\r" not in captured.out
    return list(csv.DictReader(io.StringIO(captured.out)))


def test_the_example_is_what_the_generator_makes() -> None:
    """The shipped trace can be generated again from its documented parameters, so it contains no user's
    data.
    """
    made = kvpool.traces.Trace.generate(**kvpool.traces.EXAMPLE).to_jsonl()
    assert gzip.decompress(kvpool.traces.example_path().read_bytes()) == made


def test_the_example_is_small() -> None:
    assert kvpool.traces.example_path().stat().st_size < 100_000


@pytest.mark.parametrize("command", ["replay", "size", "trace stats", "trace validate"])
def test_example_is_a_name_for_it(capsys: pytest.CaptureFixture[str], command: str) -> None:
    if command == "size":
        size = ["size", "example", *SMALL, "--capacities", "5%", "--policies", "lru", "--hints", "none"]
        assert json_of(capsys, *size)["trace"]["source"] == "example"
    else:
        report = json_of(capsys, *command.split(), "example", *SMALL)
        assert report.get("source", report.get("trace", {}).get("source")) == "example"
        requests = report.get("requests", report.get("trace", {}).get("requests"))
        assert requests == 60


def test_a_file_of_that_name_comes_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example").write_bytes(kvpool.traces.Trace.generate(3).to_jsonl())
    assert json_of(capsys, "trace", "stats", "example")["requests"] == 3


def test_csv_of_a_replay_is_its_json_in_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["replay", "example", *SMALL, "--capacity-gib", "4", "--model", "llama-3.1-8b"]
    (row,) = csv_of(capsys, *options)
    report = json_of(capsys, *options)
    assert row["hits.token_hits"] == str(report["hits"]["token_hits"])
    assert float(row["token_hit_rate"]) == report["token_hit_rate"]
    assert row["trace.source"] == "example"
    assert row["kv_shape.name"] == "Llama-3.1-8B"
    assert row["engine.overloaded"] == str(report["engine"]["overloaded"]).lower()


def test_csv_of_a_size_has_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["size", "example", *SMALL, "--capacities", "5%,20%", "--policies", "lru,arc", "--hints", "0.5"]
    rows = csv_of(capsys, *options)
    report = json_of(capsys, *options)
    cells = {(row["kind"], row["name"], row["blocks"]): row["block_hit_rate"] for row in rows}
    wanted: dict[tuple[str, str, str], str] = {}
    lists: list[tuple[str, str, list[dict[str, Any]]]] = [
        *(("policy", policy["name"], policy["hits"]) for policy in report["policies"]),
        ("hints", "0.5", report["hints"][0]["hits"]),
        ("optimum", "", report["optimum"]["hits"]),
    ]
    for kind, name, hits in lists:
        for size, hit in zip(report["capacities"], hits, strict=True):
            wanted[kind, name, str(size["blocks"])] = str(hit["block_hit_rate"])
    wanted |= {
        ("lru-curve", "lru", str(point["blocks"])): str(point["block_hit_rate"])
        for point in report["lru_curve"]
    }
    assert cells == wanted
    # If no model is given, the sizes in GiB are unknown, so these cells of the CSV are empty.
    assert {row["gib"] for row in rows} == {""}


def test_csv_of_trace_stats_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = csv_of(capsys, "trace", "stats", "example", *SMALL)
    assert (row["requests"], row["format"], row["notes.records"]) == ("60", "mooncake", "60")
    rows = csv_of(capsys, "models")
    assert [row["name"] for row in rows] == model_names()
    assert rows[0]["layers"] == "32 full"
    (row,) = csv_of(capsys, "models", "gemma-3-27b", "--capacity-gib", "60")
    assert (row["layers"], row["capacity.gib"]) == ("10 full, 52 sliding 1,024", "60.0")


@pytest.mark.parametrize(
    "command", [["replay"], ["size"], ["trace", "stats", "example"], ["models"], ["models", "llama-3.1-8b"]]
)
def test_a_form_is_one(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert main([*command, "--json", "--csv"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, "give one of them" in captured.err) == ("", True)


def test_names_in_csv_are_shown_and_calculate_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / '=1+1,"\x1b]0;x\x07'
    path.write_bytes(kvpool.traces.Trace.generate(3).to_jsonl())
    (row,) = csv_of(capsys, "trace", "stats", str(path))
    assert row["source"] == str(tmp_path / '=1+1,"\\x1b]0;x\\x07')
    monkeypatch.chdir(tmp_path)
    (row,) = csv_of(capsys, "trace", "stats", path.name)
    assert row["source"].startswith("'=1+1")


def test_a_size_by_gpu_is_the_same_as_in_gib(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["replay", "example", *SMALL, "--model", "llama-3.1-8b"]
    by_gpu = json_of(capsys, *common, "--gpu", "h100", "--weights-gib", "15")
    by_gib = json_of(capsys, *common, "--capacity-gib", "57")  # 80 x 0.9 - 15
    assert by_gpu["capacity_blocks"] == by_gib["capacity_blocks"]
    assert by_gpu["gpu"] == {
        "name": "h100",
        "gpus": 1,
        "share": 0.9,
        "weights_gib": 15.0,
        "memory_gib": 80,
        "kv_gib": 57.0,
    }
    assert main([*common, "--gpu", "h100", "--weights-gib", "15"]) == 0
    assert "of 1 x h100 of 80 GiB, 90 % used" in capsys.readouterr().out


def test_size_takes_the_gpu_as_one_more_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--policies", "lru", "--hints", "none", "--capacities", "5%"]
    gpu = ["--gpu", "H200", "--gpus", "2", "--weights-gib", "132", "--gpu-share", "0.85"]
    shape = kv_shape("llama-3.3-70b")
    report = json_of(capsys, "size", "example", "--model", "llama-3.3-70b", *few, *gpu)
    wanted = 2 * 141 * 0.85 - 132
    blocks = int(wanted * 2**30 / (shape.bytes_per_token * 512))
    assert blocks in [size["blocks"] for size in report["capacities"]]
    assert main(["size", "example", "--model", "llama-3.3-70b", *few, *gpu]) == 0
    assert (
        f"{wanted:,.4g} GiB is what 2 x h200 of 141 GiB, 85 % used, weights 132 GiB"
        in capsys.readouterr().out
    )


def test_models_says_what_fits_onto_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json_of(capsys, "models", "llama-3.3-70b", "--gpu", "mi300x", "--weights-gib", "132")
    assert facts["capacity"]["gib"] == pytest.approx(192 * 0.9 - 132)
    assert facts["gpu"]["name"] == "mi300x"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpu", "h1000", "--weights-gib", "1"], "did you mean h100?"),
        (["--gpu", "h100"], "--gpu needs --weights-gib"),
        (["--gpus", "2"], "--gpus needs --gpu"),
        (["--weights-gib", "2"], "--weights-gib needs --gpu"),
        (["--gpu-share", "0.5"], "--gpu-share needs --gpu"),
        (["--gpu", "h100", "--weights-gib", "140"], "1 x h100 have 72 GiB for weights and KV"),
        (["--gpu", "h100", "--weights-gib", "nan"], "--weights-gib is nan"),
        (["--gpu", "h100", "--weights-gib", "-1"], "--weights-gib is -1"),
        (["--gpu", "h100", "--weights-gib", "1", "--gpus", "0"], "--gpus is 0"),
        (["--gpu", "h100", "--weights-gib", "1", "--gpu-share", "1.1"], "--gpu-share is 1.1"),
        (["--gpu", "h100", "--weights-gib", "1", "--gpu-share", "nan"], "--gpu-share is nan"),
    ],
)
@pytest.mark.parametrize("command", [["replay"], ["size"], ["models", "llama-3.1-8b"]])
def test_gpus_that_are_none(
    capsys: pytest.CaptureFixture[str], command: list[str], options: list[str], words: str
) -> None:
    model = [] if command[0] == "models" else ["--model", "llama-3.1-8b"]
    assert main([*command, *model, *options]) == 2
    captured = capsys.readouterr()
    assert (captured.out, words in captured.err) == ("", True), captured.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ["replay", "--capacity-gib", "4", "--model", "llama-3.1-8b"],
            "--gpu and --capacity-gib both give the size",
        ),
        (["replay", "--capacity-blocks", "4"], "--gpu and --capacity-blocks both give the size"),
        (["models", "llama-3.1-8b", "--capacity-gib", "4"], "--gpu and --capacity-gib both give the size"),
        (["replay"], "--gpu needs the KV shape of a model"),
        (["size"], "--gpu needs the KV shape of a model"),
        (["models"], "--gpu needs a model"),
    ],
)
def test_gpus_and_what_else_is_given(
    capsys: pytest.CaptureFixture[str], command: list[str], words: str
) -> None:
    assert main([*command, "--gpu", "h100", "--weights-gib", "1"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "name"),
    [
        *((name, name) for name in GPUS),
        *((name.upper(), name) for name in GPUS),
        ("h100-80gb", "h100"),
        ("H100 80GB", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("h100_pcie", "h100"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("H100 94GB", "h100-nvl"),
        ("A100", "a100"),
        ("A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("a100-80", "a100"),
        ("RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("rtx5090", "rtx-5090"),
        ("NVIDIA L40S", "l40s"),
        ("L40S 48GB", "l40s"),
        ("NVIDIA L4", "l4"),
        ("A10G", "a10"),
        ("NVIDIA H200", "h200"),
        ("b200 192 GB", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("MI300X OAM 192GB", "mi300x"),
    ],
)
def test_a_gpu_is_found_by_its_usual_names(written: str, name: str) -> None:
    assert gpu_named(written) == name


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("h100-40gb", "h100 has 80 GiB, h100-nvl has 94 GiB; --capacity-gib takes any size"),
        ("GH200 480GB", "gh200 has 96 GiB; --capacity-gib takes any size"),
        ("mi300", "did you mean mi300x? --capacity-gib takes any size"),
        ("h1000", "did you mean h100? --capacity-gib takes any size"),
        ("v100", "--capacity-gib takes any size"),
        ("", "--capacity-gib takes any size"),
        ("80gb", "--capacity-gib takes any size"),
    ],
)
def test_a_gpu_that_is_unknown_has_the_nearest_as_a_hint_or_none(written: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        gpu_named(written)
    assert refused.value.hint == hint


def test_the_hint_has_enough_gpus() -> None:
    """For every GPU and for many sizes of the weights, the command accepts the number of GPUs that its
    hint proposes.
    """
    for name in GPUS:
        for weights in (71.9, 72.0, 140.0, 800.0, 1600.5):
            if weights < GPUS[name] * 0.9:
                continue
            with pytest.raises(UsageError) as refused:
                gpu_memory(name, None, weights, None)
            more = gpu_memory(name, int(str(refused.value.hint).split()[1]), weights, None)
            assert more is not None
            assert more.kv_gib > 0


@pytest.mark.parametrize(
    ("model", "gpus", "note"),
    [
        ("llama-3.3-70b", "8", None),
        ("llama-3.3-70b", "16", "Llama-3.3-70B has 8 KV heads to a layer: tensor parallelism over 16 GPUs"),
        ("deepseek-v3", "1", None),
        ("deepseek-v3", "8", "DeepSeek-V3 has one KV head to a layer"),
        ("qwen3-next-80b-a3b", "4", "Qwen3-Next-80B-A3B has 2 KV heads"),
    ],
)
@pytest.mark.parametrize("command", ["models", "replay", "size"])
def test_copies_of_tensor_parallelism_are_said(
    capsys: pytest.CaptureFixture[str], command: str, model: str, gpus: str, note: str | None
) -> None:
    few = ["--limit", "60", "--no-progress"] if command != "models" else []
    cells = ["--capacities", "5%", "--policies", "lru", "--hints", "none"] if command == "size" else []
    named = [model] if command == "models" else ["example", "--model", model]
    assert main([command, *named, *few, *cells, "--gpu", "h200", "--weights-gib", "100", "--gpus", gpus]) == 0
    err = capsys.readouterr().err
    assert (note in err) if note else ("note" not in err)


def proposed(capsys: pytest.CaptureFixture[str], line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the completions that bash proposes for the last word of a line."""
    import typer

    words = line.split(" ")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    command = typer.main.get_command(_app)
    assert proposals(command, {"_KVPOOL_COMPLETE": "complete_bash"}) == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("kvpool ", ["replay", "size", "journal", "completion"]),
        ("kvpool jou", ["journal"]),
        ("kvpool journal sh", ["show", "shrink"]),
        ("kvpool size --capac", ["--capacities"]),
        ("kvpool size --model qwen3.6", ["qwen3.6-27b", "qwen3.6-35b-a3b"]),
        ("kvpool size --gpu mi3", ["mi300x", "mi325x", "mi350x", "mi355x"]),
        ("kvpool replay --eviction ad", ["adaptive"]),
        ("kvpool replay --hash vllm-s", ["vllm-sha256"]),
        ("kvpool replay --format moon", ["mooncake", "mooncake-sessions"]),
        ("kvpool completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_words_are_proposed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, some: list[str]
) -> None:
    found = proposed(capsys, line, monkeypatch)
    assert set(some) <= set(found), found
    last = line.split(" ")[-1]
    assert all(word.startswith(last) for word in found)


def test_nothing_is_proposed_unasked() -> None:
    assert proposals(None, {}) is None


@pytest.mark.parametrize("asked", ["complete_bash", "complete_nothing", "nothing"])
def test_a_variable_that_no_shell_has_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.delenv("COMP_WORDS", raising=False)
    monkeypatch.setenv("_KVPOOL_COMPLETE", asked)
    assert main(["models"]) == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_a_script_for_each_shell(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert main(["completion", shell]) == 0
    captured = capsys.readouterr()
    assert "_KVPOOL_COMPLETE" in captured.out
    assert captured.err == ""


def test_a_shell_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2
    assert "csh" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Runs the completion script in a real bash, which calls a real ``kvpool``."""
    import sys

    assert main(["completion", "bash"]) == 0
    script = tmp_path / "script.bash"
    script.write_text(capsys.readouterr().out)
    program = tmp_path / "kvpool"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvpool "$@"\n')
    program.chmod(0o755)
    lines = f"""
source {script}
COMP_WORDS=(kvpool size --gpu h2); COMP_CWORD=3
_kvpool_completion {program}
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", lines], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )  # fmt: skip
    assert (done.stdout.split(), done.returncode) == (["h20", "h200"], 0), done.stderr


def test_json_of_gpus_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "llama-3.1-8b", "--gpu", "b200", "--weights-gib", "16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu"]["gpus"] == 1
