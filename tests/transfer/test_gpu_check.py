"""Tests the GPU check without a GPU. On the fake driver it runs completely. Without any driver it
reports that no GPU was found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.transfer.fake_cuda.build import build

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = {"correctness", "bench", "fake driver"}
BENCHES = {"Plain copies", "On the device", "Calibration", "Swaps"}
#: Settings of the fake driver. Work runs only when a call waits for it, so a missing wait is detected.
LAZY = {"FAKE_CUDA_LAZY": "1", "FAKE_CUDA_EVENT_QUERIES": "0"}


def run(
    library: Path | str, *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "cuda" / "gpu_check.py"), *map(str, arguments)]
    settings = {**os.environ, "KVPOOL_LIBCUDA": str(library), **(environment or {})}
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fake-cuda"))


def outcomes(report: dict[str, Any], outcome: str) -> list[str]:
    return [f"{one['name']}: {one['detail']}" for one in report["checks"] if one["outcome"] == outcome]


def test_a_dry_run_goes_through_every_section(library: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    ended = run(library, "--quick", "--dry-run", "--out", tmp_path, "--json", file, environment=LAZY)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(file.read_text())
    assert outcomes(report, "FAILED") == []
    # A dry run skips some checks: those that need gigabytes of memory, and those that need torch on the
    # device.
    assert len(outcomes(report, "skipped")) <= 5
    assert {one["section"] for one in report["checks"]} == SECTIONS
    assert {one["table"].split(" (")[0] for one in report["figures"]} == BENCHES
    assert {one["judgement"] for one in report["verdicts"]} == {"not measured"}
    (markdown,) = tmp_path.glob("gpu-kvpool-fake-gpu-0-*.md")
    text = markdown.read_text()
    assert text.startswith(f"# GPU check, kvpool fake GPU 0, {report['facts']['date']}\n")
    assert "**Dry run**" in text
    for heading in ("## Verdicts", "## Checks", "## Swaps"):
        assert heading in text
    assert str(markdown) in ended.stdout.replace("\n", "")


def test_a_violation_or_a_wrong_byte_fails_the_run(library: Path, tmp_path: Path) -> None:
    """The third launch of a kernel returns an error. The GPU check continues and reports the error."""
    file = tmp_path / "report.json"
    settings = {"FAKE_CUDA_FAIL_LAUNCH": "3", "FAKE_CUDA_FAIL_LAUNCH_CODE": "1"}
    arguments = ("--dry-run", "--no-torch", "--only", "correctness", "--out", tmp_path, "--json", file)
    ended = run(library, *arguments, environment=settings)
    assert ended.returncode == 1
    report = json.loads(file.read_text())
    (failed,) = outcomes(report, "FAILED")
    assert "CudaError: cuLaunchKernel" in failed
    assert len(outcomes(report, "ok")) >= 4
