"""Shell completion: the script that ``kvpool completion SHELL`` prints, and the answers to that script.

Typer provides both. This module connects them with the commands. The script calls ``kvpool`` with
``_KVPOOL_COMPLETE`` in its environment, and then only proposals are printed.
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

    Models, policies, GPUs and formats are completed, too. Nothing is installed:
    the shell reads the printed script.
    """
    script: Any = vars(shells)["get_completion_script"]
    typer.echo(script(prog_name="kvpool", complete_var=_VARIABLE, shell=shell))


def proposals(command: Any, environment: MutableMapping[str, str] = os.environ) -> int | None:
    """Print completions if a shell requests them. Return the exit code, or ``None`` without a request."""
    instruction = environment.get(_VARIABLE)
    if not instruction:
        return None
    vars(shells)["completion_init"]()
    try:
        return int(shells.shell_complete(command, {}, "kvpool", _VARIABLE, instruction))
    except (KeyError, ValueError):
        # The user has set the variable ``_KVPOOL_COMPLETE`` by hand, without the other variables that a shell
        # sets. So there is nothing to complete.
        return 1
