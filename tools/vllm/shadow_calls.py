"""Lists the calls of vLLM that the level ``manager`` replaces, and counts which of them the level
``shadow`` makes.

The level ``shadow`` compares vLLM with a mirror, a pool of kvpool that gets the same calls. The
comparison only tests the calls that the mirror makes. If the mirror does not make a replaced call, vLLM
is compared with itself there. The list is read from the plug-in's own replacements, so it contains new
replacements, too.
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
    """Returns all replaced calls: the names of Python functions by their code objects, and the names of
    calls that go directly to Rust.
    """
    install = importlib.import_module(f"{PACKAGE}.install")
    core = importlib.import_module("kvpool._core.vllm")
    python: dict[CodeType, str] = {}
    rust = {f"VllmGroups.{name}" for name in public(core.VllmGroups)}
    of_pools = public(core.VllmPool)
    for owner, name, value in install.replacements("manager"):
        value = getattr(value, "__func__", value)
        if isinstance(value, type):
            # List the methods of a class that vLLM's class has, too.
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
            # If vLLM owns the pool, a lookup calls vLLM's code. A call of kvpool's pool shows that
            # kvpool has made the lookup.
            rust |= {f"VllmPool.{one}" for one in value.__code__.co_names if one in of_pools}
    return python, rust


def public(cls: type) -> set[str]:
    return {name for name, one in vars(cls).items() if callable(one) and not name.startswith("_")}


@contextlib.contextmanager
def counting(calls: Counter[str]) -> Iterator[None]:
    """Counts the calls that :func:`replaced_calls` lists, until the end of the context."""
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
