//! Property 15: an event has the same number of hashes, token chunks and extra keys, and each of them
//! has its index in the prompt.
//!
//! In vllm#44451, the lists of an event had different lengths, and consumers attached tokens to the
//! wrong hashes.
//!
//! An implementation fails this test if one event describes a run of blocks, and its lists are built
//! with different filters for masked, cached and null blocks.
//!
//! In kvpool, an event describes one block: its hash, its parent, and its depth, which is the logical
//! index. So this test checks the remaining parts of the property. There is exactly one event per block
//! that became matchable, in the order of the chain. The hash of the tokens and extra keys at the depth
//! of the event is the hash in the event. vLLM's events contain lists: see
//! `tests/properties/test_p15_event_lengths.py`.

use super::*;

fn image(identifier: &str, offset: u64, length: u64) -> MultimodalItem {
    MultimodalItem { identifier: identifier.as_bytes().into(), offset, length }
}

/// Tests vllm#44451 with blocks with and without images, which are committed in two parts of any size.
/// Another request has already cached some of these blocks.
#[test]
fn property_15_each_stored_block_is_one_event_at_its_own_index() {
    let tokens: Vec<u32> = (0..11).collect();
    let blocks = tokens.len() / B;
    // The extra keys belong to single blocks, to runs of blocks that end inside a block, or to no
    // block.
    let extras = [
        ExtraKeys::default(),
        ExtraKeys { salt: Some(b"s"[..].into()), ..Default::default() },
        ExtraKeys { multimodal: vec![image("a", 1, 2)], ..Default::default() },
        ExtraKeys { multimodal: vec![image("a", 3, 4), image("b", 8, 1)], ..Default::default() },
    ];
    for extra in &extras {
        for known in 0..=blocks {
            for first in 0..=tokens.len() {
                let config = ManagerConfig { num_blocks: 20, block_size: B, ..Default::default() };
                let mut manager = CacheManager::new(config).unwrap().watched(&manager_events(100)).unwrap();
                let cursor = manager.prepare(&tokens, extra.clone()).unwrap();
                let chain = cursor.chain().clone();
                // Both requests are admitted before anything is computed, so the blocks of the second
                // one are copies.
                manager.admit(1, cursor.clone()).unwrap();
                manager.admit(2, cursor).unwrap();
                manager.commit(1, known * B).unwrap();
                assert_eq!(manager.take_events().events.len(), known);
                let table = manager.block_table(2).unwrap().to_vec();

                let mut told = Vec::new();
                for computed in [first, tokens.len()] {
                    manager.commit(2, computed).unwrap();
                    let batch = manager.take_events();
                    assert_eq!(batch.dropped, 0);
                    told.extend(batch.events);
                }
                let new = (known..blocks).map(|at| BlockEvent::Stored {
                    hash: chain.hashes()[at],
                    group: 0,
                    parent: at.checked_sub(1).map(|before| chain.hashes()[before]),
                    depth: at as u32,
                    block: table[at],
                });
                assert_eq!(told, new.collect::<Vec<_>>(), "{known} cached before, {first} first: {extra:?}");

                // The event's depth determines its tokens and extra keys. Their hash is the hash in the
                // event, for every block.
                let mut link: Option<ChainLink> = None;
                for (at, chunk) in tokens.chunks_exact(B).enumerate() {
                    let next = ChainLink::new(manager.hasher(), link.as_ref(), chunk, extra).unwrap();
                    assert_eq!((next.hash(), next.depth()), (chain.hashes()[at], at as u32));
                    link = Some(next);
                }
            }
        }
    }
}

/// A log that is never read loses whole events, and counts each lost event. The numbers of lost and
/// kept events add up to the number of blocks.
#[test]
fn property_15_lost_and_kept_events_add_up() {
    for capacity in 1..=7usize {
        for blocks in 0..=15usize {
            let mut pool = pool(16).watched(&events(capacity)).unwrap();
            fill(&mut pool, &(0..(B * blocks) as u32).collect::<Vec<_>>());
            let batch = pool.take_events();
            assert_eq!(batch.events.len() as u64 + batch.dropped, blocks as u64);
            let depth = |event: &BlockEvent| match event {
                BlockEvent::Stored { depth, .. } => *depth,
                _ => panic!("{event:?}"),
            };
            let kept: Vec<_> = batch.events.iter().map(depth).collect();
            let end: Vec<_> = (batch.dropped as u32..blocks as u32).collect();
            assert_eq!(kept, end, "what is left is the end, in order");
        }
    }
}
