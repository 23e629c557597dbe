"""Uses vLLM v0's block manager over kvpool: shares a prompt, copies on write, and swaps out and back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvpool.lineage.v0.block_manager import SelfAttnBlockSpaceManager
from kvpool.lineage.v0.block_manager_util import SequenceStatus


def sequence(seq_id: int, tokens: list[int]) -> Any:
    """Makes a sequence object with the attributes that the block manager reads.

    A class of your own also works if it has these attributes.
    """
    return SimpleNamespace(
        seq_id=seq_id, tokens=tokens, status=SequenceStatus.WAITING, get_token_ids=lambda: tokens
    )


manager = SelfAttnBlockSpaceManager(block_size=4, num_gpu_blocks=8, num_cpu_blocks=8, enable_caching=True)
seqs = [sequence(1, [10, 11, 12, 13, 14]), sequence(2, [10, 11, 12, 13, 14])]
group: Any = SimpleNamespace(request_id="a", get_seqs=lambda: seqs)

print("can be allocated:", manager.can_allocate(group).name)
manager.allocate(group)
for seq in seqs:
    seq.status = SequenceStatus.RUNNING
print("two sequences share:", [manager.get_block_table(seq) for seq in seqs])

for seq, token in zip(seqs, (20, 30), strict=True):
    seq.tokens.append(token)
    print(f"sequence {seq.seq_id} appends {token}, copies:", manager.append_slots(seq, num_lookahead_slots=0))
print("they share one block less:", [manager.get_block_table(seq) for seq in seqs])
manager.mark_blocks_as_computed(group, token_chunk_size=1)

print("swapped out, GPU to CPU:", manager.swap_out(group))
for seq in seqs:
    seq.status = SequenceStatus.SWAPPED
print("free on GPU and CPU:", manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks())
print("can return:", manager.can_swap_in(group, num_lookahead_slots=0).name)
print("swapped in, CPU to GPU:", manager.swap_in(group), "(blocks that the GPU still caches are not copied)")
print("they still share:", [manager.get_block_table(seq) for seq in seqs])

for seq in seqs:
    manager.free(seq)
print("free at the end:", manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks())
