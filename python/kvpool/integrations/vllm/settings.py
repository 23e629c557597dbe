"""The plug-in's settings: environment variables, checked, with defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar, get_args

from kvpool import eviction_policies

if TYPE_CHECKING:
    from collections.abc import Mapping

Level = Literal["pool", "manager", "shadow"]
Events = Literal["exact", "stock"]
_Choice = TypeVar("_Choice", bound=str)

#: vLLM's own order.
LRU: Final = "lru"
#: Times of access are stated by nobody here.
EVICTIONS: Final = tuple(name for name in eviction_policies() if name != "last-accessed")


@dataclass(frozen=True)
class Settings:
    """How much of vLLM is kvpool's, and what its events say.

    >>> Settings.from_environment({"KVPOOL_VLLM": "manager"})
    Settings(level='manager', events='exact', eviction='lru', shadow_folder=None, journal_folder=None)
    >>> Settings.from_environment({}).level is None
    True
    """

    #: ``KVPOOL_VLLM``; ``None`` if it is unset, empty or ``off``.
    level: Level | None = None
    #: ``KVPOOL_VLLM_EVENTS``: ``exact``, or ``stock`` for vLLM's own, defects included.
    events: Events = "exact"
    #: ``KVPOOL_VLLM_EVICTION``: the order in which cached blocks are given up, one of ``EVICTIONS``.
    eviction: str = LRU
    #: ``KVPOOL_VLLM_SHADOW_DIR``: where a difference that the shadow finds is written.
    shadow_folder: str | None = None
    #: ``KVPOOL_VLLM_JOURNAL_DIR``: where every pool writes a journal of what it is asked; unset, none does.
    journal_folder: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Reads the variables; raises ``ValueError`` for a value that is none of those above.

        The shadow compares every block id with vLLM's: it is refused with another order than ``lru``.
        """
        environment = os.environ if environment is None else environment
        level = environment.get("KVPOOL_VLLM", "").strip().lower()
        found = cls(
            level=None if level in {"", "off"} else _one_of("KVPOOL_VLLM", level, get_args(Level)),
            events=_one_of("KVPOOL_VLLM_EVENTS", environment.get("KVPOOL_VLLM_EVENTS", "exact"), get_args(Events)),
            eviction=_one_of("KVPOOL_VLLM_EVICTION", environment.get("KVPOOL_VLLM_EVICTION", LRU), EVICTIONS),
            shadow_folder=environment.get("KVPOOL_VLLM_SHADOW_DIR") or None,
            journal_folder=environment.get("KVPOOL_VLLM_JOURNAL_DIR") or None,
        )
        if found.level == "shadow" and found.eviction != LRU:
            raise ValueError(
                f"KVPOOL_VLLM_EVICTION is {found.eviction!r} with KVPOOL_VLLM=shadow: must be {LRU} there, since the "
                "shadow compares with vLLM's own order"
            )
        return found


def _one_of(name: str, value: str, known: tuple[_Choice, ...]) -> _Choice:
    for choice in known:
        if value.strip().lower() == choice:
            return choice
    raise ValueError(f"{name} is {value!r}: must be one of {', '.join(known)}")
