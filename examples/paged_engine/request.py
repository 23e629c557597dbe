"""What a scheduler schedules: requests, their sequences, and the chunks of these that a step computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples.paged_engine.sampling import Sampling
    from kvpool.hashing import HashCursor

__all__ = ["Chunk", "Hit", "Request", "RequestTooLargeError", "Sequence"]


class RequestTooLargeError(ValueError):
    """A request that would not fit an otherwise empty pool, however long it waits."""


@dataclass(frozen=True, slots=True)
class Hit:
    """What a request has found cached when it was admitted, in tokens."""

    cached: int
    #: How far each group alone would have served.
    reach: list[int]


@dataclass(eq=False, slots=True)
class Request:
    """A prompt, and how it is to be continued."""

    number: int
    prompt: list[int]
    sampling: Sampling
    #: The prompt's block hashes: made once, however often the request has to try.
    hashed: HashCursor
    #: Samples that are not over.
    sequences: list[Sequence] = field(default_factory=list)
    #: None until it is admitted.
    hit: Hit | None = None


@dataclass(eq=False, slots=True)
class Sequence:
    """One sample of a request: its tokens, and how far they are."""

    request: Request
    sample: int
    #: The prompt and what was sampled.
    tokens: list[int]
    #: Tokens that the manager knows: all but one that was sampled just now.
    known: int
    #: Tokens whose KV is written.
    computed: int = 0
    #: The blocks of each group, as the manager has them; empty while preempted or swapped out.
    tables: list[list[int]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Its name in the manager."""
        return f"{self.request.number}.{self.sample}"

    @property
    def age(self) -> tuple[int, int]:
        """Sorts the oldest first."""
        return (self.request.number, self.sample)

    @property
    def left(self) -> int:
        """Tokens to compute: one, but for a prompt or what comes back."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens ``start`` to ``stop`` of a sequence, computed in one step."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.stop - self.start

    @property
    def samples(self) -> bool:
        """Whether its last token decides the next one. If that is known, KV that was lost is only
        computed again.
        """
        return self.stop == len(self.sequence.tokens)
