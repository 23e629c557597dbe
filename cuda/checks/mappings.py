"""A mapping in device memory, for runs in which torch is installed but cannot use the device."""

from __future__ import annotations

import types
from array import array
from typing import TYPE_CHECKING, Any

from .memory import DeviceMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .session import Session


class DeviceMapping:
    """Has the attributes of a tensor of shape [n, 2] that kvpool reads. Its memory comes from the driver."""

    is_cpu = False

    def __init__(self, session: Session, pairs: Sequence[tuple[int, int]]) -> None:
        self.pairs = list(pairs)
        self.dtype: Any = session.int64
        self.shape = (len(self.pairs), 2)
        self.device = types.SimpleNamespace(type="cuda", index=session.ordinal)
        self._memory = DeviceMemory(session.driver, max(16 * len(self.pairs), 16))
        self.assign(self.pairs)

    def assign(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Replace the pairs of the mapping by the same number of other pairs."""
        self.pairs = list(pairs)
        numbers = array("q", [number for pair in pairs for number in pair])
        if numbers:
            self._memory.write(numbers.tobytes())

    def data_ptr(self) -> int:
        """Return the address of the first pair."""
        return self._memory.address

    def stride(self) -> tuple[int, int]:
        """Return the number of elements from one index to the next in each dimension."""
        return (2, 1)

    def element_size(self) -> int:
        """Return the number of bytes of an element."""
        return 8
