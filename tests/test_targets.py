"""Tests that every check has a make target, and that each such target runs for every change or at
night.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
#: Targets that neither `.ci/run` nor `make nightly` runs, each with the reason.
NO_CHECK: Final = {
    "help": "a list",
    "clean": "removes",
    "demo": "shows",
    "engine": "shows",
    "vectors": "makes",
    "fatbin": "makes; fatbin-check compares",
    "fuzz-corpus": "makes",
    "fuzz": "test-slow runs tools/fuzz.py itself",
    "gpu-check": "needs a GPU",
    "crates-publish": "publishes",
    "bench": "measures",
    "bench-rust": "measures",
    "bench-counts": "measures",
    "bench-requests": "measures",
    "bench-python": "measures",
    "bench-report": "measures",
    "events-bench": "measures",
    "journal-bench": "measures",
    "vllm-bench": "measures",
    "vllm-bench-steps": "measures",
    "vllm-bench-offload": "measures",
    "vllm-bench-tier": "measures",
}


class Makefile:
    """The targets of a Makefile. Each has its prerequisites and its recipe."""

    def __init__(self, text: str) -> None:
        self.needs: dict[str, list[str]] = {}
        self.recipes: dict[str, str] = {}
        lines = iter(text.replace("\\\n", " ").splitlines())
        current = ""
        for line in lines:
            rule = re.match(r"([A-Za-z][A-Za-z0-9-]*):(?!=)([^#]*)", line)
            if rule:
                current = rule[1]
                self.needs[current] = rule[2].split()
                self.recipes[current] = ""
            elif line.startswith("\t") and current:
                self.recipes[current] += line + "\n"
            elif line and not line.startswith("#"):
                current = ""
        phony = re.search(r"^\.PHONY:(.*)", text.replace("\\\n", " "), flags=re.MULTILINE)
        assert phony is not None
        self.phony = set(phony[1].split())

    def reached(self, first: set[str]) -> set[str]:
        """Returns these targets, and all targets that they make, directly or indirectly."""
        found: set[str] = set()
        left = list(first)
        while left:
            one = left.pop()
            if one not in found and one in self.needs:
                found.add(one)
                left += self.needs[one] + re.findall(
                    r"[\w-]+", " ".join(made_by(self.recipes[one], r"\$\(MAKE\)"))
                )
        return found


def made_by(text: str, make: str = "make") -> list[str]:
    """Returns the arguments of each call of make in a text."""
    return re.findall(rf"^\s*{make}\s+(.*)$", text, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def makefile() -> Makefile:
    return Makefile((ROOT / "Makefile").read_text(encoding="utf-8"))


def run_for_every_change(makefile: Makefile) -> set[str]:
    return makefile.reached(set(" ".join(made_by((ROOT / ".ci/run").read_text(encoding="utf-8"))).split()))


def scripts() -> list[Path]:
    """Returns the executable scripts under tools/ and cuda/."""
    found = [path for folder in ("tools", "cuda") for path in sorted((ROOT / folder).rglob("*.py"))]
    return [
        path
        for path in found
        if re.search(r"^if __name__ ==", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def test_every_script_that_can_be_run_has_a_target(makefile: Makefile) -> None:
    recipes = "".join(makefile.recipes.values())
    named = {path for path in scripts() if f" {path.relative_to(ROOT)}" in recipes}
    # A script may run another script as a module, or import it. In both cases it contains the name of that
    # module.
    texts = [path.read_text(encoding="utf-8") for path in named]
    modules = {path: str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path in scripts()}
    helpers = {path for path, module in modules.items() if any(module in text for text in texts)}
    left_over = {modules[path] for path in set(modules) - named - helpers}
    assert not left_over, f"no make target runs {sorted(left_over)}"
    assert len(named) > 15


def test_every_target_that_checks_is_run_for_every_change_or_at_night(makefile: Makefile) -> None:
    assert makefile.phony == set(makefile.needs), "every target is phony and every phony one is there"
    run = run_for_every_change(makefile) | makefile.reached({"nightly"})
    assert {"lint", "test-rust", "test-python", "stubs-check", "vllm-env", "vllm-conformance", "soak"} <= run
    # Targets that only build or install are run as prerequisites of other targets.
    never = makefile.phony - run - set(NO_CHECK)
    assert not never, f"neither .ci/run nor make nightly runs {sorted(never)}"
    assert not set(NO_CHECK) - makefile.phony
    assert not set(NO_CHECK) & run


def test_kvpool_in_a_real_vllm_is_checked_for_every_change(makefile: Makefile) -> None:
    wanted = {"vllm-drift", "vllm-check", "vllm-conformance", "vllm-shadow-selftest"}
    assert wanted <= run_for_every_change(makefile)


def test_the_checks_are_listed_for_who_contributes(makefile: Makefile) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    no_checks = {"build-rust-tests", "build-python-tests", "wheel", "nightly"}
    checks = (run_for_every_change(makefile) | makefile.reached({"nightly"})) - no_checks
    missing = {name for name in checks if f"`{name}`" not in text}
    assert not missing


def draws(function: ast.FunctionDef) -> bool:
    """Returns whether a test runs a state machine of Hypothesis, or a Hypothesis test that is defined
    inside of it.
    """
    for node in (inner for statement in function.body for inner in ast.walk(statement)):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        if called in {"run_state_machine_as_test", "run_share"} or any(
            ast.unparse(one).startswith("given(") for one in decorators
        ):
            return True
    return False


def test_what_draws_more_in_test_slow_is_run_there(makefile: Makefile) -> None:
    """`make test-slow` leaves out tests that `make test` already runs in the same way. It selects by
    markers the tests that draw more examples. Hypothesis marks its own tests.
    """
    assert '-m "slow or longer or hypothesis"' in makefile.recipes["test-slow-python"]
    longer, unmarked = 0, []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marked = "pytest.mark.longer" in map(ast.unparse, node.decorator_list)
                longer += marked
                unmarked += [f"{path.name}::{node.name}"] if draws(node) and not marked else []
        if 'environ.get("HYPOTHESIS_PROFILE")' in text and "@pytest.mark.longer" not in text:
            unmarked.append(path.name)
    assert not unmarked
    assert longer > 10


def test_what_is_set_for_test_slow_is_read(makefile: Makefile) -> None:
    recipes = "".join(makefile.recipes[target] for target in makefile.reached({"test-slow"}))
    given = dict(re.findall(r"(KVPOOL_\w+)=\$\((\w+)\)", recipes))
    assert set(given.values()) == {"MODEL_OPERATIONS", "FAULT_STATES", "SCHEDULES", "EXAMPLES"}
    sources = [*(ROOT / "rust").rglob("tests/**/*.rs"), ROOT / "tests/conftest.py"]
    read = set(re.findall(r'"(KVPOOL_\w+)"', "".join(path.read_text(encoding="utf-8") for path in sources)))
    assert set(given) <= read
    assert "tools/fuzz.py --all --seconds $(FUZZ_SECONDS)" in recipes


def test_what_the_makefile_says_is_read(makefile: Makefile) -> None:
    assert "stubs-check" in makefile.reached({"lint"})
    assert makefile.needs["vllm-check"] == ["vllm-env"]
    assert "tools/vllm_check.py" in makefile.recipes["vllm-check"]


@pytest.mark.parametrize(
    ("target", "build"),
    [
        ("demo", "--profile dev --features as-tested"),
        ("test-python", "--profile dev --features as-tested"),
        ("bench-python", "--release"),
        ("gpu-check", "--release"),
    ],
)
def test_what_is_measured_is_built_as_shipped(tmp_path: Path, target: str, build: str) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MAKE") and key != "MFLAGS"}
    command = ["make", "--dry-run", target, f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, check=True)
    assert re.findall(r"maturin develop (.*) --locked", done.stdout) == [build]


@pytest.fixture
def ci(tmp_path: Path) -> Path:
    """Makes a checkout that contains only .ci/run. Every command in it only records its arguments."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "bin").mkdir()
    for name, last in {
        "make": "exit ${MAKE_CODE:-0}",
        "python3": "exit ${ENV_CODE:-0}",
        "timeout": 'shift; "$@"',
    }.items():
        stub = tmp_path / "bin" / name
        said = "" if name == "timeout" else f'echo "{name} $*" >> {tmp_path}/called\n'
        stub.write_text(f"#!/bin/sh\n{said}{last}\n")
        stub.chmod(0o755)
    return tmp_path


