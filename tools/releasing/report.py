"""What became of each part of a release: what was built, checked and run, what was not, and why."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Part:
    """A wheel, or the source distribution."""

    name: str
    #: The file, once it is built.
    file: str = ""
    bytes: int = 0
    sha256: str = ""
    #: What was checked, in the order it was, with what was found.
    checked: list[str] = field(default_factory=list)
    #: Why it was not built.
    not_built: str = ""
    #: What could not be run, or looked at, and why.
    not_run: list[str] = field(default_factory=list)
    #: What it failed at.
    failed: list[str] = field(default_factory=list)

    def built(self, path: Path) -> None:
        data = path.read_bytes()
        self.file, self.bytes, self.sha256 = path.name, len(data), hashlib.sha256(data).hexdigest()

    @property
    def is_whole(self) -> bool:
        """Built, checked and run."""
        return not (self.not_built or self.not_run or self.failed)

    def lines(self) -> list[str]:
        """In words, the first line with the name."""
        if self.not_built:
            return [f"{self.name}: NOT BUILT HERE: {self.not_built}"]
        first = f"{self.name}: {self.file}, {self.bytes:,} bytes" if self.file else f"{self.name}:"
        more = [f"  {line}" for line in self.checked]
        more += [f"  NOT RUN HERE: {line}" for line in self.not_run]
        more += [f"  FAILED: {line}" for line in self.failed]
        return [first, *more]


def write(parts: list[Part], out: Path, version: str, commit: str) -> None:
    """``report.json`` for programs, ``report.md`` for people, ``SHA256SUMS`` for sha256sum."""
    told = {"version": version, "commit": commit, "parts": [asdict(part) for part in parts]}
    (out / "report.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    page = [f"# kvpool {version}, commit {commit}", "", "| file | bytes | SHA-256 |", "|---|---|---|"]
    page += [f"| {part.file} | {part.bytes:,} | {part.sha256} |" for part in parts if part.file]
    page += ["", "```text", *(line for part in parts for line in part.lines()), "```", ""]
    (out / "report.md").write_text("\n".join(page), encoding="utf-8")
    sums = [f"{part.sha256}  {part.file}\n" for part in parts if part.file]
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
