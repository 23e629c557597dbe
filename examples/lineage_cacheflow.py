"""Uses kvpool as CacheFlow's block manager: a fork, copies on write, and swaps out and in."""

from __future__ import annotations

from dataclasses import dataclass

from kvpool.lineage.cacheflow import BlockSpaceManager, SequenceStatus


@dataclass
class Sequence:
    """The attributes of an engine's sequence that the manager uses."""

    seq_id: int
    logical_token_blocks: list[str]
    status: SequenceStatus = SequenceStatus.SERVING


@dataclass
class SequenceGroup:
    """The attributes of an engine's sequence group that the manager uses."""

    seqs: list[Sequence]


def main() -> None:
    """Runs a group of two sequences from its allocation to its end."""
    manager = BlockSpaceManager(block_size=16, num_gpu_blocks=8, num_cpu_blocks=8, watermark=0.1)
    group = SequenceGroup([Sequence(number, ["prompt"] * 2) for number in range(2)])
    for blocks in (2, 9):
        asked = SequenceGroup([Sequence(9, ["prompt"] * blocks)])
        print(f"a prompt of {blocks} blocks:", manager.can_allocate(asked).name)
    manager.allocate(group)
    first, second = group.seqs
    print("shared prompt:", manager.get_block_table(first), manager.get_block_table(second))
    print("copy before writing:", manager.append(second))
    print("own tail:", manager.get_block_table(first), manager.get_block_table(second))
    print("to the host:", manager.swap_out(group), "free on the device:", manager.get_num_free_gpu_blocks())
    swap = manager.begin_swap_in(group)
    print("copy these, then complete:", swap.mapping)
    swap.complete()
    for seq in group.seqs:
        manager.free(seq)
    print("free:", manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks())


if __name__ == "__main__":
    main()
