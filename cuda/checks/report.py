"""The report of a run: checks, measurements and verdicts, as Markdown and JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Outcome: TypeAlias = Literal["ok", "FAILED", "skipped"]
Judgement: TypeAlias = Literal["PASS", "FAIL", "not measured"]


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """The result of one check: its name, and whether it passed."""

    section: str
    name: str
    outcome: Outcome
    detail: str
    seconds: float

    def cells(self) -> list[str]:
        """Return a row of the table of checks."""
        return [self.section, self.name, self.outcome, f"{self.seconds:.1f}", self.detail]


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One measurement."""

    table: str
    what: str
    #: Rate in GB/s. The table's title states whether it counts both bytes read and bytes written.
    rate: float | None = None
    #: The rate divided by the rate of a plain copy, if the table compares the two.
    share: float | None = None
    #: Time of the copy in microseconds, by the device's clock.
    micros: float | None = None
    #: Time of the call that started the copy, in microseconds.
    submit_micros: float | None = None
    note: str = ""

    def cells(self) -> list[str]:
        """Return a row of a table of measurements."""

        def number(value: float | None, form: str) -> str:
            return "" if value is None else format(value, form)

        share = "" if self.share is None else f"{100 * self.share:.0f} %"
        return [
            self.what,
            number(self.rate, ".1f"),
            share,
            number(self.micros, ".1f"),
            number(self.submit_micros, ".1f"),
            self.note,
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a target, such as a share of the rate of a plain copy, is reached."""

    target: str
    judgement: Judgement
    detail: str

    def cells(self) -> list[str]:
        """Return a row of the table of verdicts."""
        return [self.target, self.judgement, self.detail]


CHECK_HEAD = ("section", "check", "outcome", "s", "detail")
FIGURE_HEAD = ("what", "GB/s", "of plain", "us", "submit us", "note")
VERDICT_HEAD = ("target", "verdict", "detail")

_LEGEND = (
    "GB/s are bytes of blocks over the time by the device's clock, from what a copy waits for to its end; "
    "`of plain` compares them with one large copy by the driver. "
    "`submit us` is the time of the call from Python. Medians."
)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines)


class Report:
    """All results of a run of the GPU check up to now."""

    def __init__(self, facts: dict[str, str], *, dry_run: bool) -> None:
        self.facts = facts
        self.dry_run = dry_run
        self.checks: list[Check] = []
        self.figures: list[Figure] = []
        self.verdicts: list[Verdict] = []
        #: Reason why the run ended early, or "".
        self.ended_early = ""

    @property
    def failed(self) -> bool:
        """Whether a check has failed or a target was not reached."""
        return any(check.outcome == "FAILED" for check in self.checks) or any(
            verdict.judgement == "FAIL" for verdict in self.verdicts
        )

    def tables(self) -> dict[str, list[Figure]]:
        """Return the measurements by table."""
        tables: dict[str, list[Figure]] = {}
        for figure in self.figures:
            tables.setdefault(figure.table, []).append(figure)
        return tables

    def summary(self) -> str:
        """Return the most important results: every check that did not pass, and all verdicts."""
        bad = [check.cells() for check in self.checks if check.outcome != "ok"]
        parts = [f"{len(self.checks) - len(bad)} of {len(self.checks)} checks are ok"]
        if bad:
            parts.append(_markdown(CHECK_HEAD, bad))
        if self.verdicts:
            parts.append(_markdown(VERDICT_HEAD, (verdict.cells() for verdict in self.verdicts)))
        return "\n\n".join(parts)

    def markdown(self) -> str:
        """Return the report as Markdown."""
        title = f"# GPU check, {self.facts['card']}, {self.facts['date']}"
        parts = [title]
        if self.dry_run:
            parts.append(
                "**Dry run**: no card, times without meaning. Only that every section runs is shown."
            )
        if self.ended_early:
            parts.append(f"**Not complete**: {self.ended_early}.")
        parts.append(_markdown(("what", "value"), ([key, value] for key, value in self.facts.items())))
        if self.figures:
            parts.append(_LEGEND)
        if self.verdicts:
            parts += ["## Verdicts", _markdown(VERDICT_HEAD, (verdict.cells() for verdict in self.verdicts))]
        if self.checks:
            parts += ["## Checks", _markdown(CHECK_HEAD, (check.cells() for check in self.checks))]
        for name, figures in self.tables().items():
            parts += [f"## {name}", _markdown(FIGURE_HEAD, (figure.cells() for figure in figures))]
        return "\n\n".join(parts) + "\n"

    def as_json(self) -> str:
        """Return the report as JSON, for programs."""
        whole = {
            "facts": self.facts,
            "dry_run": self.dry_run,
            "ended_early": self.ended_early,
            "verdicts": [dataclasses.asdict(one) for one in self.verdicts],
            "checks": [dataclasses.asdict(one) for one in self.checks],
            "figures": [dataclasses.asdict(one) for one in self.figures],
        }
        return json.dumps(whole, indent=2) + "\n"

    def write(self, markdown: Path, for_programs: Path | None) -> None:
        """Write the report files again with the current results."""
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(self.markdown())
        if for_programs is not None:
            for_programs.parent.mkdir(parents=True, exist_ok=True)
            for_programs.write_text(self.as_json())
