"""Reads the examples of a Markdown page, and runs them as a reader would.

- A ``python`` block is run, after those before it on the page. A ``text`` block directly after it is
  its expected output.
- A ``console`` block is a session: lines that begin with ``$`` are commands, and the lines below each
  are its output. They run in a temporary folder for the page. ``kvpool`` runs in this process, and
  other commands do not run.
- An ``sh`` block is not run, because it needs a server, a disk or an engine. Its ``kvpool`` lines must
  parse, and its ``make`` targets must exist.
- In expected output, a line of ``...`` matches any lines, and ``...`` in a line matches any text.
- ``<!-- run by tests/name.py -->`` before a block names the test that runs it instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from kvpool.cli import _app, main

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
_FENCE: Final = re.compile(
    r"^(?P<note><!-- run by (?P<by>\S+) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Example:
    """A code block of a page, and what the page says about it."""

    page: str
    line: int
    language: str
    code: str
    #: The expected output, if the page shows it.
    printed: str | None = None
    #: The test that runs the block instead of test_docs.py, or None.
    by: str | None = None

    @property
    def runs(self) -> bool:
        return self.language in ("python", "console")


def examples(page: Path) -> list[Example]:
    """Returns the blocks of a page, in order. A text block after an example is part of the example."""
    text = page.read_text(encoding="utf-8")
    found: list[Example] = []
    end = 0
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        one = Example(page.name, line, match["language"], match["code"], by=match["by"])
        behind = found and found[-1].language == "python" and not text[end : match.start()].strip()
        if one.language == "text" and behind:
            found[-1] = dataclasses.replace(found[-1], printed=one.code)
        else:
            found.append(one)
        end = match.end()
    return found


def matches(printed: str, wanted: str) -> bool:
    """Returns whether the output equals the expected one. Ignores ends of lines, blank lines at both
    ends, and the number of consecutive spaces.
    """

    def lines(text: str) -> str:
        return "\n".join(re.sub(" +", " ", line.rstrip()) for line in text.strip("\n").split("\n"))

    pattern = ""
    for line in lines(wanted).split("\n"):
        pattern += r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
    return re.fullmatch(pattern, lines(printed) + "\n") is not None


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Runs the body in a folder, with a terminal of 80 columns without colours."""
    before, columns = Path.cwd(), os.environ.get("COLUMNS")
    os.chdir(folder)
    os.environ["COLUMNS"] = "80"
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns


def run_python(example: Example, names: dict[str, Any]) -> str:
    """Runs a ``python`` block with the names that earlier blocks have defined. Returns its output."""
    source = "\n" * example.line + example.code
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, example.page, "exec"), names)
    return printed.getvalue()


def commands(example: Example) -> list[tuple[str, str]]:
    """Returns the commands of a ``console`` block, each with its expected output. For a block without
    ``$``, returns its lines.
    """
    if example.language == "sh":
        found, line = [], ""
        for part in example.code.replace("\\\n", " ").splitlines():
            line += part
            try:
                shlex.split(line, comments=True)
            except ValueError:  # a quotation that spans several lines
                line += "\n"
                continue
            found.append((line, ""))
            line = ""
        assert not line, f"{example.page}:{example.line}: a quotation does not end"
        return found
    pieces = re.split(r"^\$ ", example.code.replace("\\\n", " "), flags=re.MULTILINE)
    assert pieces[0].strip() == "", f"{example.page}:{example.line}: a session begins with $"
    return [(piece.partition("\n")[0], piece.partition("\n")[2]) for piece in pieces[1:]]


def run_command(line: str) -> tuple[int, str]:
    """Runs one line of a session, if it is a kvpool command. Returns its exit code, and its output on
    both streams.
    """
    words = shlex.split(line, comments=True)
    output = None
    if ">" in words:
        output = Path(words[words.index(">") + 1])
        words = words[: words.index(">")]
    assert words[0] == "kvpool", f"a session runs kvpool, and not {words[0]}: make it a block of sh"
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    errors = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(errors):
        code = main(words[1:])
    stream.flush()
    printed = stream.buffer.getvalue().decode()
    if output is not None:
        output.write_text(printed, encoding="utf-8")
        printed = ""
    return code, printed + errors.getvalue()


def parse_command(line: str) -> None:
    """Checks a command that must not run. ``kvpool`` has to accept its options, and a make target has
    to exist.
    """
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if not words:
        return
    if words[0] == "kvpool":
        command = typer.main.get_command(_app)
        with command.make_context("kvpool", list(words[1:])) as context:
            rest = [*context._protected_args, *context.args]
            _parse_below(command, context, rest)
    elif words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in [word for word in words[1:] if "=" not in word and not word.startswith("-")]:
            assert re.search(rf"^[^\n#:]*\b{re.escape(target)}\b[^\n:]*:", makefile, re.MULTILINE), (
                f"no make {target}"
            )


def _parse_below(command: Any, context: Any, words: list[str]) -> None:
    if not hasattr(command, "resolve_command"):
        return
    name, below, rest = command.resolve_command(context, words)
    with below.make_context(name, list(rest), parent=context) as inner:
        _parse_below(below, inner, [*inner._protected_args, *inner.args])
