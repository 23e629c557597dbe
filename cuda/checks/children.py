"""What is checked in processes of their own: the first use of the device, the end of a process, a lost context."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from kvpool.errors import KvpoolError
from kvpool.transfer import BlockStore, TransferEngine

from .driver import Driver
from .memory import DeviceMemory
from .session import KIB, MIB, rng

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE = 64 * KIB


def _first_use(ordinal: int) -> dict[str, Any]:
    """What it takes to open the device, to load the kernels and to launch the first one."""
    start = time.perf_counter()
    engine = TransferEngine(f"cuda:{ordinal}")
    opened = time.perf_counter() - start
    driver = Driver(ordinal)
    memory = DeviceMemory(driver, 4 * _PIECE)
    data = rng("first").randbytes(_PIECE)
    memory.write(data)
    store = BlockStore.from_regions([(memory.address, _PIECE, _PIECE)], 4, device=engine.device, keep_alive=memory)
    stream = driver.stream()
    seconds = []
    for target in (1, 2, 3):
        start = time.perf_counter()
        engine.copy(store, store, [(0, target)], stream=stream, method="kernel")
        driver.synchronize(stream)
        seconds.append(time.perf_counter() - start)
    right = memory.read(_PIECE, 3 * _PIECE) == data * 3
    return {"opened": opened, "first": seconds[0], "later": seconds[2], "right": right}


def _leave(ordinal: int) -> dict[str, Any]:
    """Ends with everything open, and copies under way in both directions."""
    driver = Driver(ordinal)
    engine = TransferEngine(f"cuda:{ordinal}")
    memory = DeviceMemory(driver, 8 * MIB)
    memory.write(rng("leave").randbytes(8 * MIB))
    store = BlockStore.from_regions([(memory.address, _PIECE, _PIECE)], 128, device=engine.device, keep_alive=memory)
    pairs = [(block, block) for block in range(64)]
    under_way = []
    for pinned in (True, False):
        host = BlockStore.host(128, store, pinned=pinned)
        under_way += [engine.submit(store, host, pairs, after=None), engine.submit(host, store, pairs, after=None)]
    # Somebody still has them all at the end.
    globals()["_kept"] = (engine, store, under_way)
    return {"submitted": len(under_way)}


def _tell(call: Callable[[], object]) -> str:
    try:
        call()
    except KvpoolError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _lose(ordinal: int) -> dict[str, Any]:
    """Reads where there is no memory, and then goes on."""
    driver = Driver(ordinal)
    engine = TransferEngine(f"cuda:{ordinal}")
    memory = DeviceMemory(driver, 2 * _PIECE)
    address = memory.address
    good = BlockStore.from_regions([(address, _PIECE, _PIECE)], 2, device=engine.device)
    bad = BlockStore.from_regions([(4096, _PIECE, _PIECE)], 2, device=engine.device)
    memory.address = 0  # nothing can be freed then
    transfer = _tell(lambda: engine.submit(bad, good, [(0, 0)], after=None, method="kernel").wait(30))
    later = _tell(lambda: engine.submit(good, good, [(0, 1)], after=None))
    return {"transfer": transfer, "later": later}


CHILDREN: dict[str, Callable[[int], dict[str, Any]]] = {"first-use": _first_use, "leave": _leave, "lose": _lose}


def run(name: str, ordinal: int) -> int:
    """Runs one, and prints what it found."""
    print(json.dumps(CHILDREN[name](ordinal)), flush=True)
    return 0
