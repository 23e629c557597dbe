"""tools/vllm_identity_check.py reports every difference. Its engines need vLLM, and are not run here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import vllm_identity_check
from tools.vllm.identity_cases import BASES, CASES, Start
from tools.vllm.identity_engine import Bench, expand, forked, prompts
from tools.vllm_identity_check import main, problems_of

TOKENS = [[1, 2], [3, 4]]


def record(*, hits: bool, **changed: Any) -> dict[str, Any]:
    start = {"tokens": TOKENS, "loads": 10 if hits else 0, "writes": 10, "damaged": 0, "failed": 0}
    starts: dict[str, Any] = {name: dict(start) for name in ("first", "stock", "second")}
    for name, fields in changed.items():
        starts.setdefault(name, {}).update(fields)
    return {"case": "change", "base": "full", "hits": hits, "seconds": 1.0, **starts}


@pytest.mark.parametrize("hits", [True, False])
def test_a_case_without_a_difference_has_no_problem(hits: bool) -> None:
    assert problems_of(record(hits=hits)) == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (record(hits=True, second={"loads": 0}), "KV has not changed, and nothing was loaded"),
        (record(hits=False, second={"loads": 3}), "KV has changed, and 3 chunks were loaded"),
        (record(hits=False, second={"tokens": [[1, 2], [3, 5]]}), "other tokens than without a store"),
        (record(hits=False, first={"writes": 0}), "the first start wrote nothing"),
        (record(hits=True, second={"damaged": 1}), "1 chunks damaged, 0 failed"),
        (record(hits=True, during={"error": "broken"}), "during: broken"),
    ],
)
def test_every_difference_is_a_problem(found: dict[str, Any], problem: str) -> None:
    assert problems_of(found) == [f"change: {problem}"]


def test_each_base_has_a_change_that_hits() -> None:
    """A base that never hits would let every change of it miss for another reason."""
    assert {case.base for case in CASES} == set(BASES) == {case.base for case in CASES if case.hits}
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(not case.hits for case in CASES) >= 17
    assert sum(case.hits for case in CASES) >= 17


def test_a_start_takes_settings_from_another() -> None:
    one = Start({"a": 1, "b": 1}, {"X": "1"}, adapter={"lora_name": "a"})
    both = one.with_(Start({"b": 2}, tier={"workers": 2}, actions=("reset",)))
    assert both == Start({"a": 1, "b": 2}, {"X": "1"}, {"workers": 2}, {"lora_name": "a"}, ("reset",))
    assert expand({"path": "{files}/a", "n": 1}, Path("/files")) == {"path": "/files/a", "n": 1}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of threads of other tests
def test_a_start_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert forked(lambda: {"pid": 1}, result) == {"pid": 1}
    failed = forked(lambda: {"never": 1 // 0}, result)
    assert "ZeroDivisionError" in failed["error"]
    assert prompts() == prompts()


def test_starts_of_a_case_share_a_store_and_files_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.vllm.identity_engine.write_files", lambda files: (files / "full").mkdir(parents=True))
    started: list[tuple[bool, bool, bool]] = []

    def start(self: Bench, start: Start, case: Any, *, stored: bool) -> dict[str, Any]:
        changed = (self.files / "full" / "README.md").exists()
        started.append((stored, changed, (self.store / "object").exists()))
        if stored:
            self.store.mkdir(exist_ok=True)
            (self.store / "object").write_text("")
        return {"tokens": TOKENS}

    monkeypatch.setattr(Bench, "start", start)
    bench = Bench(tmp_path)
    (case,) = [case for case in CASES if case.name == "a README in the folder"]
    for _ in range(2):
        bench.run(case)
    # The first start writes the store, which is copied for the second run; the run without a store happens
    # once.
    assert started == [(True, False, False), (False, True, True), (True, True, True), (True, True, True)]
    assert not (bench.files / "full" / "README.md").exists()


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, records: list[dict[str, Any]] | None, *arguments: str) -> int:
    """The tool over engines that have left these records."""
    (tmp_path / "kvpool.json").write_text(
        json.dumps({"python": sys.executable, "tests": str(tmp_path), "environment": {}})
    )

    def run_child(command: list[str], environment: Any, timeout: float) -> tuple[str, str]:
        if records is not None:
            Path(command[command.index("--result") + 1]).write_text(json.dumps(records))
        return ("", "log") if records is not None else ("exited with 1", "no vLLM")

    monkeypatch.setattr(vllm_identity_check, "run_child", run_child)
    return main(["--venv", str(tmp_path), *arguments])


def test_the_exit_code_says_whether_all_cases_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, [record(hits=True)], "--case", "README") == 0
    assert run(monkeypatch, tmp_path, [record(hits=True, second={"loads": 0})], "--case", "README") == 1
    assert run(monkeypatch, tmp_path, [record(hits=True)], "--case", "adapter") == 1
    assert "only 1 of" in capsys.readouterr().err
    assert run(monkeypatch, tmp_path, None) == 1
    assert "no vLLM" in capsys.readouterr().err
    for usage in (["--case", "nowhere"], ["--timeout", "0"]):
        with pytest.raises(SystemExit, match="2"):
            run(monkeypatch, tmp_path, [], *usage)
    assert main(["--venv", str(tmp_path / "nowhere")]) == 1
