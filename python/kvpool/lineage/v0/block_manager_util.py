"""What vLLM v0's block manager reads of the engine's sequences and groups, and the states that they can
be in.

Owns no state. Sequences are the engine's: anything with the ancestor's names will do. States are
compared by name, so that the engine's own enum works as well as the one below.
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
    """Where a sequence is in its life."""

    WAITING = 0
    RUNNING = 1
    SWAPPED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5
    FINISHED_IGNORED = 6

    @staticmethod
    def is_finished(status: SequenceStatus) -> bool:
        """Returns whether a sequence in this state is over."""
        return status > SequenceStatus.SWAPPED


class Sequence(Protocol):
    """What is read of a sequence.

    Beside these, if it has them: ``status``, ``is_prefill()``, ``extra_hash`` (a value or a method: an
    int or ``kvpool.ExtraKeys``), and with a sliding window ``data.get_num_computed_tokens()``, or that
    method of its own.
    """

    seq_id: int

    def get_token_ids(self) -> Items[int]:
        """Returns its tokens, those of the prompt first."""


class SequenceGroup(Protocol):
    """What is read of a group. ``is_encoder_decoder()`` and ``get_encoder_seq()`` only if it has them."""

    request_id: str

    def get_seqs(self) -> Items[Sequence]:
        """Returns its sequences."""


# The engine's enum, whichever it is.
Status: TypeAlias = Any


def seqs_in(group: SequenceGroup, status: SequenceStatus) -> list[Sequence]:
    """Returns the sequences of a group that are in a state."""
    name = status._name_
    return [seq for seq in group.get_seqs() if status_name(seq) == name]


def status_name(seq: Sequence) -> str:
    """Returns the name of a sequence's state; that of ``RUNNING`` if it has none."""
    status: Status = getattr(seq, "status", SequenceStatus.RUNNING)
    # What is behind an enum's ``name``, which takes a call.
    name = getattr(status, "_name_", None)
    return name if name is not None else str(getattr(status, "name", status))


def first_waiting(group: SequenceGroup) -> Sequence:
    """Returns the first sequence that waits.

    Raises:
        ContractError: None does.
    """
    waiting = seqs_in(group, SequenceStatus.WAITING)
    if not waiting:
        raise ContractError(f"no sequence of group {group.request_id!r} is waiting")
    return waiting[0]


def is_prefill(seq: Sequence) -> bool:
    """Returns whether a sequence still computes its prompt; False if it does not say."""
    ask = getattr(seq, "is_prefill", None)
    return bool(ask()) if callable(ask) else bool(ask)


def extra_hash_of(seq: Sequence) -> ExtraHash:
    """Returns what identifies the sequence beside its tokens; None if it has no ``extra_hash``."""
    extra = getattr(seq, "extra_hash", None)
    return extra() if callable(extra) else extra


def num_computed_tokens_of(seq: Sequence) -> int | None:
    """Returns how many tokens of a sequence are computed; None if it does not say."""
    for holder in (getattr(seq, "data", None), seq):
        ask = getattr(holder, "get_num_computed_tokens", None)
        if callable(ask):
            return int(ask())
    return None


def encoder_seq_of(group: SequenceGroup) -> Sequence | None:
    """Returns the encoder's sequence of a group for an encoder-decoder model; None of any other.

    Raises:
        ContractError: The group says that it has one, and has none.
    """
    ask = getattr(group, "is_encoder_decoder", None)
    if ask is None or not ask():
        return None
    seq: Sequence | None = group.get_encoder_seq()  # type: ignore[attr-defined]  # only these groups have it
    if seq is None:
        raise ContractError(f"group {group.request_id!r} has no encoder sequence")
    return seq
