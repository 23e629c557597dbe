"""Uses kvpool as Aphrodite's token blocks: reused buffers, and hashes with extra keys."""

from __future__ import annotations

import kvpool
from kvpool.lineage.token_blocks import BlockPool, LogicalTokenBlock, PhysicalTokenBlock


def main() -> None:
    """Fills a block, hashes it for two tenants, releases it, and reuses its buffer."""
    pool = BlockPool()
    with LogicalTokenBlock(block_number=0, block_size=4, pool=pool) as block:
        block.append_tokens([101, 102, 103])
        print("tokens:", block.get_token_ids(), "empty slots:", block.get_num_empty_slots())
        block.append_tokens([104])
        for tenant in ("red", "blue"):
            link = block.content_hash(extra=kvpool.ExtraKeys(tenant=tenant))
            if link is not None:
                print(f"hash for {tenant}:", link.digest.hex()[:16])
                physical = PhysicalTokenBlock("GPU", 7, 4, block_hash=link, num_hashed_tokens=link.num_tokens)
                print(physical)
        try:
            block.append_tokens([105])
        except AssertionError as error:
            print("refused:", error)
    print("idle buffers:", pool.pool)
    print("blank again:", LogicalTokenBlock(0, 4, pool=pool).token_ids)


if __name__ == "__main__":
    main()
