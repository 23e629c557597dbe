"""The command line, ``kvpool``, with one module per command.

This module owns the exit codes. 0: the command succeeded. 1: it failed, for example because of an invalid
trace or file. 2: the arguments are wrong. 130: Ctrl-C ended it. Every error is one line on stderr,
``error: ...``, sometimes with a second line that suggests the next step. Results go to stdout, everything
else to stderr. It is not an error if the reader of stdout closes it early (``| head``). Text from files
and reports is cleaned by :mod:`kvpool.cli.terminal` before it is printed.

Only modules below this package import Typer and Rich, which ``kvpool[cli]`` installs: neither ``import
kvpool`` nor the plug-ins need them. Without them, :mod:`kvpool.__main__` prints how to install them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

import kvpool
from kvpool.cli import usage
from kvpool.cli.catalogue import models_command
from kvpool.cli.compare import compare_command
from kvpool.cli.completion import completion_command, proposals
from kvpool.cli.examples import EXAMPLES
from kvpool.cli.generate import generate_command
from kvpool.cli.hashing import hash_command
from kvpool.cli.journal import journal_app
from kvpool.cli.problems import UsageError, next_step, os_error_line, plain
from kvpool.cli.replay import replay_command
from kvpool.cli.size import size_command
from kvpool.cli.store import store_app
from kvpool.cli.terminal import prepared, shown
from kvpool.cli.top import top_command
from kvpool.cli.trace import trace_app
from kvpool.errors import KvpoolError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvpool {kvpool.__version__}")
        raise typer.Exit


@_app.callback(invoke_without_command=True, epilog=EXAMPLES["kvpool"])
def _top(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - the callback acts on it
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Measure what the KV-cache blocks of LLM inference engines are worth.

    The commands size a cache for a request trace, replay the trace through the
    block manager, and compare two runs. Others show the size of a model's KV
    cache, find the cause of an error in a journal, and inspect and clean a
    store.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_app.command("replay", epilog=EXAMPLES["replay"])(replay_command)
_app.command("size", epilog=EXAMPLES["size"])(size_command)
_app.command("compare", epilog=EXAMPLES["compare"])(compare_command)
_app.add_typer(trace_app, name="trace")
_app.add_typer(journal_app, name="journal")
_app.add_typer(store_app, name="store")
_app.command("top", epilog=EXAMPLES["top"])(top_command)
_app.command("generate", epilog=EXAMPLES["generate"])(generate_command)
_app.command("models", epilog=EXAMPLES["models"])(models_command)
_app.command("completion", epilog=EXAMPLES["completion"])(completion_command)
# An argument such as -1 looks like an option. Here it is passed to the command, which reports it as an
# invalid token.
_app.command("hash", epilog=EXAMPLES["hash"], context_settings={"ignore_unknown_options": True})(hash_command)

#: Base class of the option parser's errors, from Click, or from Typer's copy of it.
_ParserError: Final[type] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        arguments: The arguments after ``kvpool``; by default, those of the process.

    """
    try:
        with prepared():
            code = _run(sys.argv[1:] if arguments is None else list(arguments))
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
        return 0
    return code


def _run(arguments: list[str]) -> int:
    """Run one command. Its errors become lines on stderr and exit codes."""
    command = typer.main.get_command(_app)
    asked = proposals(command)
    if asked is not None:
        return asked
    try:
        with command.make_context("kvpool", arguments) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except SystemExit:
        return 0  # Rich raises this when the reader of stdout has closed it
    except BrokenPipeError:
        raise
    except UsageError as error:
        return _fail(str(error), error.hint, 2)
    except KvpoolError as error:
        return _fail(str(error), next_step(error), 1)
    except OSError as error:
        return _fail(os_error_line(error), next_step(error), 1)
    except OverflowError as error:
        return _fail(f"a number is out of range: {error}", None, 2)
    except MemoryError:
        return _fail("out of memory", "a smaller pool or --limit takes less", 1)
    except Exception as error:
        if not isinstance(error, _ParserError):
            raise
        return _fail(*usage.described(error, command, arguments), 2)
    except BaseException as error:
        # The Rust extension raises this exception if one of its own checks fails. Arguments are not the
        # cause.
        if type(error).__name__ != "PanicException":
            raise
        return _fail(f"a fault of kvpool's: {error}", "please report it, with this command and its files", 1)
    return 0


def _fail(message: str, hint: str | None, code: int) -> int:
    sys.stdout.flush()
    print(f"error: {shown(plain(' '.join(message.split())))}", file=sys.stderr)
    if hint is not None:
        print(f"hint: {shown(hint)}", file=sys.stderr)
    return code


def _drop_stdout() -> None:
    """Redirect stdout to the null device, so that the interpreter's last flush does not fail."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def __dir__() -> list[str]:
    """Lists the public names."""
    return [*__all__]
