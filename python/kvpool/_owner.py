"""Tracks which process created an object that has a thread, and refuses its use in a forked child.

A forked child has a copy of the object, but none of its threads. Locks in the copy may stay locked
forever, and its sockets are shared with the parent. Therefore every call in the child raises an error.
"""

from __future__ import annotations

import os

from kvpool.errors import ClosedError


class Owner:
    """The process that created an object.

    Args:
        what: The name of the object for error messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()

    def check(self) -> None:
        """Raises if the current process did not create the object.

        Raises:
            ClosedError: This process is a forked child.
        """
        if (this := os.getpid()) != self._process:
            made = f"{self._what} was made by process {self._process}, this is process {this}"
            raise ClosedError(f"{made}: make one after a fork")
