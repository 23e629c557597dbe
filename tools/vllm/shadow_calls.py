"""Which of vLLM's calls the level ``manager`` replaces, read off the plug-in, and which of kvpool's
were made.

The shadow is worth what its mirror runs: a name that the level replaces, and the mirror never reaches,
compares vLLM with itself. What is replaced is what the plug-in itself installs, so that a new
replacement has to be reached, too.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

PACKAGE = "kvpool.integrations.vllm"


def replaced_calls() -> tuple[dict[CodeType, str], set[str]]:
    """Every call that the level replaces: Python's by code, and the names of those that go to Rust
    directly.
    """
    install = importlib.import_module(f"{PACKAGE}.install")
    core = importlib.import_module("kvpool._core.vllm")
    python: dict[CodeType, str] = {}
    rust = {f"VllmGroups.{name}" for name in public(core.VllmGroups)}
    of_pools = public(core.VllmPool)
    for owner, name, value in install.replacements("manager"):
        value = getattr(value, "__func__", value)
        if isinstance(value, type):
            # A class stands for those of its methods that vLLM's has, too.
            stock = getattr(owner, name)
            functions = {
                one: function for one, function in vars(value).items() if isinstance(function, FunctionType)
            }
            python |= {
                function.__code__: function.__qualname__
                for one, function in functions.items()
                if hasattr(stock, one)
            }
        else:
            python[value.__code__] = f"{value.__module__.removeprefix(PACKAGE)[1:]}.{value.__qualname__}"
            # A lookup passes pools of vLLM's on to vLLM: what it asks of kvpool's shows that it did not.
            rust |= {f"VllmPool.{one}" for one in value.__code__.co_names if one in of_pools}
    return python, rust


def public(cls: type) -> set[str]:
    return {name for name, one in vars(cls).items() if callable(one) and not name.startswith("_")}


@contextlib.contextmanager
def counting(calls: Counter[str]) -> Iterator[None]:
    """Counts, for the length of a block, the calls that :func:`replaced_calls` lists."""
    python, rust = replaced_calls()
    for name in (*python.values(), *rust):
        calls[name] += 0

    def count(frame: Any, event: str, called: Any) -> None:
        if event == "call":
            name = python.get(frame.f_code)
            if name is not None:
                calls[name] += 1
        elif event == "c_call":
            name = getattr(called, "__qualname__", None)
            if name in rust:
                calls[name] += 1

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
