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
    """The length of a request's hit, and the lengths that each KV-cache group alone would have allowed."""

    cached: int
    #: For each KV-cache group, the number of tokens that it alone would have served from the cache.
    reach: list[int]


@dataclass(eq=False, slots=True)
class Request:
    """A prompt with its sampling parameters."""

    number: int
    prompt: list[int]
    sampling: Sampling
    #: Block hashes of the prompt. They are computed once, even if the request is tried several times.
    hashed: HashCursor
    #: Samples of the request that have not ended.
    sequences: list[Sequence] = field(default_factory=list)
    #: Cached tokens that the admission has found; None until the request is admitted.
    hit: Hit | None = None


@dataclass(eq=False, slots=True)
class Sequence:
    """One sample of a request: its tokens, and the number of them that are computed."""

    request: Request
    sample: int
    #: The prompt and the sampled tokens.
    tokens: list[int]
    #: Number of tokens that the manager knows. That is every token, or every token but the last sampled
    #: one.
    known: int
    #: Number of tokens whose KV has been written.
    computed: int = 0
    #: The block table of each group, equal to the manager's; empty while the sequence is preempted or
    #: swapped out.
    tables: list[list[int]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The sequence's name in the manager."""
        return f"{self.request.number}.{self.sample}"

    @property
    def age(self) -> tuple[int, int]:
        """A key by which sequences are sorted by age, oldest first."""
        return (self.request.number, self.sample)

    @property
    def left(self) -> int:
        """Number of tokens whose KV still has to be computed.

        It is 1 in a decode, and larger for a prompt or a resumed sequence.
        """
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

        No token is sampled if the chunk is an inner part of a prompt, or if it computes lost KV again.
        """
        return self.stop == len(self.sequence.tokens)
