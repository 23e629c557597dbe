"""The objects of the scheduler: requests, their sequences, and the chunks that a step computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples.paged_engine.sampling import Sampling
    from kvpool.hashing import HashCursor

__all__ = ["Chunk", "Hit", "Request", "RequestTooLargeError", "Sequence"]


class RequestTooLargeError(ValueError):
    """The request would not fit even into an empty pool."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The cached tokens that the admission of a request has found."""

    cached: int
    #: Number of tokens that each group alone would have served.
    reach: list[int]


@dataclass(eq=False, slots=True)
class Request:
    """A prompt with its sampling parameters."""

    number: int
    prompt: list[int]
    sampling: Sampling
    #: Block hashes of the prompt, computed once, however often the request is tried.
    hashed: HashCursor
    #: Samples that have not ended.
    sequences: list[Sequence] = field(default_factory=list)
    #: None until the request is admitted.
    hit: Hit | None = None


@dataclass(eq=False, slots=True)
class Sequence:
    """One sample of a request: its tokens, and the number of them that are computed."""

    request: Request
    sample: int
    #: The prompt and the sampled tokens.
    tokens: list[int]
    #: Number of tokens that the manager knows: all, or all but the one sampled last.
    known: int
    #: Number of tokens whose KV is written.
    computed: int = 0
    #: The blocks of each group, as the manager has them; empty while preempted or swapped out.
    tables: list[list[int]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Name of the sequence in the manager."""
        return f"{self.request.number}.{self.sample}"

    @property
    def age(self) -> tuple[int, int]:
        """Sort key by age; the oldest sequence comes first."""
        return (self.request.number, self.sample)

    @property
    def left(self) -> int:
        """Number of tokens that remain to be computed: one, except for a prompt or a resumed sequence."""
        return len(self.tokens) - self.computed


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens ``start`` to ``stop`` of a sequence, computed in one step."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of tokens."""
        return self.stop - self.start

    @property
    def samples(self) -> bool:
        """Whether a token is sampled after the chunk.

        Otherwise the chunk is an inner part of a prompt, or computes lost KV again.
        """
        return self.stop == len(self.sequence.tokens)
