"""Why a prompt missed."""

from typing import Any, ClassVar, Self, final

from kvpool._core import MissReason

__all__ = [
    "ExplainConfig",
    "Explanation",
    "GroupReach",
    "MissSpan",
]

@final
class ExplainConfig:
    """Settings of what is remembered to explain misses.

    Args:
        records: Contents that are remembered, 16 to ``2**24``, each in 95 bytes and 4 per token. A
            content is ``block_size`` tokens of a prompt, also where a group has larger blocks. None is
            twice what the pool holds, at least 1,024 and at most ``2**20``.
        requests: Released requests that can still be explained, at most ``2**20``.

    Raises:
        InvalidArgumentError: A setting is out of range.

    >>> kvpool.CacheManager(num_blocks=64, explain=kvpool.ExplainConfig(records=4096)).stats().misses
    {}
    """

    def __new__(cls, *, records: int | None = None, requests: int = 1024) -> Self: ...
    @property
    def records(self) -> int | None:
        """Contents of blocks that are remembered; None leaves it to the pool."""
    @property
    def requests(self) -> int:
        """Released requests that can still be explained."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class Explanation:
    """Why a request had to compute what it did.

    ``str`` is a text for a person: a line for the request, one per KV-cache group if there are several,
    and one per span.
    """

    @property
    def request_id(self) -> str | int:
        """The id of the request."""
    @property
    def admission(self) -> int:
        """Which admission it was, resumptions included, counted from 1."""
    @property
    def resumed(self) -> bool:
        """Whether the request was resumed: its tokens are those that it had by then."""
    @property
    def block_size(self) -> int:
        """Tokens per block."""
    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt."""
    @property
    def cached_tokens(self) -> int:
        """Of the prompt's tokens, those whose KV was cached."""
    @property
    def spans(self) -> list[MissSpan]:
        """What was missed, from the first missed block to the end of the prompt."""
    @property
    def groups(self) -> list[GroupReach]:
        """With several KV-cache groups, how far each alone would have served the prompt, and why no
        further.
        """
    def to_dict(self) -> dict[str, Any]:
        """Returns the explanation as a dict of numbers, names and lists."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class GroupReach:
    """How far one KV-cache group alone would have served a prompt, and why no further.

    ``str`` is a line for a person.
    """

    @property
    def group(self) -> int:
        """The group."""
    @property
    def kind(self) -> str:
        """Its kind: full, sliding, chunked, state or cross."""
    @property
    def reach_tokens(self) -> int:
        """Tokens of the longest hit that it could have served."""
    @property
    def limits(self) -> bool:
        """Whether it is to blame for the length of the hit: no other reaches less."""
    @property
    def ends(self) -> list[MissSpan]:
        """Why it serves no more; empty if no hit of this prompt can be longer.

        ``blocks`` are those of the group's table that are missing, ``tokens`` those that it would have
        served besides.
        """
    def to_dict(self) -> dict[str, Any]:
        """Returns the group as a dict of numbers, names and lists."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class MissSpan:
    """Blocks, one after the other, that had to be computed for the same reason.

    ``str`` is a line for a person.
    """

    @property
    def blocks(self) -> tuple[int, int]:
        """The first block's position in the block table, and the position after the last."""
    @property
    def tokens(self) -> tuple[int, int]:
        """The first token's position in the prompt, and the position after the last."""
    @property
    def reason(self) -> MissReason:
        """The name of the reason.

        What each means: docs/explain.md.
        """
    @property
    def token(self) -> int | None:
        """The first token that differs from what was seen before, or None."""
    @property
    def epoch(self) -> int | None:
        """The epoch that it was seen in, or None."""
    @property
    def admission(self) -> int | None:
        """Admissions and resumptions until it left the cache, or None.

        For several blocks, the number of the first; the first block of a chain leaves last.
        """
    @property
    def time(self) -> float | None:
        """The time of the last ``clock.advance`` before it left the cache, or None."""
    @property
    def group(self) -> int | None:
        """The KV-cache group that a hit is short for, or None."""
    @property
    def policy(self) -> str | None:
        """The policy that evicted it, or None.

        ``"priority"`` if retention had put it in a rank of its own.
        """
    @property
    def evicted_class(self) -> str | None:
        """The class that the policy had it in, in words, or None.

        Policies that learn by class have them: ``"hazard"``.
        """
    @property
    def expected_return_s(self) -> float | None:
        """Seconds that such a block would have to be kept for a hit, by what the policy knew, or None.

        Also None if no hit was expected at all.
        """
    @property
    def expected_return_capacities(self) -> float | None:
        """The same in capacities of new blocks, of a pool that is told no time, or None."""
    @property
    def request(self) -> str | int | None:
        """The request that it was evicted for, or that computes it, or None."""
    @property
    def another(self) -> bool:
        """Whether that is a request of another tenant, salt or user; its id is then hidden."""
    def to_dict(self) -> dict[str, Any]:
        """Returns the span as a dict, without what is None."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
