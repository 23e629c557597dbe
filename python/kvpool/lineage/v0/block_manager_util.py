"""Reads the engine's sequences and groups for vLLM v0's block manager, and defines their states.

This module has no state. Sequences belong to the engine, and can be any objects with the ancestor's
attributes. States are compared by name, so that an engine can use its own enum instead of the one
below.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kvpool.lineage.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from kvpool.lineage.v0.block.interfaces import ExtraHash

__all__ = ["Sequence", "SequenceGroup", "SequenceStatus"]


class SequenceStatus(enum.IntEnum):
    """The state of a sequence."""

    WAITING = 0
    RUNNING = 1
    SWAPPED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5
    FINISHED_IGNORED = 6

    @staticmethod
    def is_finished(status: SequenceStatus) -> bool:
        """Returns whether a sequence in this state has finished."""
        return status > SequenceStatus.SWAPPED


class Sequence(Protocol):
    """The attributes of a sequence that the block manager reads.

    Optional attributes are ``status``, ``is_prefill()``, and ``extra_hash`` (a value or a method that
    returns it: an int or ``kvpool.ExtraKeys``). A sliding window requires
    ``data.get_num_computed_tokens()``, or this method on the sequence itself.
    """

    seq_id: int

    def get_token_ids(self) -> Items[int]:
        """Returns the tokens of the sequence, beginning with those of the prompt."""


class SequenceGroup(Protocol):
    """The attributes of a group that the block manager reads.

    ``is_encoder_decoder()`` and ``get_encoder_seq()`` are optional.
    """

    request_id: str

    def get_seqs(self) -> Items[Sequence]:
        """Returns the sequences of the group."""


# The state of a sequence, as a member of the engine's own enum.
Status: TypeAlias = Any


def seqs_in(group: SequenceGroup, status: SequenceStatus) -> list[Sequence]:
    """Returns the sequences of a group in the given state."""
    name = status._name_
    return [seq for seq in group.get_seqs() if status_name(seq) == name]


def status_name(seq: Sequence) -> str:
    """Returns the name of a sequence's state. A sequence without ``status`` counts as ``RUNNING``."""
    status: Status = getattr(seq, "status", SequenceStatus.RUNNING)
    # ``_name_`` contains the name of an enum member. Reading ``name`` would cost a function call.
    name = getattr(status, "_name_", None)
    return name if name is not None else str(getattr(status, "name", status))


def first_waiting(group: SequenceGroup) -> Sequence:
    """Returns the first waiting sequence.

    Raises:
        ContractError: No sequence is waiting.
    """
    waiting = seqs_in(group, SequenceStatus.WAITING)
    if not waiting:
        raise ContractError(f"no sequence of group {group.request_id!r} is waiting")
    return waiting[0]


def is_prefill(seq: Sequence) -> bool:
    """Returns whether a sequence is still computing its prompt; False if it has no ``is_prefill``."""
    ask = getattr(seq, "is_prefill", None)
    return bool(ask()) if callable(ask) else bool(ask)


def extra_hash_of(seq: Sequence) -> ExtraHash:
    """Returns the extra keys of a sequence; None if it has no ``extra_hash``."""
    extra = getattr(seq, "extra_hash", None)
    return extra() if callable(extra) else extra


def num_computed_tokens_of(seq: Sequence) -> int | None:
    """Returns the number of computed tokens of a sequence; None if it does not provide it."""
    for holder in (getattr(seq, "data", None), seq):
        ask = getattr(holder, "get_num_computed_tokens", None)
        if callable(ask):
            return int(ask())
    return None


def encoder_seq_of(group: SequenceGroup) -> Sequence | None:
    """Returns the encoder's sequence of a group for an encoder-decoder model; None for any other model.

    Raises:
        ContractError: The group is for an encoder-decoder model, but has no encoder sequence.
    """
    ask = getattr(group, "is_encoder_decoder", None)
    if ask is None or not ask():
        return None
    seq: Sequence | None = group.get_encoder_seq()  # type: ignore[attr-defined]  # only these groups have it
    if seq is None:
        raise ContractError(f"group {group.request_id!r} has no encoder sequence")
    return seq
