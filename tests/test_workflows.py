"""The workflows of the hosting platform use existing make targets. They have no more rights than they
need.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_targets import Makefile

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
#: Jobs that may request a token for this repository's identity, in order to publish. Each is a workflow
#: and a job.
MAY_PUBLISH = {
    ("docs", "deploy"): {"pages": "write", "id-token": "write"},
    ("release", "publish-packages"): {"id-token": "write"},
    ("release", "publish-crates"): {"contents": "read", "id-token": "write"},
}


def read(path: Path) -> dict[Any, Any]:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(workflow, dict)
    return workflow


def jobs() -> list[tuple[str, str, dict[str, Any]]]:
    return [(path.stem, name, job) for path in WORKFLOWS for name, job in read(path)["jobs"].items()]


def made(job: dict[str, Any]) -> list[str]:
    """Returns the targets that a job makes. This includes targets in the job's matrix."""
    targets = []
    for step in job.get("steps", []):
        for words in re.findall(r"(?:^|[;&|]\s*)make\s+([^\n;&|]*)", step.get("run", ""), flags=re.MULTILINE):
            for word in words.split():
                if word == "$TARGET":
                    targets += [one for value in job["strategy"]["matrix"]["target"] for one in value.split()]
                elif "=" not in word and not word.startswith("-"):
                    targets.append(word)
    return targets


@pytest.fixture(scope="module")
def makefile() -> Makefile:
    return Makefile((ROOT / "Makefile").read_text(encoding="utf-8"))


def test_every_target_that_a_workflow_makes_is_there(makefile: Makefile) -> None:
    named = {(workflow, name, target) for workflow, name, job in jobs() for target in made(job)}
    assert {target for _, _, target in named} >= {
        "lint",
        "test",
        "test-threads",
        "test-soak",
        "dynamo-check",
        "crates-check",
    }
    unknown = {one for one in named if one[2] not in makefile.phony}
    assert not unknown


def test_no_job_does_what_no_target_does() -> None:
    for workflow, name, job in jobs():
        runs = [step["run"] for step in job.get("steps", []) if "run" in step]
        others = [run for run in runs if "make " not in run and "rustup " not in run]
        assert not others, (workflow, name)


def test_what_ci_checks_is_checked_for_every_change(makefile: Makefile) -> None:
    for_changes = [
        job for path in WORKFLOWS if "pull_request" in read(path)[True] for job in read(path)["jobs"].values()
    ]
    reached = makefile.reached({target for job in for_changes for target in made(job)})
    calls = re.findall(r"^make (.*)$", (ROOT / ".ci/run").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert calls[0] == "lint"
    assert calls[1].split() == ["test", "test-threads", "test-soak", "dynamo-check"]
    assert {"lint", *calls[1].split()} <= reached
    # The tests with a real vLLM take hours of machine time, so they run at night.
    (night,) = [job for workflow, name, job in jobs() if (workflow, name) == ("nightly", "check")]
    checks = {word for word in calls[2].split() if "=" not in word}
    assert checks <= set(made(night))


def test_the_night_is_that_of_the_makefile(makefile: Makefile) -> None:
    (night,) = [job for workflow, name, job in jobs() if (workflow, name) == ("nightly", "check")]
    assert set(makefile.needs["nightly"]) <= set(made(night))


def test_no_job_has_a_right_that_it_does_not_need_and_none_a_secret() -> None:
    for path in WORKFLOWS:
        assert read(path)["permissions"] == {"contents": "read"}, path.name
        assert "secrets" not in path.read_text(encoding="utf-8"), (
            "who publishes is trusted by name, without a token"
        )
    for workflow, name, job in jobs():
        assert job.get("permissions") == MAY_PUBLISH.get((workflow, name)), (workflow, name)
        if (workflow, name) in MAY_PUBLISH:
            assert "environment" in job


def test_no_job_runs_for_ever_or_keeps_a_token() -> None:
    for workflow, name, job in jobs():
        if "uses" in job:
            continue
        assert 0 < job["timeout-minutes"] <= 360, (workflow, name)
        for step in job["steps"]:
            if str(step.get("uses", "")).startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, (workflow, name)


def test_what_comes_from_outside_is_in_no_command() -> None:
    """The name of a branch or a tag can be like ``$(...)``, which a shell would execute. So values from
    outside are passed in the environment.
    """
    for workflow, name, job in jobs():
        for step in job.get("steps", []):
            assert "${{" not in step.get("run", ""), (workflow, name)


def test_what_a_workflow_makes_is_read() -> None:
    steps = [
        {"uses": "actions/checkout"},
        {"run": 'make lint --keep-going TARGETS="a b" test\necho make no && make demo'},
    ]
    assert [target for target in made({"steps": steps}) if target in {"lint", "test", "demo"}] == [
        "lint",
        "test",
        "demo",
    ]
    matrix = {"matrix": {"target": ["one", "two three"]}}
    assert made({"steps": [{"run": "make $TARGET"}], "strategy": matrix}) == ["one", "two", "three"]
