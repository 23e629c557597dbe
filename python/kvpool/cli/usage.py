"""Errors of the option parser in the terms of the command line.

Typer checks values with pydantic, and pydantic's messages do not contain the option and its value. This
module writes errors with the option, its value, the limit, and a hint.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["described", "did_you_mean"]

#: Maps pydantic's name of an error to a text that describes the valid values.
_REQUIREMENTS: Final = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
    "finite_number": "finite",
}
#: Matches a text in single quotes in a message of the parser.
_QUOTED: Final = re.compile(r"'([^']*)'")


def described(error: Any, root: Any, arguments: Sequence[str]) -> tuple[str, str]:
    """Return a message and a hint for an error of the option parser.

    Args:
        error: The exception of the parser.
        root: The command of ``kvpool`` itself.
        arguments: The words after ``kvpool``.

    """
    path, command = _command(root, arguments)
    see = f"see {path} --help"
    kind = type(error).__name__
    message = str(error.format_message()).rstrip(".")
    if kind == "BadParameter":
        return _bad_value(error, message, see)
    if kind == "MissingParameter":
        choices = re.findall(r"[\w-]+", message.partition("Choose from:")[2])
        hint = f"one of {', '.join(choices)}; {see}" if choices else f"{path} {_arguments(command)}, {see}"
        return f"{_name(error.param)} is missing", hint
    if kind == "NoSuchOption":
        known = [name for one in command.params for name in one.opts if name.startswith("--")]
        near = difflib.get_close_matches(error.option_name, known, n=2, cutoff=0.8)
        return f"{path} has no option {error.option_name}", _or(see, near)
    if kind == "BadOptionUsage" and "requires an argument" in message:
        return f"{error.option_name} needs a value", see
    if found := re.match(r"No such command '(.*?)'", message):
        return f"{path} has no command {found[1]!r}", _or(see, _QUOTED.findall(message)[1:])
    if found := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)$", message):
        return f"one argument too many: {found[1]!r}", f"{path} {_arguments(command)}, {see}"
    return message, see


def _bad_value(error: Any, message: str, see: str) -> tuple[str, str]:
    name = _name(error.param) if error.param is not None else str(error.param_hint)
    details: list[Any] = getattr(error.__cause__, "errors", list)()
    if not details:
        return message, see
    first = details[0]
    value, context = first["input"], first.get("ctx", {})
    if first["type"] == "value_error" and len(choices := _QUOTED.findall(first["msg"])) > 1:
        return f"{name} is {value!r}: must be one of {', '.join(choices[1:])}", _or(
            see, did_you_mean(value, choices[1:])
        )
    must = _REQUIREMENTS.get(first["type"])
    if must is None:
        return f"{name} is {value!r}: {first['msg'][:1].lower()}{first['msg'][1:]}", see
    if "parsing" in first["type"]:
        return f"{name} is {value!r}: must be {must}", _or(see, _number_in(str(value), must))
    return f"{name} is {value}: must be {must.format(**context)}", see


def _number_in(text: str, must: str) -> list[str]:
    """Return the number at the beginning of a text, such as ``60`` of ``60GiB``, in a list.

    >>> _number_in("60GiB", "a number"), _number_in("1e3", "a whole number"), _number_in("many", "a number")
    (['60'], ['1000'], [])
    """
    found = re.match(r"\d{1,15}(\.\d+)?(e\d{1,2})?", text)
    if found is None:
        return []
    return [f"{float(found[0]):.0f}" if "whole" in must else found[0]]


def _arguments(command: Any) -> str:
    given = (one for one in command.params if one.param_type_name == "argument")
    return " ".join(one.metavar or one.name.upper() for one in given)


def did_you_mean(text: str, known: Sequence[str]) -> list[str]:
    """Return the known name that is most similar to a text, in a list. The list is empty if none is similar.

    >>> did_you_mean("lruu", ["lru", "hazard", "arc"])
    ['lru']
    """
    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(str(text).lower(), lower, n=2, cutoff=0.6)
    return [lower[name] for name in close[:1]]


def _or(see: str, names: Sequence[str]) -> str:
    return f"did you mean {' or '.join(names)}? {see}" if names else see


def _name(param: Any) -> str:
    """Return the longest name of an option, or the name of an argument on the help page."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper()).strip("[]")
    return str(max(param.opts, key=len))


def _command(root: Any, arguments: Sequence[str]) -> tuple[str, Any]:
    """Return the words and the object of the command that the arguments call."""
    path, command = "kvpool", root
    for word in arguments:
        inner = getattr(command, "commands", {}).get(word)
        if inner is None:
            break
        path, command = f"{path} {word}", inner
    return path, command
