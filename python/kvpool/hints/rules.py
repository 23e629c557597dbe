"""The limits of hints, and the answers to hints.

This module owns the switches and limits that decide which hints are followed. All switches are off by
default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from kvpool.errors import ArgumentTypeError, InvalidArgumentError

__all__ = ["Answer", "HintRules", "Outcome"]

#: The outcome of a hint. ``accepted``: applied as given. ``clipped``: reduced to a limit. ``ignored``:
#: not applied.
Outcome = Literal["accepted", "clipped", "ignored"]

#: The priority of a block without a hint, and the highest priority that a block can have.
NORMAL: Final = 35
HIGHEST: Final = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one hint.

    Attributes:
        hint: The name of the hint. For an action of an envelope: ``kv_hints[N] TYPE``.
        outcome: ``accepted``, ``clipped`` or ``ignored``.
        why: The reason if the hint was not accepted as given. It is meant to be logged.
    """

    hint: str
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class HintRules:
    """The hints that are followed, and their limits. Without arguments, none is followed.

    Attributes:
        priority: Whether to follow the priorities of requests, as in vLLM: lower values are more
            important.
        session_ttl: Seconds for which the blocks of a session are kept after their last use. With None,
            they are treated like other blocks.
        tenants: Maps a request's cache salt to the tenant of its blocks. The tenant is one of
            ``RetentionConfig``.
        kv_hints: Whether to follow envelopes of actions.
        cache_key: Whether to follow ``prompt_cache_key`` and ``prompt_cache_retention``, as in OpenAI's
            API.
        breakpoints: Whether to follow cache breakpoints, as in Anthropic's API.
        pins: Whether an action may pin blocks. If not, the blocks are kept at ``max_priority`` instead.
        max_priority: The highest priority that a hint may set, 35 to 100.
        max_ttl: The longest time to live that a hint may set, in seconds.

    Raises:
        InvalidArgumentError: A limit is out of range.
        ArgumentTypeError: ``tenants`` does not map salts to tenants.
    """

    priority: bool = False
    session_ttl: float | None = None
    tenants: Mapping[str, int] = field(default_factory=dict)
    kv_hints: bool = False
    cache_key: bool = False
    breakpoints: bool = False
    pins: bool = False
    max_priority: int = HIGHEST
    max_ttl: float = 86_400.0

    def __post_init__(self) -> None:
        if not (isinstance(self.max_priority, int) and NORMAL <= self.max_priority <= HIGHEST):
            raise InvalidArgumentError(f"max_priority is {self.max_priority}: must be {NORMAL} to {HIGHEST}")
        if not (_is_number(self.max_ttl) and 0 < self.max_ttl < math.inf):
            raise InvalidArgumentError(f"max_ttl is {self.max_ttl}: must be a number of seconds above 0")
        if self.session_ttl is not None and not (
            _is_number(self.session_ttl) and 0 < self.session_ttl <= self.max_ttl
        ):
            raise InvalidArgumentError(
                f"session_ttl is {self.session_ttl}: must be above 0, and at most max_ttl, {self.max_ttl:g}"
            )
        if not isinstance(self.tenants, Mapping) or not all(
            isinstance(salt, str) and isinstance(tenant, int) for salt, tenant in self.tenants.items()
        ):
            raise ArgumentTypeError("tenants must be a mapping of cache salts to numbers of tenants")

    @classmethod
    def all(cls, **more: Any) -> Self:
        """Returns rules that follow all hints except pins and tenants.

        Blocks of sessions are kept for ten minutes.

        >>> HintRules.all(pins=True).kv_hints
        True
        """
        switched = {
            "priority": True,
            "session_ttl": 600.0,
            "kv_hints": True,
            "cache_key": True,
            "breakpoints": True,
        }
        return cls(**(switched | more))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
