"""Checks for plain English: finds prose that is hard to understand, and lines that are too wide.

Reads the comments, docstrings and Markdown paragraphs of the tracked files. The rules and limits are in
tools/plain.toml. A file without hits can still be hard to understand, because this check only finds
known patterns.

    python tools/plain.py              # fails, and lists the hits, if a limit is exceeded
    python tools/plain.py --list       # lists every hit and every wide line
    python tools/plain.py --folders    # prints a table by folder
    python tools/plain.py PATH...      # reads only these files and folders

Exit code 0: within the limits. 1: over a limit. 2: wrong usage.
"""

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
RULES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LIMITS = RULES["limits"]
PATTERNS = [(rule["name"], re.compile(rule["pattern"]), rule["advice"]) for rule in RULES["rules"]]
MARK = re.compile(r"^\s*(?:///|//!|//|#(?![!\[])) ?")
# Pattern of code spans, links and addresses, which are not prose.
VERBATIM = re.compile(r"`[^`]*`|\[[^\]]*\]\([^)]*\)|https?://\S+")
# Pattern of lines that are not prose: rows of tables, and commands that a docstring shows.
VERBATIM_LINE = re.compile(r"^(?:\s*\|| {4,}(?:python3?|\.venv\S*|kvpool|make) ).*$", re.MULTILINE)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Report:
    """The findings of the checks in one file: hits of rules, wide lines, number of words."""

    words: int = 0
    hits: list[tuple[int, str, str]] = field(default_factory=list)
    wide: list[tuple[int, int]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Returns the number of hits per 1,000 words."""
        return 1000 * len(self.hits) / max(self.words, 1)

    @property
    def is_over(self) -> bool:
        """Whether the file exceeds its limit of hits per 1,000 words.

        A file with a single hit never does, however short it is.
        """
        return len(self.hits) > 1 and self.rate > LIMITS["file"]


def blocks(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields the first line and the text of each comment, docstring and paragraph, without fenced code."""
    markdown = path.endswith(".md")
    block: list[str] = []
    first, fenced = 0, False
    for number, line in enumerate([*text.split("\n"), ""], 1):
        mark = MARK.match(line)
        body = (line if markdown else line[mark.end() :] if mark else "").strip()
        if body.startswith("|"):
            continue  # a row of a table is no sentence
        inside = (bool(body) and not body.startswith("#")) if markdown else mark is not None
        if body.startswith("```"):
            fenced = not fenced
            if not markdown:
                continue
        if inside and not fenced and not body.startswith("```"):
            first = first if block else number
            block.append(body)
        elif block and (markdown or not inside):
            yield first, " ".join(block)
            block = []
        if not markdown and not inside:
            fenced = False
    if path.endswith((".py", ".pyi")):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, DOCUMENTED) and (doc := ast.get_docstring(node)):
                prose = VERBATIM_LINE.sub("", re.split(r">>>|```", doc)[0])
                yield node.body[0].lineno, " ".join(prose.split())


def hits(text: str) -> Iterator[tuple[str, str]]:
    """Yields each hit of a rule, with the surrounding words."""
    bare = VERBATIM.sub("X", text)
    for name, pattern, _ in PATTERNS:
        for found in pattern.finditer(bare):
            yield name, bare[max(0, found.start() - 30) : found.end() + 50]
    for sentence in re.split(r"(?<=[.?!:;]) ", bare):
        if sum(word.strip(".,;:") != "X" for word in sentence.split()) > LIMITS["sentence"]:
            yield "long", sentence[:110]


def read(path: str, text: str) -> Report:
    """Checks one file."""
    report = Report()
    for line, block in blocks(path, text):
        report.words += len(block.split())
        report.hits += [(line, name, words) for name, words in hits(block)]
    limit = LIMITS["markdown" if path.endswith(".md") else "source"]
    report.wide = [
        (number, len(line))
        for number, line in enumerate(text.split("\n"), 1)
        if len(line) > limit and "http" not in line
    ]
    return report


def git(*arguments: str) -> list[str]:
    """Returns the lines that a git command prints."""
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def long_subjects() -> list[str]:
    """Returns the commit subjects that exceed the limit, of the commits after the commit `after`.

    If a shallow clone does not contain that commit, only the last commit is checked.
    """
    base = RULES["commits"]["after"]
    known = subprocess.run(["git", "cat-file", "-e", f"{base}^{{commit}}"], cwd=ROOT, capture_output=True)
    commits = git("log", "--no-merges", "--format=%s", f"{base}..HEAD" if known.returncode == 0 else "-1")
    return [subject for subject in commits if len(subject) > LIMITS["subject"]]


def problems(reports: dict[str, Report], subjects: list[str]) -> list[str]:
    """Returns one line for each limit that is exceeded."""
    found = [
        f"{path}: {report.rate:.1f} hits per 1,000 words; limit {LIMITS['file']}"
        for path, report in reports.items()
        if report.is_over
    ]
    found += [
        f"{path}:{line}: {columns} columns"
        for path, report in reports.items()
        for line, columns in report.wide
    ]
    rate = total(reports.values()).rate
    if rate > LIMITS["tree"]:
        found.append(f"all files: {rate:.1f} hits per 1,000 words; limit {LIMITS['tree']}")
    return found + [f"commit subject of {len(subject)} characters: {subject}" for subject in subjects]


def total(reports: Iterable[Report]) -> Report:
    """Adds reports up."""
    sum_ = Report()
    for report in reports:
        sum_.words += report.words
        sum_.hits += report.hits
        sum_.wide += report.wide
    return sum_


def folder_of(path: str) -> str:
    """Returns the first two folders of a path."""
    return "/".join(path.split("/")[:-1][:2]) or "."


def main(arguments: list[str]) -> int:
    """Runs the check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="list every hit and every wide line")
    parser.add_argument("--folders", action="store_true", help="print a table by folder")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="only these files and folders")
    options = parser.parse_args(arguments)
    files = [
        path
        for path in git("ls-files", "--", *(options.paths or ["."]))
        if path.endswith(tuple(RULES["files"]["endings"]))
        and not any(part in path for part in RULES["files"]["skipped"])
    ]
    reports = {
        path: read(path, (ROOT / path).read_text(encoding="utf-8", errors="replace")) for path in files
    }
    if options.folders:
        print("| folder | words | hits | per 1,000 | wide lines |\n|---|---|---|---|---|")
        for folder in sorted({folder_of(path) for path in files}):
            part = total(report for path, report in reports.items() if folder_of(path) == folder)
            print(f"| {folder} | {part.words} | {len(part.hits)} | {part.rate:.1f} | {len(part.wide)} |")
    failed = problems(reports, [] if options.paths else long_subjects())
    advice = {name: text for name, _, text in PATTERNS} | {"long": "make two sentences of it"}
    for path, report in reports.items():
        if options.list or report.is_over:
            for line, name, words in report.hits:
                print(f"{path}:{line}: {name}: ...{words}... ({advice[name]})")
    print(*failed, sep="\n", end="\n" if failed else "")
    sum_ = total(reports.values())
    kinds = ", ".join(
        f"{name} {count}" for name, count in Counter(name for _, name, _ in sum_.hits).most_common()
    )
    print(
        f"plain: {sum_.words} words, {len(sum_.hits)} hits ({kinds or 'none'}), "
        f"{sum_.rate:.1f} per 1,000 words, {len(sum_.wide)} wide lines"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
