"""Checks whether the plug-in supports the installed vLLM.

This module compares the installed vLLM with the table of ``kvpool.integrations.vllm.signatures``. The
table lists the supported versions. It also lists each class, function, parameter and attribute on which
a level of the plug-in relies. Their form is the one that they had when the plug-in was written. Nothing
here raises, whatever is installed. Anything that cannot be compared counts as a difference.

Signatures are compared without annotations and without the values of defaults. The names, kinds and
order of the parameters are compared, and which of them have defaults. Objects that kvpool itself has
put into vLLM are always accepted.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import re
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kvpool.integrations.vllm import signatures

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

__all__ = [
    "LEVELS",
    "REPLACED",
    "SUPPORTED",
    "Difference",
    "canonical",
    "check",
    "differences",
    "installed_version",
    "series_of",
]

SUPPORTED: Final = signatures.VERSIONS
LEVELS: Final[Mapping[str, tuple[signatures.Table, ...]]] = {
    "pool": (signatures.POOL,),
    "manager": (signatures.POOL, signatures.MANAGER),
    "shadow": (signatures.POOL, signatures.MANAGER),
}

_MANAGERS: Final = "vllm.v1.core.single_type_kv_cache_manager"
_HASHER: Final = (
    "vllm.v1.core.kv_cache_utils:get_request_block_hasher",
    "vllm.v1.engine.core:get_request_block_hasher",
)
_POOL: Final = ("vllm.v1.core.block_pool:BlockPool", "vllm.v1.core.kv_cache_coordinator:BlockPool")
_LOOKUPS: Final = (
    f"{_MANAGERS}:FullAttentionManager.find_longest_cache_hit",
    f"{_MANAGERS}:SlidingWindowManager.find_longest_cache_hit",
    f"{_MANAGERS}:SingleTypeKVCacheManager._get_num_evictable_blocks",
)
_MANAGER: Final = (
    "vllm.v1.core.sched.scheduler:KVCacheManager",
    "vllm.v1.core.kv_cache_manager:KVCacheManager",
)
#: The names that a level replaces with kvpool's own, as "module:name". The list also contains the
#: modules from which vLLM's tests import these names. Before it is replaced, each name has to refer to
#: vLLM's own object. If another plug-in has replaced the object, nothing is replaced.
REPLACED: Final[Mapping[str, tuple[str, ...]]] = {
    "pool": (*_POOL, *_HASHER, *_LOOKUPS),
    "manager": (*_POOL, *_HASHER, *_LOOKUPS, *_MANAGER),
    "shadow": (*_HASHER, *_LOOKUPS, *_MANAGER),
}

_NOTHING: Final = "nothing"
_OURS: Final = "kvpool's own"
_METHODS: Final = (FunctionType, classmethod, staticmethod, property, functools.cached_property)


class Difference(NamedTuple):
    """A difference between the installed vLLM and what the plug-in expects."""

    name: str  # "vllm.v1.core.block_pool.BlockPool.touch"
    expected: str  # "(self, blocks)"
    found: str  # "(self, blocks, *, weight)", "nothing"

    def __str__(self) -> str:
        return f"{self.name}: expected {self.expected}, found {self.found}"


class _Default:
    """Replaces each default value in a signature, because the values of defaults are not compared."""

    def __repr__(self) -> str:
        return "..."


def check(level: str) -> list[str]:
    """Returns the reasons why a level cannot run with the installed vLLM, one line each.

    The list is empty if the level can run. This function imports the modules of vLLM on which the level
    relies, including the engine core. If they are not imported yet, this takes seconds.

    Args:
        level: A key of ``LEVELS``.
    """
    try:
        if level not in LEVELS:
            return [f"level {level!r}: levels are {_listed(LEVELS)}"]
        version = installed_version()
        if version is None:
            module = _imported("vllm")
            why = f"cannot be imported: {module}" if isinstance(module, str) else "tells no version"
            why = "is not installed" if module == _NOTHING else why
            return [f"vLLM {why}; supported are {_listed(SUPPORTED)}"]
        series = series_of(version)
        if series is None:
            return [f"vLLM {version}: supported are {_listed(SUPPORTED)}"]
        return [str(difference) for difference in differences(level, series)]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return [f"vLLM cannot be compared: {_error_text(error)}"]


def installed_version() -> str | None:
    """Returns ``vllm.__version__``, or None if vLLM cannot be imported or has no version."""
    module = _imported("vllm")
    if isinstance(module, str):
        return None
    try:
        version = module.__version__
    except Exception:
        return None
    return version if isinstance(version, str) else None


def series_of(version: str) -> str | None:
    """Returns a version's key in ``SUPPORTED``, such as "0.32" for "0.32.1+cpu"; None if unsupported."""
    found = re.match(r"(\d+\.\d+)(?!\d)", version)
    return found[1] if found and found[1] in SUPPORTED else None


