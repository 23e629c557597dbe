"""Plants hundreds of small defects, called mutants, in a copy of the sources. Each mutant has a number.
One build contains all of them, and the environment variable KVPOOL_MUTANT enables one.

A mutant is one change of one line:

    negate    the condition of an `if` is inverted
    omit      a statement is left out
    side      one operand of `&&` or `||` is ignored
    bound     `<` becomes `<=`, `<=` becomes `<`; likewise `>` and `>=`
    one       `+ 1` or `- 1` is left out
    accept    the closure of `filter`, `any`, `is_some_and` or `is_none_or` accepts everything

No mutants are planted in checks of invariants, debug assertions, const functions, macros, formatting
and tests. A hash of its text assigns each mutant to one of two halves. A developer may use the half
`tuning` to improve a driver, which is a program that makes random calls. The half `blind` only serves
to judge the driver.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Files and folders below rust/ in which mutants are planted. The key is the subject, that is the kind
#: of object whose drivers should find them.
SOURCES: Final = {
    "pool": (
        *(
            f"kvpool/src/{name}.rs"
            for name in ("allocator", "fence", "free_list", "list", "record", "retention")
        ),
        *(f"kvpool/src/{name}" for name in ("evictor", "pool", "prefix_index")),
        *(f"kvpool-policies/src/{name}" for name in ("ranks", "closed.rs", "closed")),
    ),
    "manager": tuple(f"kvpool/src/{name}" for name in ("groups", "manager", "sequence", "tiers")),
    "vllm": ("kvpool-vllm/src",),
}
CRATES: Final = ("kvpool", "kvpool-policies", "kvpool-vllm")
#: Files without mutants, because they check invariants, inject faults or define texts.
LEFT_ALONE: Final = {"checks.rs", "invariants.rs", "faults.rs", "error.rs", "names.rs", "lib.rs"}
SWITCH: Final = """
/// Whether the mutant of this number is on. `KVPOOL_MUTANT` is read once.
#[doc(hidden)]
#[inline]
#[must_use]
pub fn mutant(number: usize) -> bool {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    static ON: AtomicUsize = AtomicUsize::new(usize::MAX);
    if ON.load(Relaxed) == usize::MAX {
        let number = std::env::var("KVPOOL_MUTANT").ok().and_then(|number| number.parse().ok());
        ON.store(number.unwrap_or(0), Relaxed);
    }
    ON.load(Relaxed) == number
}
"""

_ROUND: Final = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_TERM: Final = rf"[*&]*(?:[\w.:?]|{_ROUND}|\[[^\[\]]*\])+"
_SUM: Final = rf"{_TERM}(?: [-+*/%] {_TERM})*"
_BEFORE: Final = r"(?:(?<=if )|(?<=&& )|(?<=\|\| )|(?<=\()|(?<= = )|(?<=\w\| ))"
_AFTER: Final = r"(?=\)|,|;| \{| &&| \|\|| =>|$)"
COMPARISON: Final = re.compile(rf"{_BEFORE}({_SUM}) (<=?|>=?) ({_SUM}){_AFTER}")
ONE: Final = re.compile(
    rf"(?:{_BEFORE}|(?<=[<>=] )|(?<=\[)|(?<=, ))({_TERM}) ([-+]) 1(?=\)|,|;|\]| [<>=]=? | \{{|$)"
)
CLOSURE: Final = re.compile(r"\.(?:filter|any|is_some_and|is_none_or)(\(\|[^|]*\| )")
IF: Final = re.compile(r"^(\s*(?:\} else )?if )(.+)( \{)$")
NO_STATEMENT: Final = (
    r"(?:let|return|break|continue|use|const|static|type|struct|fn|mod|pub|assert|debug_assert|ensure|"
    r"unreachable)"
)
STATEMENT: Final = re.compile(rf"^(\s+)((?!{NO_STATEMENT}\b)[\w*(].*;)$")
FUNCTION: Final = re.compile(r"^(\s*)(?:pub(?:\([a-z]+\))? )?(const )?fn (\w+)")
#: Starts of regions without mutants. A region ends at its closing brace.
REGION: Final = re.compile(
    r"^(\s*)(?:macro_rules!|impl.* (?:fmt::)?(?:Debug|Display|Default) for |impl.* Error for )"
)
SKIPPED: Final = re.compile(
    r"\s*(?:$|//|#|(?:debug_)?assert|ensure|(?:pub )?const |static |type |use )|.*\.(?:sound|broken)\("
)
#: Patterns that undo the changes that other mutants have made to the same line.
ADDED: Final = (
    (re.compile(r"\(if crate::mutant\(\d+\) \{ .*? \} else \{ (.*?) \}\)"), r"\1"),
    (re.compile(r" \|\| crate::mutant\(\d+\)"), ""),
)
FLIPPED: Final = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


class Change(NamedTuple):
    """A possible mutant of a line: its kind, and the part of the line that it changes."""

    kind: str
    part: str


@dataclass(frozen=True)
class Mutant:
    """A planted defect."""

    number: int
    file: str
    line: int
    kind: str
    #: The part of the line that the mutant changes, and the whole line.
    part: str
    text: str
    subject: str
    #: A hash of file, text, kind and part. A mutant has the same hash in a copy in which lines before
    #: it have moved.
    key: str

    @property
    def half(self) -> str:
        """Half of the mutants to which this one belongs, `tuning` or `blind`. Drivers may be improved
        only with `tuning`.
        """
        return "tuning" if int(self.key[-1], 16) % 2 else "blind"


def split(text: str, operator: str) -> list[str]:
    """Splits a condition at an operator, and returns its operands. Ignores operators inside of
    parentheses.
    """
    sides, depth, start = list[str](), 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if not depth and text.startswith(f" {operator} ", at):
            sides.append(text[start:at])
            start = at + len(operator) + 2
    return [*sides, text[start:]]


def closing(text: str, at: int) -> int:
    """Returns the position of the parenthesis that closes the one at position `at`, or -1 if it is on
    another line.
    """
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] in "([{") - (text[end] in ")]}")
        if depth == 0:
            return end
    return -1


def change_sides(condition: str, take: Callable[[Change], int]) -> str:
    """Returns a condition in which mutants can disable each operand of `||`. If there is no `||`, they
    can disable each operand of `&&`.
    """
    for operator, with_mutant in (
        ("||", "(({side}) && !crate::mutant({n}))"),
        ("&&", "(({side}) || crate::mutant({n}))"),
    ):
        sides = split(condition, operator)
        if len(sides) > 1 and not any(side.strip().startswith("let ") for side in sides):
            changed = [with_mutant.format(side=side, n=take(Change("side", side))) for side in sides]
            return f" {operator} ".join(changed)
    return condition


def change_closures(line: str, take: Callable[[Change], int]) -> str:
    """Returns a line in which mutants can make the closures of filters accept everything."""
    for found in reversed(list(CLOSURE.finditer(line))):
        start, end = found.end(), closing(line, found.start(1))
        if end >= 0 and not line[start:end].startswith("{"):
            number = take(Change("accept", line[start:end]))
            line = f"{line[:start]}({line[start:end]}) || crate::mutant({number}){line[end:]}"
    return line


def change(line: str, before: str, after: str, take: Callable[[Change], int]) -> str:
    """Returns a line with all its mutants. `take` returns the number for each new mutant. `before` and
    `after` are the lines around it.
    """
    whole = line

    def one(found: re.Match[str]) -> str:
        number = take(Change("one", found[0]))
        return f"(if crate::mutant({number}) {{ {found[1]} }} else {{ {found[0]} }})"

    def bound(found: re.Match[str]) -> str:
        left, operator, right = found.groups()
        number = take(Change("bound", f"{left} {operator} {right}"))
        return f"(if crate::mutant({number}) {{ {left} {FLIPPED[operator]} {right} }} else {{ {found[0]} }})"

    goes_on = after.lstrip().startswith((".", "?", "as ")) or before.rstrip().endswith(("=", "(", "+", "-"))
    if '"' not in line and not goes_on and not line.lstrip().startswith((".", "&& ", "|| ", "+ ", "- ")):
        line = change_closures(line, take)
        line = ONE.sub(one, line)
        line = COMPARISON.sub(bound, line)
        is_tail = (
            before.rstrip().endswith(("{", ";", "}"))
            and after.strip() == "}"
            and not line.endswith((";", ","))
        )
        if is_tail and " {" not in whole:
            line = line[: len(line) - len(line.lstrip())] + change_sides(line.strip(), take)
    if (found := IF.match(line)) and not re.search(r"\blet\b", found[2]):
        number = take(Change("negate", found[2] if line == whole else IF.sub(r"\2", whole)))
        return f"{found[1]}({change_sides(found[2], take)}) ^ crate::mutant({number}){found[3]}"
    is_whole = (
        before.rstrip().endswith(("{", ";", "}")) or before.lstrip().startswith("//") or not before.strip()
    )
    if (found := STATEMENT.match(line)) and is_whole and closing(f"({found[2]})", 0) == len(found[2]) + 1:
        return f"{found[1]}if !crate::mutant({take(Change('omit', whole.strip()))}) {{ {found[2]} }}"
    return line


def open_lines(lines: list[str]) -> Iterable[tuple[int, str]]:
    """Yields the lines in which mutants may be planted, with their positions."""
    leave: str | None = None
    for at, line in enumerate(lines):
        if leave is not None:
            leave = None if line.rstrip() in {leave + "}", leave + "};"} else leave
            continue
        if found := REGION.match(line):
            leave = None if line.endswith("}") else found[1]
        elif found := FUNCTION.match(line):
            head = "\n".join(lines[at : at + 14])
            head = head[: min(end for end in (head.find("{"), head.find(";"), len(head)) if end >= 0)]
            checks = "InvariantViolation" in head or found[3].startswith("corrupt")
            if (found[2] or checks) and not line.endswith(("}", ";")):
                leave = found[1]
        elif not SKIPPED.match(line):
            yield at, line


class Planter:
    """Assigns numbers to mutants, one file after the other."""

    def __init__(self, left_out: frozenset[tuple[str, int]]) -> None:
        #: Lines that get no mutants, each as file and line number. Their mutants still get numbers, so
        #: the numbers of other mutants do not change.
        self.left_out = left_out
        self.mutants: list[Mutant] = []
        self.number = 0
        self.seen: dict[str, int] = {}

    def take(self, subject: str, file: str, line: int, text: str, it: Change) -> int:
        self.number += 1
        part = it.part
        for added, before in ADDED:
            part = added.sub(before, part)
        identity = f"{file} {text} {it.kind} {part}"
        self.seen[identity] = self.seen.get(identity, 0) + 1
        key = hashlib.sha256(f"{identity} {self.seen[identity]}".encode()).hexdigest()[:12]
        if (file, line) not in self.left_out:
            self.mutants.append(Mutant(self.number, file, line, it.kind, part, text, subject, key))
        return self.number

    def plant(self, subject: str, file: str, text: str) -> str:
        """Returns the text of a file with all its mutants. A mutant never adds a line."""
        code, tests, rest = text.partition("#[cfg(test)]\nmod ")
        lines = code.split("\n")
        planted = list(lines)
        for at, line in open_lines(lines):
            before = next((one for one in reversed(lines[:at]) if one.strip()), "{")
            after = lines[at + 1] if at + 1 < len(lines) else ""
            changed = change(line, before, after, partial(self.take, subject, file, at + 1, line.strip()))
            planted[at] = line if (file, at + 1) in self.left_out else changed
        return "\n".join(planted) + tests + rest


def plant(
    tree: Path, left_out: frozenset[tuple[str, int]] = frozenset()
) -> tuple[dict[Path, str], list[Mutant]]:
    """Plants mutants in the files of a tree, except in the lines of `left_out`. Returns the changed
    files and the mutants.
    """
    planter, files = Planter(left_out), dict[Path, str]()
    for subject, places in SOURCES.items():
        tops = [tree / "rust" / place for place in places]
        paths = [path for top in tops for path in ([top] if top.suffix else sorted(top.rglob("*.rs")))]
        for path in (path for path in paths if path.name not in LEFT_ALONE and path.exists()):
            files[path] = planter.plant(subject, str(path.relative_to(tree / "rust")), path.read_text())
    for crate in CRATES:
        library = tree / "rust" / crate / "src/lib.rs"
        if library.exists():
            files[library] = library.read_text() + SWITCH
    return files, planter.mutants
