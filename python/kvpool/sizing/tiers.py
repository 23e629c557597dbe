"""Tiers beneath the device: computes the hit rate of each tier, and the time that loading from it takes.

This module derives both from one LRU curve, without a simulation. Each tier contains all blocks of the
tier above it, as in vLLM's ``TieringOffloadingSpec``. With LRU in every tier, all tiers see the same
order of uses. A block is therefore served by the first tier whose size is at least the block's reuse
distance. The hit rate of a tier is the value of the curve at its size, minus the value at the size of
the largest tier above it.

A block that is loaded from a tier passes through all tiers above it, one after the other: for example
from disk to host memory, and then to the device.
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

#: The largest size of a tier that is accepted, in GiB: one EiB.
MOST_GIB: Final = 2.0**30

_UNITS: Final = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}


@dataclasses.dataclass(frozen=True, slots=True)
class Tier:
    """A tier of memory or disk beneath the device, to which blocks are offloaded.

    >>> Tier("disk", 4096, parse_speed("6GB/s")).read_bytes_per_s
    6000000000.0

    Raises:
        InvalidArgumentError: A size is not above 0 or exceeds an EiB, or a speed is below one byte per
            second or infinite.

    """

    name: str
    #: Capacity of the tier in GiB, of all ranks together.
    gib: float
    #: Bytes per second that are loaded from this tier to the tier above, by all ranks together.
    read_bytes_per_s: float

    def __post_init__(self) -> None:
        if not 0 < self.gib <= MOST_GIB:
            raise InvalidArgumentError(f"gib is {self.gib}: must be above 0, and at most {MOST_GIB:,.0f}")
        if not 1 <= self.read_bytes_per_s < math.inf:
            raise InvalidArgumentError(
                f"read_bytes_per_s is {self.read_bytes_per_s}: must be 1 or more, and finite"
            )


def parse_speed(text: str) -> float:
    """Parses a speed such as ``6GB/s`` or ``5.5 GiB/s``. Returns bytes per second.

    >>> parse_speed("6GB/s"), parse_speed("0.5 GiB/s")
    (6000000000.0, 536870912.0)

    Raises:
        InvalidArgumentError: The text is not a speed. Units are bytes, so ``Gb/s`` is refused.

    """
    match = re.fullmatch(rf"\s*([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)\s*({'|'.join(_UNITS)})/s\s*", text)
    speed = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if speed < 1:
        raise InvalidArgumentError(
            f"speed is {text!r}: must be like 6GB/s or 5.5GiB/s, a byte a second or more"
        )
    return speed


def check_tiers(tiers: Sequence[Tier], shape: KvShape | None) -> None:
    """Checks that the hits of these tiers can be computed from one curve of stack distances.

    Raises:
        InvalidArgumentError: There is no KV shape, or it has windows, chunks or states. One curve does
            not describe such a model, because the next victim depends on all groups, and a hit needs
            only a part of the blocks.

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
    """Returns the hits of the device at each of the sizes, and of each tier beneath it.

    O(sizes x tiers x log references).
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
    """Divides the hits of one device size among the tiers.

    The device has ``device_blocks`` blocks. Requests have ``tokens`` tokens on average.
    """
    served: list[schema.Served] = []
    holds, blocks_before, tokens_before, loads = 0, 0.0, 0.0, 0.0
    for name, blocks, per_token in [
        ("device", device_blocks, 0.0),
        *((tier["name"], tier["blocks"], tier["load_s_per_token"]) for tier in below),
    ]:
        # A tier that is smaller than a tier above it contains no block that the tier above lacks.
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