def differences(level: str, series: str) -> list[Difference]:
    """Returns the differences between the installed vLLM and the entries of the table for a series.

    They are in the order of the table. If a module or class is missing, this counts as one difference,
    and its content is not listed.

    Args:
        level: A key of ``LEVELS``.
        series: One of ``SUPPORTED``. The installed vLLM may be of another series.
    """
    found = _other_forms(level, series)
    reported = [difference.name for difference in found]
    # The shadow level replaces the pool only in its mirror. The same replacements as for the manager
    # level are checked.
    for path in REPLACED["manager" if level == "shadow" else level]:
        dotted = path.replace(":", ".")
        # A name that is already reported as a difference is not checked again.
        if not any(f"{dotted}.".startswith(f"{name}.") for name in reported):
            found += _check_replaced(path)
    return found


def _other_forms(level: str, series: str) -> list[Difference]:
    """Returns the differences in the presence and form of the table's entries."""
    found: list[Difference] = []
    missing: list[str] = []
    for table in LEVELS[level]:
        for module_name, entries in table.items():
            module = _imported(module_name)
            if isinstance(module, str):
                if module_name not in missing:
                    missing.append(module_name)
                    found.append(Difference(module_name, "a module", module))
                continue
            for name, values in entries.items():
                expected = values if isinstance(values, str) else values.get(series)
                path = f"{module_name}.{name}"
                if expected is None or any(path.startswith(f"{gone}.") for gone in missing):
                    continue
                difference = _compared(module, name, path, expected)
                if difference is not None:
                    found.append(difference)
                    if difference.found == _NOTHING:
                        missing.append(path)
    return found


def _check_replaced(path: str) -> list[Difference]:
    """Checks the object behind a name that a level replaces.

    Returns a difference if the object belongs neither to vLLM nor to kvpool, or if its class only
    inherits it.
    """
    module, _, name = path.partition(":")
    owner_name, _, attribute = name.rpartition(".")
    try:
        owner: Any = _imported(module)
        if owner_name:
            owner = _looked_up(owner, owner_name)
        if attribute not in vars(owner):
            return [Difference(f"{module}.{name}", f"one of {owner.__name__}'s own", "one that it inherits")]
        found = vars(owner)[attribute]
        found = getattr(found, "__func__", found)
        home = str(getattr(found, "__module__", None) or type(found).__module__)
        if home.partition(".")[0] in {"vllm", "kvpool"}:
            return []
        called = f"{home}.{getattr(found, '__qualname__', type(found).__qualname__)}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        called = f"what cannot be looked at ({_error_text(error)})"
    return [Difference(f"{module}.{name}", "vLLM's own", called)]