def run_ci(ci: Path, **variables: str) -> tuple[int, list[str], str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KVPOOL_CI")}
    kept |= {"PATH": f"{ci / 'bin'}{os.pathsep}{os.environ['PATH']}", **variables}
    done = subprocess.run(["bash", ".ci/run"], cwd=ci, env=kept, capture_output=True, text=True, check=False)
    return done.returncode, (ci / "called").read_text().splitlines(), done.stderr


CHECKED = (
    "make vllm-drift vllm-shadow-selftest vllm-check VLLM_CHECK_LEVELS=manager",
    "make vllm-conformance VLLM_LEVELS=stock manager VLLM_FILES=core/test_prefix_caching.py "
    "core/test_scheduler.py core/test_single_type_kv_cache_manager.py core/prefix_cache/* "
    "core/test_prefix_replay.py core/test_swa_inflight_window_free.py core/test_async_scheduler.py "
    "kv_connector/unit/*",
)


def test_ci_checks_everything_where_it_can(ci: Path) -> None:
    code, called, said = run_ci(ci)
    assert (code, said) == (0, "")
    assert called == [
        "make lint",
        "make test test-threads test-soak dynamo-check",
        "python3 tools/vllm_env.py",
        *CHECKED,
    ]


@pytest.mark.parametrize("env_code", ["3", "124"])
@pytest.mark.parametrize(("wanted", "code"), [("", 0), ("1", 1)])
def test_an_unavailable_vllm_is_reported_and_fails_if_required(
    ci: Path, env_code: str, wanted: str, code: int
) -> None:
    found, called, said = run_ci(ci, ENV_CODE=env_code, KVPOOL_CI_VLLM=wanted)
    assert (found, CHECKED[0] in called) == (code, False)
    assert "NOT CHECKED: kvpool inside vLLM" in said


@pytest.mark.parametrize(("variable", "code"), [("ENV_CODE", 1), ("MAKE_CODE", 2)])
def test_anything_else_that_fails_is_a_failure(ci: Path, variable: str, code: int) -> None:
    assert run_ci(ci, **{variable: str(code)})[0] == code


def test_the_vllm_checks_can_be_left_out_with_a_message(ci: Path) -> None:
    code, called, said = run_ci(ci, KVPOOL_CI_VLLM="0")
    assert (code, called) == (0, ["make lint", "make test test-threads test-soak dynamo-check"])
    assert "NOT CHECKED" in said
