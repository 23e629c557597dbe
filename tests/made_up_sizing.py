"""Makes an artificial report of ``kvpool size``. Its curves are smooth, and no part is missing."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvpool.sizing.report import Capacity, CurvePoint, Hits, Model, SizingReport

CEILING = 0.3664
UNIQUE = 182_790
BLOCK_BYTES = 131_072 * 512
#: A hostile file name, which a page must show as text.
HOSTILE = "</script><img src=x onerror=\"console.error('in')\">&amp;'`$\\frac$"
#: For each policy, the factor between its artificial hit rate and that of LRU.
POLICIES = {"lru": 1.0, "s3-fifo": 1.02, "arc": 1.06, "hazard": 0.97, "adaptive": 1.06}
PERCENTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def curve(blocks: float) -> float:
    """Returns an artificial hit rate for a cache with this number of blocks."""
    return CEILING * (1 - math.exp(-((blocks / (0.06 * UNIQUE)) ** 0.8)))


def made_up(*, source: str = "conversation.jsonl", with_model: bool = True) -> SizingReport:
    """Returns an artificial report in the form of ``kvpool size``. No trace is read."""

    def gib(blocks: float) -> float | None:
        return blocks * BLOCK_BYTES / 2**30 if with_model else None

    capacities: list[Capacity] = [
        {"relative_size": share / 100, "blocks": blocks, "tokens": blocks * 512, "gib": gib(blocks)}
        for share, blocks in ((share, int(UNIQUE * share / 100)) for share in PERCENTS)
    ]

    model: Model = {"name": "llama-3.1-8b", "bytes_per_token": 131_072, "prefill_tokens_per_s": 10_000.0}

    def hits(factor: float) -> list[Hits]:
        rates = [min(curve(each["blocks"]) * factor, CEILING) for each in capacities]
        return [
            {
                "block_hit_rate": rate,
                "token_hit_rate": rate * 1.03,
                "evictions": 200_000 - each["blocks"],
                "resident_turnover": 1 - each["blocks"] / 250_000,
            }
            for rate, each in zip(rates, capacities, strict=True)
        ]

    sizes = sorted({int(20 * (UNIQUE / 20) ** (step / 199)) for step in range(200)})
    points: list[CurvePoint] = [
        {
            "blocks": size,
            "gib": gib(size),
            "block_hit_rate": curve(size),
            "token_hit_rate": curve(size) * 1.03,
        }
        for size in sizes
    ]
    steps = (0, 16, 32, 64, 128, 256, 512, 1024)
    return {
        "kvpool": "0.1.0",
        "elapsed_s": 12.34,
        "peak_memory_bytes": 123_456_789,
        "trace": {
            "source": source,
            "format": "mooncake",
            "requests": 12_031,
            "block_size": 512,
            "references": 288_500,
            "unique_blocks": UNIQUE,
            "tokens_in": 144_793_823,
            "span_s": 3536.999,
            "ideal": {"block": CEILING, "token": 0.3731, "full_blocks": 0.3798, "last_half": 0.4011},
        },
        "form": "stream",
        "blocks": "all",
        "capacities": capacities,
        "sample": None,
        "policies": [
            {
                "name": name,
                "source": f"Made-up et al. 20{number:02}",
                "hits": hits(factor),
                "seconds": 0.25 * number,
            }
            for number, (name, factor) in enumerate(POLICIES.items())
        ],
        "optimum": {"hits": hits(1.9)},
        "hints": [{"accuracy": accuracy, "hits": hits(1 + 0.6 * accuracy)} for accuracy in (0.25, 0.5, 1.0)],
        "finish_reasons": None,
        "lru_curve": points,
        "knee": {"blocks": 21_000, "gib": gib(21_000), "block_hit_rate": curve(21_000)},
        "worth": [
            {
                "from_gib": float(low),
                "to_gib": float(high),
                "hit_tokens": int(1e8 * (curve(high * 16) - curve(low * 16))),
                "prefill_seconds": 1e4 * (curve(high * 16) - curve(low * 16)),
            }
            for low, high in itertools.pairwise(steps)
        ]
        if with_model
        else [],
        "reuse_distances": [
            {
                "from_blocks": 1 if power == 0 else 2 ** (power - 1) + 1,
                "to_blocks": 2**power,
                "references": 100 + int(9_000 * math.exp(-(((power - 12) / 3) ** 2))),
            }
            for power in range(18)
        ],
        "reuse_times_s": [{"share": 0.5, "seconds": 42.0}, {"share": 0.99, "seconds": 2_000.0}],
        "over_time": {
            "policy": "lru",
            "capacity": capacities[2],
            "windows": [
                {
                    "start_s": 60.0 * minute,
                    "end_s": 60.0 * (minute + 1),
                    "block_hit_rate": None
                    if minute == 30
                    else 0.2 * (1 - math.exp(-minute / 4)) + 0.03 * math.sin(minute),
                    "ideal_hit_rate": None if minute == 30 else 0.45 * (1 - math.exp(-minute / 6)),
                }
                for minute in range(59)
            ],
        },
        "model": model if with_model else None,
        "groups": None,
        "tiers": None,
    }
