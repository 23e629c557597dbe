"""Gives each engine its own folder beneath one path, so that equal replicas can share a disk.

Only one engine at a time can use a disk's folder. The first engine uses the folder itself. Further
engines use the subfolders ``replica-1``, ``replica-2`` and so on. When an engine starts, it opens the
first of these folders that no running engine uses. After a restart, the engines therefore find the
objects that were stored before, regardless of the order in which they start. Each replica has its own
capacity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from kvpool.errors import StoreInUseError
from kvpool.store.urls import without_password

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["open_replica"]

#: The largest number of replicas that can share one path.
MAX_REPLICAS: Final = 64

_Opened = TypeVar("_Opened")


def open_replica(root: str, opener: Callable[[str], _Opened], most: int = MAX_REPLICAS) -> _Opened:
    """Opens the first replica's folder that no running engine uses.

    Args:
        root: The folder of the first replica. It can also be the URL of a shared back end, which any
            number of engines can use.
        opener: A function that opens the stores in a folder and returns them. If it cannot open all of
            them, it opens none and raises.
        most: The number of replicas to try.

    Returns:
        The result of ``opener``.

    Raises:
        StoreInUseError: All replicas are in use.

    >>> def opener(folder):
    ...     if folder == "/mnt/kv":
    ...         raise StoreInUseError("a living engine has it")
    ...     return folder
    >>> open_replica("/mnt/kv", opener)
    '/mnt/kv/replica-1'
    """
    for replica in range(most):
        try:
            return opener(root if replica == 0 else f"{root.rstrip('/')}/replica-{replica}")
        except StoreInUseError:
            continue
    raise StoreInUseError(
        f"{without_password(root)} is in use by {most} engines, and has no room for more: give this one "
        "another folder"
    )