def canonical(signature: inspect.Signature) -> str:
    """Returns a signature in the table's form: "(self, blocks, weight=..., *, block_size)"."""
    empty = inspect.Parameter.empty
    parameters = [
        one.replace(annotation=empty, default=empty if one.default is empty else _Default())
        for one in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _listed(names: Any) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else str(last)


def _error_text(error: BaseException) -> str:
    """Formats an error in one line, even if its ``str`` fails."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _imported(name: str) -> ModuleType | str:
    """Imports a module of vLLM, and returns it, or the reason why it cannot be imported."""
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, and panics of extensions, are not Exceptions
        # If ``name`` or a package that contains it does not exist, the entry counts as missing. Any
        # other error is reported with its text.
        missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        return _NOTHING if missing else _error_text(error)


def _compared(module: ModuleType, name: str, path: str, expected: str) -> Difference | None:
    """Compares one entry of the table with the installed vLLM. Returns None if they are equal."""
    try:
        if name.endswith(".*"):
            return _other_methods(module, name.removesuffix(".*"), path.removesuffix(".*"), expected)
        found = _described(module, name, expected)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        found = f"what cannot be looked at ({_error_text(error)})"
    # A property is accepted in place of an attribute, because it is read in the same way.
    same = found in (expected, _OURS) or (expected == "attribute" and found == "property")
    return None if same else Difference(path, expected, found)


def _other_methods(module: ModuleType, name: str, path: str, expected: str) -> Difference | None:
    """Returns the public methods of a class that are neither in the table nor kvpool's own."""
    owner = _looked_up(module, name)
    if owner is None or _is_ours(owner):
        return None  # the class has an entry of its own
    public = [one for one in dir(owner) if not one.startswith("_")]
    methods = [one for one in public if isinstance(inspect.getattr_static(owner, one), _METHODS)]
    others = sorted(set(methods) - set(expected.split()))
    return (
        Difference(path, "no other public methods than kvpool knows", ", ".join(others)) if others else None
    )


def _described(module: ModuleType, name: str, expected: str) -> str:
    """Describes the object behind a name, in the form that the table uses."""
    if expected.startswith("is "):
        return _described_import(module, name, expected)
    owner_name, _, attribute = name.rpartition(".")
    found = _looked_up(module, name)
    owner = _looked_up(module, owner_name) if owner_name else None
    if _is_ours(found) or _is_ours(owner):
        return _OURS
    if found is None:
        return "attribute" if owner is not None and _is_stored(owner, attribute) else _NOTHING
    if isinstance(found, (property, functools.cached_property)):
        return "property"
    if isinstance(found, (classmethod, staticmethod)):
        return f"{type(found).__name__} {_signature(found.__func__)}"
    return _signature(found) if callable(found) else "attribute"


def _described_import(module: ModuleType, name: str, expected: str) -> str:
    """Describes a name that a module imports from another module: "is vllm.v1.core.block_pool.BlockPool"."""
    found = _looked_up(module, name)
    if found is None:
        return _NOTHING
    home, _, original = expected.removeprefix("is ").rpartition(".")
    source = _imported(home)
    if _is_ours(found) or (not isinstance(source, str) and _looked_up(source, original) is found):
        return expected
    return f"{getattr(found, '__module__', '?')}.{getattr(found, '__qualname__', type(found).__qualname__)}"


def _looked_up(module: ModuleType, name: str) -> Any:
    """Returns the object behind a dotted name, without calling descriptors; None if it does not exist."""
    first, *others = name.split(".")
    found = getattr(module, first, None)
    for one in others:
        if found is None:
            return None
        found = inspect.getattr_static(found, one, None)
    return found


def _is_ours(found: Any) -> bool:
    """Returns whether an object belongs to kvpool. If so, an installed level has put it there."""
    function = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
    module = getattr(function, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] == "kvpool"


def _is_stored(owner: Any, attribute: str) -> bool:
    """Returns whether a method of the class or of a base class assigns the attribute."""
    functions = (
        one for owner in inspect.getmro(owner) for one in vars(owner).values() if inspect.isfunction(one)
    )
    return any(
        step.opname == "STORE_ATTR" and step.argval == attribute
        for function in functions
        if attribute in inspect.unwrap(function).__code__.co_names
        for step in dis.get_instructions(inspect.unwrap(function))
    )


def _signature(function: Any) -> str:
    try:
        return canonical(inspect.signature(function))
    except (TypeError, ValueError):
        return "a callable without a signature"
