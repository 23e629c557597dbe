"""Raises for features that vLLM v0 does not support with encoder-decoder models.

These features are sliding windows and prefix caching. This module owns the error messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvpool.lineage.errors import NotSupportedError
from kvpool.lineage.v0.block_manager_util import encoder_seq_of

if TYPE_CHECKING:
    from kvpool.lineage.v0.block_manager_util import SequenceGroup

__all__ = [
    "STR_NOT_IMPL_ENC_DEC_PREFIX_CACHE",
    "STR_NOT_IMPL_ENC_DEC_SWA",
    "check_no_caching_or_swa_for_blockmgr_encdec",
]

STR_NOT_IMPL_ENC_DEC_SWA = "Sliding window attention for encoder/decoder models is not supported."
STR_NOT_IMPL_ENC_DEC_PREFIX_CACHE = "Prefix caching for encoder/decoder models is not supported."


def check_no_caching_or_swa_for_blockmgr_encdec(block_mgr: Any, seq_group: SequenceGroup) -> None:
    """Checks that a group of an encoder-decoder model uses neither a sliding window nor prefix caching.

    Raises:
        NotSupportedError: The group uses one of them. The error is also a ``NotImplementedError``.
    """
    if encoder_seq_of(seq_group) is None:
        return
    if block_mgr.max_block_sliding_window is not None:
        raise NotSupportedError(STR_NOT_IMPL_ENC_DEC_SWA)
    if block_mgr.enable_caching:
        raise NotSupportedError(STR_NOT_IMPL_ENC_DEC_PREFIX_CACHE)
