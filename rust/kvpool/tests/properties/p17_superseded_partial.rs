//! Property 17: after a block is replaced by another block, no lookup finds its former content in it,
//! and no event reports that content for it.
//!
//! A block is promoted when it becomes full and is registered. In vllm#49125, the digest of a part of a
//! block remained after its promotion, and a lookup of this digest found a block with more tokens.
//!
//! An implementation fails this test if a promotion does not remove partial digests from their own
//! table, or if a promotion replaces a block by another one and leaves the replaced block in the index.
//!
//! This module tests groups without `partial_hits`: a part of a block has no digest, and a promoted
//! block has one digest. With `partial_hits`, names inside a block are removed with the block: see
//! `operations/partial_hits.rs`. vLLM has its own partial digests: see `kvpool-vllm/tests/properties`
//! and `tests/properties/test_p17_superseded_partial.py`.

use super::*;

/// Commits every prompt token by token. No lookup finds a part of a block, not even for a prompt that
/// ends there, and no event reports it. A block is reported once, when it is full.
#[test]
fn property_17_a_part_of_a_block_is_never_indexed() {
    for length in 1..=7usize {
        let tokens: Vec<u32> = (0..length as u32).collect();
        let mut engine = Engine::new(12);
        engine.admit(1, &tokens).unwrap();
        let mut told = 0;
        for computed in 0..=length {
            engine.compute(1, computed);
            told += engine.manager.take_events().events.len();
            assert_eq!(told, computed / B);
            assert_eq!(engine.manager.pool().stats().registered, computed / B);
            for asked in 1..=length {
                let mut other = tokens[..asked].to_vec();
                other.push(99);
                let cursor = engine.manager.prepare(&other, ExtraKeys::default()).unwrap();
                let found = engine.manager.probe(&cursor).unwrap().cached_blocks;
                assert_eq!(found, asked.min(computed) / B, "{asked} of {computed} tokens");
            }
            engine.check_index();
        }
    }
}

/// Tests vllm#49125 with promotions of copies of one content, in every order, and with every way in
/// which the first copy can end. A block that was replaced has no hash, no lookup returns it, and no
/// event contains it.
#[test]
fn property_17_a_block_that_was_given_up_by_a_promotion_leads_nowhere() {
    let extra = ExtraKeys::default();
    let link = ChainLink::new(&hasher(), None, &[1, 2], &extra).unwrap();
    for order in permutations(3) {
        for computed in [false, true] {
            for dropped in [false, true] {
                let mut pool = pool(8).watched(&events(100)).unwrap();
                let own = pool.allocate(3).unwrap();
                let first = own[order[0]];
                assert_eq!(pool.register_link(first, &link).unwrap(), first);
                if computed {
                    pool.mark_computed(&[first]).unwrap();
                    let events = pool.take_events().events;
                    assert!(matches!(events[..], [BlockEvent::Stored { block, .. }] if block == first));
                }
                for &at in &order[1..] {
                    assert_eq!(pool.register_link(own[at], &link).unwrap(), first, "{order:?}");
                    assert_eq!((pool.hash_of(own[at]), pool.ref_count(own[at])), (None, Some(0)));
                    assert_eq!(pool.state(own[at]), Some(BlockState::Free));
                    assert_eq!(pool.copies(&link.hash()), [first]);
                }
                assert_eq!(pool.ref_count(first), Some(3));
                if dropped {
                    pool.drop_cached(&[first]).unwrap();
                }
                pool.release(&[first; 3]).unwrap();
                // Other requests may use the blocks now. No event about these blocks contains this
                // content, and no lookup of the content returns them.
                let left = usize::from(computed && !dropped);
                assert_eq!(pool.match_and_acquire(&chain(&[1, 2]), 1).unwrap().len(), left);
                let others = fill(&mut pool, &[5, 6, 7, 8]);
                assert!(left == 0 || !others.contains(&first));
                assert_eq!(pool.copies(&link.hash()).len(), left);
                let removed = pool.take_events().events.into_iter().filter(|event| match event {
                    BlockEvent::Removed { hash, .. } | BlockEvent::Stored { hash, .. } => {
                        *hash == link.hash()
                    }
                    _ => panic!("{event:?}"),
                });
                assert_eq!(removed.count(), usize::from(computed && dropped));
                pool.check_invariants().unwrap();
            }
        }
    }
}

/// If the last block is truncated and rewritten, it has another content. A lookup finds the former
/// content as long as its own block exists, and never returns the new block for it.
#[test]
fn property_17_a_rewritten_tail_is_not_found_by_its_old_content() {
    for keep in 1..=5usize {
        for more in 0..=4u32 {
            let config = ManagerConfig { num_blocks: 13, block_size: B, ..Default::default() };
            let mut manager = CacheManager::new(config).unwrap();
            manager.admit(0, manager.prepare(&[1, 2, 3, 4, 5], ExtraKeys::default()).unwrap()).unwrap();
            manager.commit(0, 5).unwrap();
            let old = manager.cursor(0).unwrap().chain().clone();
            manager.truncate(0, keep, None).unwrap();
            let tokens: Vec<_> = (0..more).map(|token| 50 + token).collect();
            manager.append_tokens(0, &tokens, 0).unwrap();
            manager.take_plan().unwrap();
            manager.commit(0, keep + more as usize).unwrap();
            let new = manager.cursor(0).unwrap().chain().clone();
            let (table, pool) = (manager.block_table(0).unwrap(), manager.pool());
            for (at, &block) in table.iter().enumerate() {
                let (own, is_kept) = (pool.hash_of(block), (at + 1) * B <= keep);
                if more > 0 || is_kept {
                    assert_eq!(own.as_ref(), new.hashes().get(at), "{keep}, {more}: block {at}");
                } else {
                    // Nothing has been written since the truncation. The last block is still the
                    // registered block, which contains more tokens than the request.
                    assert_eq!(own.as_ref(), old.hashes().get(at), "{keep}: block {at}");
                }
            }
            let rewritten = table.iter().skip(keep / B).filter(|_| more > 0);
            for block in rewritten {
                assert!(old.hashes().iter().all(|hash| !pool.copies(hash).contains(block)), "{keep}, {more}");
            }
            manager.check_invariants().unwrap();
        }
    }
}
