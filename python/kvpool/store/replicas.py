"""A folder for each engine beneath one path, so that replicas with equal settings can share a disk.

A disk's folder has one engine at a time. The first engine takes the folder itself, the next ones take
``replica-1``, ``replica-2`` and so on in it: each takes the first that no living engine has. So engines
that are started again find what was stored before, in whichever order they start. Each replica takes
its own capacity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from kvpool.errors import StoreInUseError
from kvpool.store.urls import without_password

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["open_replica"]

#: Replicas that one folder has room for.
MOST: Final = 64

_Opened = TypeVar("_Opened")


def open_replica(root: str, opener: Callable[[str], _Opened], most: int = MOST) -> _Opened:
    """Opens the first folder of a replica that no living engine has.

    Args:
        root: The folder of the first replica; or the URL of a back end that engines share, which is
            never in use.
        opener: Opens stores in a folder, all or none, and returns them.
        most: Replicas that are tried.

    Returns:
        What ``opener`` returned.

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
        f"{without_password(root)} is in use by {most} engines, and has no room for more: give this one another folder"
    )
