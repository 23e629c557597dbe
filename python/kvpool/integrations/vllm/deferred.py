"""Runs a function once a module has been imported, or immediately if the module is imported already.

vLLM also loads its plug-ins in workers and front ends, which never import its scheduler. If the plug-in
imported the scheduler in order to replace parts of it, each of these processes would start seconds
later.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Calls ``action`` once, after the module ``name`` has been executed. ``action`` must not raise."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Watch(name, action))


class _Watch(MetaPathFinder):
    """Finds one module through the other finders, with a loader that calls back once the module has run."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name, self._action = name, action
        self._is_asking = False

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._is_asking:
            return None
        # The other finders are asked for the module. The watch ends only when the module is imported,
        # because a caller may also look for it without importing it.
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Calling(spec.loader, self)
        return spec

    def imported(self) -> None:
        """Called after the watched module has been executed. Ends the watch."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._action()


class _Calling(Loader):
    """Wraps a module's own loader, and notifies the watch after the module has been loaded."""

    def __init__(self, loader: Loader, watch: _Watch) -> None:
        self._loader, self._watch = loader, watch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._watch.imported()
