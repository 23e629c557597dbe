"""Checks stores of torch tensors: their dtypes, torch's current stream, and torch's own pinned memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvpool.transfer import BlockStore

from .session import Skip, expect

if TYPE_CHECKING:
    from .session import Session

_DTYPES = ("uint8", "float8_e4m3fn", "float16", "bfloat16", "float32", "int64")


def _random(torch: Any, shape: tuple[int, ...], dtype: Any, device: str, *, pinned: bool = False) -> Any:
    """Return a tensor of random bytes, whose last dimension contains the bytes of an element."""
    wide = (*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.randint(0, 256, wide, dtype=torch.uint8, device=device, pin_memory=pinned).view(dtype)


def _same(torch: Any, left: Any, right: Any) -> bool:
    return bool(
        torch.equal(left.contiguous().view(torch.uint8).cpu(), right.contiguous().view(torch.uint8).cpu())
    )


def _round_trip(session: Session, dtype_name: str) -> None:
    """Swap blocks out and in again on torch's streams.

    The swap has to wait for work that torch has enqueued before.
    """
    torch, device = session.torch, session.device
    dtype = getattr(torch, dtype_name)
    for shape, dim in (((2, 40, 16, 4, 32), 1), ((40, 2, 16, 4, 32), 0), ((40, 16, 18), 0)):
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            layers = [_random(torch, shape, dtype, device) for _ in range(3)]
            back = [_random(torch, shape, dtype, device) for _ in range(3)]
            kept = [one.clone() for one in back]
            pinned = [_random(torch, shape, dtype, "cpu", pinned=True) for _ in range(3)]
            stores = [BlockStore.from_tensors(tensors, block_dim=dim) for tensors in (layers, pinned, back)]
            pool = BlockStore.host(50, stores[0])
            for host in (stores[1], pool):
                out = session.engine.submit(stores[0], host, [(3, 30), (39, 0), (4, 31)])
                session.engine.submit(host, stores[2], [(30, 5), (0, 7)], after=out).wait_on()
                for layer, copy, before in zip(layers, back, kept, strict=True):
                    for src, dst in ((3, 5), (39, 7)):
                        before.select(dim, dst).copy_(layer.select(dim, src))
                    expect(_same(torch, copy, before), f"{dtype_name}, shape {shape}: bytes differ")


def check(session: Session) -> None:
    """Run the checks."""
    with session.check("torch tensors: dtypes, current stream, pinned tensors") as notes:
        if session.torch is None:
            raise Skip("torch does not use this device here")
        there = [name for name in _DTYPES if hasattr(session.torch, name)]
        for name in there:
            _round_trip(session, name)
        notes.append(", ".join(there))
