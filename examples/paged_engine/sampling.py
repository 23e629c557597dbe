"""Sampling whose results do not depend on scheduling.

Each token is drawn with its own random number. The number is computed from the request's seed, the
sample's index and the token's position. A generator of random numbers would not do, because its numbers
depend on how many were drawn before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Sampling", "draw"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of a request.

    Raises:
        ValueError: A setting is out of range.

    """

    #: Number of samples of the prompt, computed in parallel.
    n: int = 1
    #: Largest number of tokens per sample.
    max_tokens: int = 32
    #: Temperature of the distribution; 0 chooses the most likely token.
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("n", 1), ("max_tokens", 1), ("temperature", 0)):
            value = getattr(self, name)
            if not value >= least:
                raise ValueError(f"{name} is {value}: must be at least {least}")


def draw(logits: Tensor, sampling: Sampling, *, sample: int, position: int) -> int:
    """Draws the token at a position of a sample from the logits of that position."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    cumulative = torch.softmax(logits.double() / sampling.temperature, dim=0).cumsum(dim=0)
    digest = hashlib.blake2b(f"{sampling.seed}/{sample}/{position}".encode(), digest_size=8).digest()
    point = int.from_bytes(digest) / 2**64 * float(cumulative[-1])
    return min(int(torch.searchsorted(cumulative, point, right=True)), len(logits) - 1)
