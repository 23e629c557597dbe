"""Notifies a storage back end when SGLang resets its prefix cache, or when its weights may have changed.

SGLang does not call storage back ends in these cases. However, it clears the host pools together with
its prefix cache, and all updates of weights go through one class. ``watch_pool`` and ``watch_weights``
wrap the methods concerned. The wrappers call SGLang's own code with the same arguments.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Notified", "unwatch_pool", "watch_pool", "watch_weights"]

#: The class that updates weights in SGLang 0.5.23, and its methods that may change the weights.
_UPDATER: Final = ("sglang.srt.model_executor.model_runner_components.weight_updater", "WeightUpdater")
_UPDATES: Final = (
    "update_weights_from_disk",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
    "load_weights_from_distributed",
    "begin_weight_update",
    "end_weight_update",
)
#: The module of SGLang that runs models. A process that has not imported it runs no model.
_RUNNER: Final = "sglang.srt.model_executor.model_runner"
#: The attribute that marks a method of SGLang as already wrapped.
_MARK: Final = "_kvpool_notifies"


class Notified(Protocol):
    """The interface of a back end that gets the notifications."""

    def on_reset(self) -> None:
        """Called after the prefix cache was reset."""

    def on_update(self) -> None:
        """Called after the weights may have changed. An update may consist of hundreds of calls."""


_WATCHING: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def watch_pool(pool: Any, storage: Notified) -> bool:
    """Notifies a back end each time a host pool is cleared, until ``unwatch_pool``.

    Returns whether the pool has a method that clears it. Only a weak reference to the back end is kept,
    so a back end that no longer exists is not notified.
    """
    clear = getattr(pool, "clear", None)
    if not callable(clear):
        return False
    pool.clear = functools.partial(_cleared, weakref.ref(storage), clear)
    return True


def unwatch_pool(pool: Any) -> None:
    """Ends ``watch_pool``."""
    vars(pool).pop("clear", None)


def _cleared(storage: weakref.ref[Notified], clear: Callable[[], Any]) -> Any:
    answer = clear()
    found = storage()
    if found is not None:
        found.on_reset()
    return answer


def watch_weights(storage: Notified) -> bool:
    """Notifies a back end after each update of the weights in this process, as long as the back end exists.

    Returns False if this process has a model and its SGLang does not update weights as version 0.5.23
    does.
    """
    module = sys.modules.get(_UPDATER[0])
    if module is None:
        return _RUNNER not in sys.modules
    owner = getattr(module, _UPDATER[1], None)
    _WATCHING.add(storage)
    found = [name for name in _UPDATES if callable(getattr(owner, name, None))]
    for name in found:
        if not hasattr(getattr(owner, name), _MARK):
            setattr(owner, name, _notifying(getattr(owner, name)))
    return len(found) == len(_UPDATES)


def _notifying(update: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update)
    def notifying(*args: Any, **kwargs: Any) -> Any:
        try:
            return update(*args, **kwargs)
        finally:
            for storage in tuple(_WATCHING):
                storage.on_update()

    setattr(notifying, _MARK, True)
    return notifying
