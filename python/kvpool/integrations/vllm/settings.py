"""The settings of the plug-in: reads and checks environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar, get_args

from kvpool._core.policies import policy_removal
from kvpool.policies import eviction_policies

from .hints import VllmHints

if TYPE_CHECKING:
    from collections.abc import Mapping

Level = Literal["pool", "manager", "shadow"]
Events = Literal["exact", "stock"]
_Choice = TypeVar("_Choice", bound=str)

#: The value of ``KVPOOL_VLLM`` that leaves vLLM unchanged.
_OFF: Final = "off"
#: The eviction policy that gives the order in which vLLM's own pool evicts.
LRU: Final = "lru"
#: All policies except ``last-accessed``, which needs access times that the plug-in does not provide.
EVICTIONS: Final = tuple(name for name in eviction_policies() if name != "last-accessed")


@dataclass(frozen=True)
class Settings:
    """The level of the plug-in, and its other settings.

    >>> settings = Settings.from_environment({"KVPOOL_VLLM": "manager"})
    >>> settings.level, settings.events, settings.eviction, settings.hints
    ('manager', 'exact', 'lru', None)
    >>> Settings.from_environment({}).level is None
    True
    """

    #: ``KVPOOL_VLLM``; ``None`` if it is unset, empty or ``off``.
    level: Level | None = None
    #: ``KVPOOL_VLLM_EVENTS``: ``exact``, or ``stock`` for the events of vLLM, including their defects.
    events: Events = "exact"
    #: ``KVPOOL_VLLM_EVICTION``: the order in which cached blocks are evicted, one of ``EVICTIONS``.
    eviction: str = LRU
    #: ``KVPOOL_VLLM_SHADOW_DIR``: the folder in which the shadow writes the differences that it finds.
    shadow_folder: str | None = None
    #: ``KVPOOL_VLLM_JOURNAL_DIR``: the folder for the journals of all pools. If it is unset, there are
    #: no journals.
    journal_folder: str | None = None
    #: ``KVPOOL_VLLM_HINTS``: the hints of requests that are followed. If it is unset, no hint is
    #: followed.
    hints: VllmHints | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Reads the variables. Raises ``ValueError`` for an invalid value.

        An empty variable counts as unset. The shadow compares every block id with vLLM's. Therefore it
        does not support hints, or any eviction order except ``lru``.
        """
        environment = os.environ if environment is None else environment

        def value(name: str) -> str | None:
            """Returns the value of a variable; None if it is unset or empty.

            Empty variables are accepted because scripts often pass on variables that they did not get a
            value for.
            """
            return environment.get(name, "").strip() or None

        found = cls(
            level=_level(value("KVPOOL_VLLM") or _OFF),
            events=_one_of("KVPOOL_VLLM_EVENTS", value("KVPOOL_VLLM_EVENTS") or "exact", get_args(Events)),
            eviction=_one_of("KVPOOL_VLLM_EVICTION", value("KVPOOL_VLLM_EVICTION") or LRU, EVICTIONS),
            shadow_folder=value("KVPOOL_VLLM_SHADOW_DIR"),
            journal_folder=value("KVPOOL_VLLM_JOURNAL_DIR"),
            hints=VllmHints.parse(hints) if (hints := value("KVPOOL_VLLM_HINTS")) else None,
        )
        if found.level == "shadow" and found.hints is not None:
            raise ValueError(
                "KVPOOL_VLLM_HINTS is set with KVPOOL_VLLM=shadow: must be unset there, since the shadow "
                "compares with vLLM's own order"
            )
        if found.level == "shadow" and found.eviction != LRU:
            raise ValueError(
                f"KVPOOL_VLLM_EVICTION is {found.eviction!r} with KVPOOL_VLLM=shadow: must be {LRU} there, "
                "since the shadow compares with vLLM's own order"
            )
        return found


def _level(value: str) -> Level | None:
    found = _one_of("KVPOOL_VLLM", value, (_OFF, *get_args(Level)))
    return None if found == _OFF else found


def _one_of(name: str, value: str, known: tuple[_Choice, ...]) -> _Choice:
    for choice in known:
        if value.lower() == choice:
            return choice
    note = policy_removal(value.lower()) if known is EVICTIONS else None
    must = f"must be one of {', '.join(known)}"
    raise ValueError(f"{name} is {value!r}: {must if note is None else f'{must}; {note}'}")
