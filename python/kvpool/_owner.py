"""Tracks the process that made an object with a thread.

A forked child has a copy of the object and none of its threads. Locks of the copy may be held forever,
and its sockets are shared with the parent. So every call in the child is refused.
"""

from __future__ import annotations

import os

from kvpool.errors import ClosedError


class Owner:
    """The process that made an object.

    Args:
        what: The name of the object in errors.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()

    def check(self) -> None:
        """Refuses a call in another process.

        Raises:
            ClosedError: This process is a forked child.
        """
        if (this := os.getpid()) != self._process:
            made = f"{self._what} was made by process {self._process}, this is process {this}"
            raise ClosedError(f"{made}: make one after a fork")
