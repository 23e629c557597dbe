"""Shell completion: the script that ``kvpool completion SHELL`` prints, and what that script asks for.

Typer has both; this gives them the words of the other commands. The script calls ``kvpool`` with
``_KVPOOL_COMPLETE`` in its environment, and then nothing but proposals is printed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
import typer.completion as shells

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__ = ["completion_command", "proposals"]

_VARIABLE: Final = "_KVPOOL_COMPLETE"


def completion_command(
    shell: Annotated[
        Literal["bash", "zsh", "fish", "powershell"],
        typer.Argument(metavar="SHELL", help="bash, zsh, fish or powershell.", show_default=False),
    ],
) -> None:
    """Print a script that completes commands, options and names.

    Models, policies, GPUs and formats are completed, too. Nothing is
    installed: the shell reads what is printed.
    """
    script: Any = vars(shells)["get_completion_script"]
    typer.echo(script(prog_name="kvpool", complete_var=_VARIABLE, shell=shell))


def proposals(command: Any, environment: MutableMapping[str, str] = os.environ) -> int | None:
    """Print what a shell asked for, and give the exit code; ``None`` if none did."""
    instruction = environment.get(_VARIABLE)
    if not instruction:
        return None
    vars(shells)["completion_init"]()
    try:
        return int(shells.shell_complete(command, {}, "kvpool", _VARIABLE, instruction))
    except (KeyError, ValueError):
        # Set by hand, without the words that a shell sets beside it: there is nothing to complete.
        return 1
