"""Explanations of why tokens of a prompt were not cached."""

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
    """Settings of the records that a manager keeps to explain misses.

    Args:
        records: The number of contents of which the manager keeps a record, 16 to ``2**24``. A content is
            ``block_size`` tokens of a prompt, even if a group has larger blocks. A record takes 95 bytes, and
            4 more per token. None is twice the number of contents that the pool can hold, at least 1,024 and
            at most ``2**20``.
        requests: The number of released requests that can still be explained, at most ``2**20``.

    Raises:
        InvalidArgumentError: A setting is out of range.

    >>> kvpool.CacheManager(num_blocks=64, explain=kvpool.ExplainConfig(records=4096)).stats().misses
    {}
    """

    def __new__(cls, *, records: int | None = None, requests: int = 1024) -> Self: ...
    @property
    def records(self) -> int | None:
        """The number of contents of which the manager keeps a record. None if the manager chooses it."""
    @property
    def requests(self) -> int:
        """The number of released requests that can still be explained."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class Explanation:
    """The reasons why a request had to compute tokens.

    ``str(explanation)`` returns a readable text. It has one line for the request, one line per KV-cache group
    if there are several, and one line per missed span.
    """

    @property
    def request_id(self) -> str | int:
        """The id of the request."""
    @property
    def admission(self) -> int:
        """The number of this admission in the manager, from 1 on. Resumptions count as admissions."""
    @property
    def resumed(self) -> bool:
        """Whether the request was resumed after a preemption.

        The prompt is then all tokens that the request had when it was resumed.
        """
    @property
    def block_size(self) -> int:
        """The number of tokens per block."""
    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of the request's prompt."""
    @property
    def cached_tokens(self) -> int:
        """The number of prompt tokens whose KV was cached."""
    @property
    def spans(self) -> list[MissSpan]:
        """The missed spans, from the first missed block to the end of the prompt."""
    @property
    def groups(self) -> list[GroupReach]:
        """For each KV-cache group, the longest hit that it alone could have served. Empty with one group."""
    def to_dict(self) -> dict[str, Any]:
        """Returns the explanation as a dict of numbers, names and lists."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class GroupReach:
    """The longest hit that one KV-cache group alone could have served, and why it was not longer.

    ``str`` of the object returns one line of readable text.
    """

    @property
    def group(self) -> int:
        """The number of the KV-cache group, from 0 on."""
    @property
    def kind(self) -> str:
        """The kind of the group: full, sliding, chunked, state or cross."""
    @property
    def reach_tokens(self) -> int:
        """The number of tokens of the longest hit that the group could have served."""
    @property
    def limits(self) -> bool:
        """Whether this group limited the length of the request's hit.

        If so, no other group alone would have had a shorter hit.
        """
    @property
    def ends(self) -> list[MissSpan]:
        """The reasons why the group could not serve a longer hit.

        Empty if no longer hit of this prompt is possible.

        In each reason, ``blocks`` are the positions of the missing blocks in the group's table, and
        ``tokens`` are the tokens that the group would have served with these blocks.
        """
    def to_dict(self) -> dict[str, Any]:
        """Returns the group as a dict of numbers, names and lists."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class MissSpan:
    """Consecutive blocks that had to be computed for the same reason.

    ``str`` of the object returns one line of readable text.
    """

    @property
    def blocks(self) -> tuple[int, int]:
        """The position of the first block in the block table, and the position after the last block."""
    @property
    def tokens(self) -> tuple[int, int]:
        """The position of the first token in the prompt, and the position after the last token."""
    @property
    def reason(self) -> MissReason:
        """The name of the reason. docs/explain.md describes each reason."""
    @property
    def token(self) -> int | None:
        """The position of the first prompt token that differs from earlier prompts, or None."""
    @property
    def epoch(self) -> int | None:
        """The epoch in which the content was cached, or None."""
    @property
    def admission(self) -> int | None:
        """The number of admissions and resumptions before the content was removed from the cache, or None.

        If the span has several blocks, this is the number for the first block, because the first block is
        evicted last.
        """
    @property
    def time(self) -> float | None:
        """The time of the last ``clock.advance`` before the content was removed from the cache, or None."""
    @property
    def group(self) -> int | None:
        """The KV-cache group whose missing blocks prevent a hit on this span, or None."""
    @property
    def policy(self) -> str | None:
        """The policy that evicted the content, or None.

        The value is ``"priority"`` if a hint had changed the priority of the content.
        """
    @property
    def evicted_class(self) -> str | None:
        """A description of the class to which the policy assigned the content, or None.

        Some policies, such as ``"hazard"``, sort content into classes and learn how soon each class is used
        again.
        """
    @property
    def expected_return_s(self) -> float | None:
        """The mean number of seconds that a block like this has to stay cached to get one hit, or None.

        This is an estimate of the policy that evicted the block, from blocks of the same class and age. The
        value is also None if the policy expected no hit.
        """
    @property
    def expected_return_capacities(self) -> float | None:
        """The estimate of ``expected_return_s`` for a pool without a clock. None if the pool has a clock.

        Without a clock, the policy measures time by the number of blocks that the pool newly caches, divided
        by the capacity of the pool.
        """
    @property
    def request(self) -> str | int | None:
        """The request for which the content was evicted, or the request that computes it now, or None."""
    @property
    def another(self) -> bool:
        """Whether the evicting or computing request has another tenant, salt or user than this request.

        If so, ``request`` is None, because the id must not be disclosed.
        """
    def to_dict(self) -> dict[str, Any]:
        """Returns the span as a dict, without attributes that are None."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
