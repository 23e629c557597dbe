//! Property 14: the parent in the event of a stored block is the digest before it in the request that
//! stored it. When the event is reported, a lookup can match the parent, or the events so far show that
//! it cannot.
//!
//! In trtllm#3543, ascend#12002 and vllm#58119, events reported blocks as first blocks of a prompt, or
//! with an unknown parent. Routers then built wrong prefix trees.
//!
//! An implementation fails this test if it uses the hash of the previous block in the table or in the
//! call, because that block may be a hit, the null block, or missing. It also fails if it reports no
//! parent when another call stored the previous block.
//!
//! Events have no flag for a parent that cannot be matched. By property 13, the events so far give the
//! hashes that can be matched, so any other parent cannot. Events never report a block as the first
//! block of a prompt if it is not.

use super::histories::*;
use super::*;

/// Returns the parent and the depth of every block of a chain.
fn links(chain: &HashChain) -> BTreeMap<BlockHash, (Option<BlockHash>, u32)> {
    let hashes = chain.hashes();
    let parent = |at: usize| at.checked_sub(1).map(|before| hashes[before]);
    (0..hashes.len()).map(|at| (hashes[at], (parent(at), at as u32))).collect()
}

/// Replays events into `live`, and checks that each stored block has the parent and the depth of its
/// own chain. Returns the number of blocks whose parent was not cached.
fn replay(
    events: &[BlockEvent],
    live: &mut BTreeSet<BlockHash>,
    links: &BTreeMap<BlockHash, (Option<BlockHash>, u32)>,
) -> usize {
    let mut absent = 0;
    for event in events {
        match *event {
            BlockEvent::Stored { hash, parent, depth, .. } => {
                assert_eq!(links[&hash], (parent, depth), "{event:?}");
                assert_eq!(parent.is_none(), depth == 0, "{event:?} is no root");
                absent += usize::from(parent.is_some_and(|parent| !live.contains(&parent)));
                assert!(live.insert(hash));
            }
            BlockEvent::Removed { hash, .. } => assert!(live.remove(&hash)),
            BlockEvent::Cleared { .. } => live.clear(),
            _ => panic!("{event:?}"),
        }
    }
    absent
}

/// Checks every short history of a pool, with copies, evictions by id, hits and epochs.
#[test]
fn property_14_a_stored_block_has_the_parent_of_its_chain_in_every_small_history() {
    every_history(4, |world, act, history| {
        world.pool.take_events();
        let mut live: BTreeSet<_> = world.copies().into_keys().collect();
        let before = world.pool.epoch();
        world.act(act);
        assert!(world.pool.epoch() == before || matches!(act, Act::BumpEpoch));
        let links = links(world.prompt());
        let events = world.pool.take_events().events;
        assert_eq!(replay(&events, &mut live, &links), 0, "{history:?}: {events:?}");
    });
}

proptest! {
    /// Requests share prefixes, are preempted and resumed, lose blocks to evictions, and run during
    /// epoch bumps. The event of each block contains its own parent, which a lookup can match at that
    /// time.
    #[test]
    fn property_14_requests_store_every_block_after_a_known_parent(
        usable in 3usize..9,
        calls in calls(),
    ) {
        let mut live = BTreeSet::new();
        let mut known = BTreeMap::new();
        play(&mut Engine::new(usable), &calls, |engine| {
            for Sequence { tokens, epoch } in engine.requests.values() {
                known.extend(links(&chain_in(*epoch, tokens)));
            }
            let batch = engine.manager.take_events();
            assert_eq!(batch.dropped, 0);
            assert_eq!(replay(&batch.events, &mut live, &known), 0, "{:?}", batch.events);
        });
    }
}

/// Tests parents that are no longer cached when their child is stored, because their content was
/// removed by id, they were outside of a window, or a swap did not copy them. The event of the child
/// still contains the parent's hash and the child's depth. The set of replayed events does not contain
/// the parent.
#[test]
fn property_14_an_absent_parent_is_named_and_detected() {
    let tokens: Vec<u32> = (1..=8).collect();
    let known = links(&chain(&tokens));
    for how in ["by id", "window", "swap"] {
        let mut live = BTreeSet::new();
        let mut absent = 0;
        let mut take = |events: Vec<BlockEvent>| {
            absent += replay(&events, &mut live, &known);
            events.len()
        };
        match how {
            "swap" => {
                // The host never gets blocks outside of the window.
                let tier = || PoolConfig { num_blocks: 5, block_size: B, ..Default::default() };
                let mut tiers = Tiers::new(vec![tier(), tier()]).unwrap();
                tiers.watch_tier(1, &events(100)).unwrap();
                let blocks = fill(tiers.pool_mut(0).unwrap(), &tokens);
                let swap = tiers.begin_swap(&blocks[2..], 0, 1).unwrap();
                tiers.take_plan().unwrap();
                tiers.complete_swap(swap).unwrap();
                assert_eq!(take(tiers.take_events(1).unwrap().events), 2);
            }
            "window" => {
                // The window is as small as possible, so no later token reads the parent's block. Another
                // request takes it.
                let config = ManagerConfig { num_blocks: 5, block_size: B, ..Default::default() };
                let mut manager = CacheManager::new(config).unwrap().watched(&manager_events(100)).unwrap();
                let prompt = |tokens: &[u32]| {
                    let mut prompt = HashCursor::new(hasher(), ExtraKeys::default()).unwrap();
                    prompt.append(tokens);
                    prompt
                };
                manager.admit(0, prompt(&tokens)).unwrap();
                manager.commit(0, 4).unwrap();
                assert_eq!(manager.trim_window(0, 0).unwrap(), 2);
                manager.admit(1, prompt(&[70, 71, 72])).unwrap();
                assert_eq!(take(manager.take_events().events), 4); // stored twice, removed twice
                manager.commit(0, 8).unwrap();
                assert_eq!(take(manager.take_events().events), 2);
            }
            _ => {
                let mut pool = pool(8).watched(&events(100)).unwrap();
                let blocks = pool.allocate(4).unwrap();
                pool.register(&blocks, &chain(&tokens), 0).unwrap();
                pool.mark_computed(&blocks[..2]).unwrap();
                pool.drop_cached(&blocks[1..2]).unwrap();
                pool.mark_computed(&blocks[2..]).unwrap();
                take(pool.take_events().events);
            }
        }
        assert_eq!(absent, 1, "{how}: one parent is absent, and no block is called a root for it");
    }
}
