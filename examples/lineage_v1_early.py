"""Uses kvpool as vLLM V1's first block queue: a small prefix cache with verified hits."""

from __future__ import annotations

import kvpool
from kvpool.lineage.v1_early import BlockHashType, FreeKVCacheBlockQueue, KVCacheBlock, hash_request_tokens

BLOCK_SIZE = 4


def main() -> None:
    """Caches a prompt, frees it, and hits its prefix with another prompt."""
    queue = FreeKVCacheBlockQueue([KVCacheBlock(number) for number in range(3)])
    cached: dict[BlockHashType, KVCacheBlock] = {}

    prompt = list(range(12))
    table = []
    for key in hash_request_tokens(BLOCK_SIZE, prompt):
        block = queue.popleft()
        block.block_hash, block.ref_cnt = key, 1
        cached[key] = block
        table.append(block)
    try:
        queue.popleft()
    except ValueError as error:
        print("refused:", error)

    queue.append_sequence(table)
    print("evicted first:", [block.block_id for block in queue.get_all_free_blocks()])

    for extra in (None, kvpool.ExtraKeys(tenant="somebody else")):
        keys = hash_request_tokens(BLOCK_SIZE, prompt[:8], extra)
        hits = [cached[key] for key in keys if key in cached]
        print("hits:", [block.block_id for block in hits])
        for block in hits:
            queue.remove(block)
    print("free:", [block.block_id for block in queue.get_all_free_blocks()])


if __name__ == "__main__":
    main()
