"""Tiers beneath the device: what each would serve, and what loading from it takes.

Owns the arithmetic from one LRU curve to the share of each tier and the time to the first token. There
is no simulator: what a tier has, the tiers beneath it have too, as vLLM's ``TieringOffloadingSpec``
stores it, and with LRU everywhere all of them see the same order of uses. So a block is served by the
first tier that its reuse distance fits, and a tier serves what the curve gains from the largest tier
above it.

What comes from a tier passes all tiers above it, one after the other: from the disk to host memory,
then to the device.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Final

from kvpool.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvpool._core.sizing import HitCurve
    from kvpool.models import KvShape
    from kvpool.sizing import report as schema

__all__ = ["MOST_GIB", "Tier", "check_tiers", "parse_speed", "tiers_of"]

#: An EiB: what a tier may hold.
MOST_GIB: Final = 2.0**30

_UNITS: Final = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}


@dataclasses.dataclass(frozen=True, slots=True)
class Tier:
    """A tier beneath the device.

    >>> Tier("disk", 4096, parse_speed("6GB/s")).read_bytes_per_s
    6000000000.0

    Raises:
        InvalidArgumentError: a size that is not above 0 or more than an EiB, or a speed below a byte a
            second or without end.

    """

    name: str
    #: What it holds, of all ranks together.
    gib: float
    #: What a load from it gets, of all ranks together, to the tier above.
    read_bytes_per_s: float

    def __post_init__(self) -> None:
        if not 0 < self.gib <= MOST_GIB:
            raise InvalidArgumentError(f"gib is {self.gib}: must be above 0, and at most {MOST_GIB:,.0f}")
        if not 1 <= self.read_bytes_per_s < math.inf:
            raise InvalidArgumentError(
                f"read_bytes_per_s is {self.read_bytes_per_s}: must be 1 or more, and finite"
            )


def parse_speed(text: str) -> float:
    """Read ``6GB/s`` or ``5.5 GiB/s``: bytes a second.

    >>> parse_speed("6GB/s"), parse_speed("0.5 GiB/s")
    (6000000000.0, 536870912.0)

    Raises:
        InvalidArgumentError: it is none; units are bytes, so ``Gb/s`` is refused.

    """
    match = re.fullmatch(rf"\s*([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)\s*({'|'.join(_UNITS)})/s\s*", text)
    speed = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if speed < 1:
        raise InvalidArgumentError(
            f"speed is {text!r}: must be like 6GB/s or 5.5GiB/s, a byte a second or more"
        )
    return speed


def check_tiers(tiers: Sequence[Tier], shape: KvShape | None) -> None:
    """Check that the curve of stack distances says what these tiers would serve.

    Raises:
        InvalidArgumentError: no KV shape, or one with windows, chunks or states. Which of their blocks
            goes next depends on all groups, and a hit needs a part of them, so one curve does not say
            it.

    """
    if not tiers:
        return
    if shape is None:
        raise InvalidArgumentError("tiers hold bytes: they need a KV shape, name a model")
    if [group.kind for group in shape.groups().groups] != ["full"]:
        raise InvalidArgumentError(
            f"tiers need a model whose layers all keep every token: {shape.name} has {shape.in_words()}"
        )


def tiers_of(
    curve: HitCurve,
    tiers: Sequence[Tier],
    sizes: Sequence[schema.Capacity],
    model: schema.Model,
    facts: schema.TraceFacts,
) -> schema.Tiers:
    """Say what the device, at each size, and each tier beneath it would serve. O(sizes x tiers x log
    references).
    """
    bytes_per_token = model["bytes_per_token"]
    below: list[schema.Tier] = []
    per_token = 0.0
    for tier in tiers:
        per_token += bytes_per_token / tier.read_bytes_per_s
        below.append(
            {
                "name": tier.name,
                "gib": tier.gib,
                "blocks": int(tier.gib * 2**30) // (bytes_per_token * facts["block_size"]),
                "read_bytes_per_s": tier.read_bytes_per_s,
                "load_s_per_token": per_token,
                "break_even_tokens_per_s": 1 / per_token,
            }
        )
    tokens = facts["tokens_in"] / max(facts["requests"], 1)
    speed = model["prefill_tokens_per_s"]
    return {"below": below, "sizes": [_served(curve, size["blocks"], below, tokens, speed) for size in sizes]}


def _served(
    curve: HitCurve, device_blocks: int, below: Sequence[schema.Tier], tokens: float, speed: float | None
) -> list[schema.Served]:
    """Share the hits out, with a device of so many blocks and requests of so many tokens on average."""
    served: list[schema.Served] = []
    holds, blocks_before, tokens_before, loads = 0, 0.0, 0.0, 0.0
    for name, blocks, per_token in [
        ("device", device_blocks, 0.0),
        *((tier["name"], tier["blocks"], tier["load_s_per_token"]) for tier in below),
    ]:
        # What is smaller than a tier above has nothing that is not there.
        holds = max(holds, blocks)
        block_rate, token_rate = curve.at(holds)
        load = (token_rate - tokens_before) * tokens * per_token
        loads += load
        served.append(
            {
                "tier": name,
                "block_hit_rate": block_rate - blocks_before,
                "token_hit_rate": token_rate - tokens_before,
                "load_s": load,
                "first_token_s": None if speed is None else loads + (1 - token_rate) * tokens / speed,
            }
        )
        blocks_before, tokens_before = block_rate, token_rate
    return served
