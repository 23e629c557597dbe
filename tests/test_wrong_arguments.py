"""Every argument of every call of the public classes refuses wrong values with a typed error, and
nothing changes.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool import _core, events, hashing, journal, parts, sizing, store, traces, transfer
from tests.argument_kinds import ALONE, KINDS
from tests.kinds import BUILTINS
from tests.rows import World, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kinds import Wrong

NAMES = list(rows(World(Path())))
#: Classes and calls without rows in rows.py, each with the tests of their arguments.
ELSEWHERE: dict[str, str] = {
    "EventPublisher": "tests/events",
    "Custom": "tests/test_store_backends.py",
    "SlotHeaders": "tests/test_restart.py",
    "Store": "tests/test_store.py",
    "StoreFolder": "tests/test_store_tables.py",
    "StoreServer": "tests/test_store_backends.py",
    "BlockStore.from_tensors": "tests/transfer/test_bad_input.py",
    "Trace.write_jsonl": "a file of any kind",
    "TransferEngine.calibrate": "tests/transfer/test_bad_input.py",
}


def amiss(call: Any, wrong: Wrong) -> str:
    """Makes a call with a wrong value. Returns what is wrong with the refusal, or "" if it is correct."""
    try:
        call(wrong.value)
    except Exception as error:
        said = str(error).lower()
        missing = [word for word in wrong.words if str(word).lower() not in said]
        typed = type(error) is wrong.error and isinstance(error, BUILTINS[wrong.error])
        return "" if typed and not missing and len(said) < 700 else f"{error!r}: lacks {missing}"
    return "taken"


@pytest.mark.parametrize("name", NAMES)
def test_wrong_arguments_are_refused_and_change_nothing(name: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    _, call, arguments = rows(world)[name]
    before = world.seen()
    for argument, parameter in inspect.signature(call).parameters.items():
        kind = ALONE.get(f"{name}.{argument}") or KINDS[argument]
        for wrong in kind(argument, parameter.default is not parameter.empty):
            once = functools.partial(
                call, **{name: value for name, value in arguments.items() if name != argument}
            )
            said = amiss(lambda value: once(**{argument: value}), wrong)  # noqa: B023
            assert not said, f"{argument}: {said}"
    assert world.seen() == before
    world.manager.diagnose.check_invariants()
    world.pool.diagnose.check_invariants()
    call(**arguments)


def public_calls() -> Iterator[str]:
    """Yields the constructors and methods of the extension's public classes that have arguments."""
    for module in (kvpool, _core.facets, events, hashing, journal, parts, sizing, store, traces, transfer):
        for made in (getattr(module, name) for name in module.__all__):
            if not inspect.isclass(made) or not made.__module__.startswith("kvpool._core"):
                continue
            if not issubclass(made, Exception):
                yield from (made.__name__ for _ in list(inspect.signature(made).parameters)[:1])
                methods = {name: getattr(made, name) for name in dir(made) if not name.startswith("_")}
                for name, method in methods.items():
                    if callable(method) and set(inspect.signature(method).parameters) - {"self"}:
                        yield f"{made.__name__}.{name}"


def test_every_call_has_a_row() -> None:
    calls = set(public_calls())
    names = {name.removesuffix(" (batch)") for name in NAMES}
    assert {name for name in calls - names if name.split(".")[0] not in ELSEWHERE} <= set(ELSEWHERE)
    assert names <= calls
