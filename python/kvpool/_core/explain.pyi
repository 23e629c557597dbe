"""Explanations of missed prompts."""

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
    """Settings of the records from which a manager explains misses.

    Args:
        records: The number of contents that are remembered, 16 to ``2**24``. Each takes 95 bytes, and 4
            per token. A content is ``block_size`` tokens of a prompt, also if a group has larger
            blocks. None is twice the contents of the pool, at least 1,024 and at most ``2**20``.
        requests: The number of released requests that can still be explained, at most ``2**20``.

    Raises:
        InvalidArgumentError: A setting is out of range.

    >>> kvpool.CacheManager(num_blocks=64, explain=kvpool.ExplainConfig(records=4096)).stats().misses
    {}
    """

    def __new__(cls, *, records: int | None = None, requests: int = 1024) -> Self: ...
    @property
    def records(self) -> int | None:
        """The number of contents that are remembered. None leaves it to the pool."""
    @property
    def requests(self) -> int:
        """The number of released requests that can still be explained."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class Explanation:
    """Why a request had to compute its tokens.

    ``str`` returns a text for people: one line for the request, one per KV-cache group if there are
    several, and one per span.
    """

    @property
    def request_id(self) -> str | int:
        """The id of the request."""
    @property
    def admission(self) -> int:
        """The number of the admission, from 1 on. Resumptions count."""
    @property
    def resumed(self) -> bool:
        """Whether the request was resumed. Its tokens are then those that it had at that time."""
    @property
    def block_size(self) -> int:
        """The number of tokens per block."""
    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of its prompt."""
    @property
    def cached_tokens(self) -> int:
        """The number of prompt tokens whose KV was cached."""
    @property
    def spans(self) -> list[MissSpan]:
        """The missed spans, from the first missed block to the end of the prompt."""
    @property
    def groups(self) -> list[GroupReach]:
        """With several KV-cache groups, how much of the prompt each group alone would have served."""
    def to_dict(self) -> dict[str, Any]:
        """Returns the explanation as a dict of numbers, names and lists."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class GroupReach:
    """How much of a prompt one KV-cache group alone would have served, and why not more.

    ``str`` returns one line for people.
    """

    @property
    def group(self) -> int:
        """The number of the group."""
    @property
    def kind(self) -> str:
        """The kind of the group: full, sliding, chunked, state or cross."""
    @property
    def reach_tokens(self) -> int:
        """The number of tokens of the longest hit that the group could have served."""
    @property
    def limits(self) -> bool:
        """Whether this group limited the length of the hit. No other group serves fewer tokens then."""
    @property
    def ends(self) -> list[MissSpan]:
        """Why the group serves no more. Empty if no hit of this prompt can be longer.

        ``blocks`` are the missing blocks of the group's table. ``tokens`` are the tokens that the group
        would have served with them.
        """
    def to_dict(self) -> dict[str, Any]:
        """Returns the group as a dict of numbers, names and lists."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class MissSpan:
    """Consecutive blocks that had to be computed for the same reason.

    ``str`` returns one line for people.
    """

    @property
    def blocks(self) -> tuple[int, int]:
        """The position of the first block in the block table, and the position after the last."""
    @property
    def tokens(self) -> tuple[int, int]:
        """The position of the first token in the prompt, and the position after the last."""
    @property
    def reason(self) -> MissReason:
        """The name of the reason. docs/explain.md describes each reason."""
    @property
    def token(self) -> int | None:
        """The first token that differs from earlier prompts, or None."""
    @property
    def epoch(self) -> int | None:
        """The epoch in which the content was cached, or None."""
    @property
    def admission(self) -> int | None:
        """The number of admissions and resumptions before the content left the cache, or None.

        For several blocks, the number for the first block, which leaves the cache last.
        """
    @property
    def time(self) -> float | None:
        """The time of the last ``clock.advance`` before the content left the cache, or None."""
    @property
    def group(self) -> int | None:
        """The KV-cache group that lacks blocks for a hit, or None."""
    @property
    def policy(self) -> str | None:
        """The policy that evicted the content, or None.

        It is ``"priority"`` if a hint had put the content in another class.
        """
    @property
    def evicted_class(self) -> str | None:
        """A description of the class in which the policy put the content, or None.

        Policies that learn by class, such as ``"hazard"``, have classes.
        """
    @property
    def expected_return_s(self) -> float | None:
        """How many seconds the policy expected until the next hit of such a block, or None.

        Also None if the policy expected no hit.
        """
    @property
    def expected_return_capacities(self) -> float | None:
        """Like ``expected_return_s``, but without a clock. None if the pool has a clock.

        The value is the number of blocks that are newly cached meanwhile, divided by the capacity of
        the pool.
        """
    @property
    def request(self) -> str | int | None:
        """The request for which the content was evicted, or that computes it now, or None."""
    @property
    def another(self) -> bool:
        """Whether that request has another tenant, salt or user. Its id is then hidden."""
    def to_dict(self) -> dict[str, Any]:
        """Returns the span as a dict, without attributes that are None."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
