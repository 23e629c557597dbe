//! Tests each part of a pool alone: free list, allocator, evictor, prefix index. Other tests cover
//! their combination in a pool.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::sync::Arc;

use kvpool::hash::HashChain;
use kvpool::{
    BlockAllocator, BlockHash, BlockHasher, BlockId, BlockPool, Candidate, ChainLink, Content, Evictor,
    ExtraKeys, Fingerprint, FreeBlockList, HashAlgorithm, HashCursor, HasherConfig, Inserted, LruEvictor,
    PoolConfig, PoolError, PrefixIndex, Refusal, Verify,
};
use kvpool_observe::{BlockEvent, PoolWatch, WatchConfig};

const B: usize = 2;

fn id(id: u32) -> BlockId {
    BlockId::new(id)
}

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

fn raw(blocks: impl IntoIterator<Item = BlockId>) -> Vec<u32> {
    blocks.into_iter().map(BlockId::get).collect()
}

// --- FreeBlockList: its list ---

/// Returns the blocks of the list from front to back. Checks that the list reports each of them as a
/// member, and that its invariants hold.
fn order(list: &FreeBlockList) -> Vec<u32> {
    let forward = raw(list.iter());
    assert_eq!((list.len(), list.is_empty()), (forward.len(), forward.is_empty()));
    assert_eq!(list.front().map(BlockId::get), forward.first().copied());
    let members = (0..list.num_blocks() as u32 + 2).filter(|&b| list.contains(id(b))).count();
    assert_eq!(members, forward.len());
    list.check_invariants().unwrap();
    forward
}

#[test]
fn a_list_gives_up_any_member_and_no_other() {
    for leave in 1..=5 {
        let mut list = FreeBlockList::new(6).unwrap();
        list.remove(id(leave)).unwrap();
        let rest: Vec<_> = (1..=5).filter(|&b| b != leave).collect();
        assert_eq!(order(&list), rest);
        // These blocks cannot be removed: one was removed before, one was never on the list, and two do
        // not exist.
        for block in [leave, 0, 6, u32::MAX] {
            assert!(list.remove(id(block)).is_err() && !list.contains(id(block)));
            assert_eq!(order(&list), rest);
        }
        list.push_back(id(leave)).unwrap();
        assert_eq!(order(&list), [rest, vec![leave]].concat());
    }
    let mut list = FreeBlockList::new(3).unwrap();
    list.remove(id(1)).unwrap();
    list.remove(id(2)).unwrap();
    assert_eq!((order(&list), list.front()), (vec![], None));
}

#[test]
fn a_list_refuses_listed_blocks_and_unknown_blocks() {
    let mut list = FreeBlockList::new(4).unwrap();
    list.remove(id(2)).unwrap();
    for block in [0, 1, 3, 4, u32::MAX] {
        assert!(list.push_front(id(block)).is_err() && list.push_back(id(block)).is_err());
        assert_eq!(order(&list), [1, 3]);
    }
}

#[test]
fn a_run_is_taken_whole_or_not_at_all() {
    for n in 0..=5 {
        let mut list = FreeBlockList::new(5).unwrap();
        let out = list.pop_front_n(n);
        assert_eq!(out.is_ok(), n <= 4);
        let taken = if n <= 4 { n as u32 } else { 0 };
        assert_eq!(raw(out.unwrap_or_default()), (1..=taken).collect::<Vec<_>>());
        assert_eq!(order(&list), (taken + 1..=4).collect::<Vec<_>>());
        // Only blocks that were taken from the list can be added again.
        (1..=4).for_each(|b| assert_eq!(list.clone().push_front(id(b)).is_ok(), b <= taken));
    }
    assert!(FreeBlockList::new(5).unwrap().pop_front_n(usize::MAX).is_err());
}

// --- FreeBlockList ---

#[test]
fn free_blocks_are_handed_out_last_in_first_out() {
    let mut free = FreeBlockList::new(7).unwrap();
    assert_eq!(raw(free.pop_front_n(4).unwrap()), [1, 2, 3, 4]);
    free.push_front_n(&ids(&[3, 1])).unwrap();
    free.push_front(id(4)).unwrap();
    free.push_back(id(2)).unwrap();
    assert_eq!(raw(free.iter()), [4, 1, 3, 5, 6, 2]);
    free.remove(id(3)).unwrap(); // from the middle
    assert_eq!(raw(free.pop_front_n(5).unwrap()), [4, 1, 5, 6, 2]);
    assert!(free.is_empty() && free.pop_front_n(0).unwrap().is_empty());
    // Blocks that are freed from the last to the first are allocated in ascending order, so the next
    // block table is a run of consecutive ids.
    free.push_front_n(&ids(&[6, 5, 4, 3])).unwrap();
    assert_eq!(raw(free.pop_front_n(4).unwrap()), [3, 4, 5, 6]);
}

#[test]
fn more_free_blocks_than_there_are_cannot_be_taken() {
    let mut free = FreeBlockList::new(4).unwrap();
    for n in [4, usize::MAX] {
        let refused = Err(PoolError::OutOfBlocks(Refusal::new(n, 3, 0, false)));
        assert_eq!(free.pop_front_n(n), refused);
        assert_eq!(raw(free.iter()), [1, 2, 3]);
    }
}

#[test]
fn freeing_a_run_is_all_or_nothing() {
    let operation = "free it again";
    let run = [3, 1, 4];
    // An invalid block is inserted at every position of a call: a free block, a block that occurs
    // twice, the null block, or an unknown block.
    for at in 0..=run.len() {
        let mut cases = vec![
            (5, PoolError::WrongState { block: id(5), state: "already free", operation }),
            (0, PoolError::NullBlock { operation }),
            (7, PoolError::UnknownBlock { block: 7, last: 6 }),
        ];
        cases.extend((at > 0).then(|| {
            (run[0], PoolError::WrongState { block: id(run[0]), state: "already free", operation })
        }));
        for (bad, error) in cases {
            let mut free = FreeBlockList::new(7).unwrap();
            free.pop_front_n(4).unwrap();
            let mut call = run.to_vec();
            call.insert(at, bad);
            assert_eq!(free.push_front_n(&ids(&call)), Err(error), "{call:?}");
            assert_eq!(raw(free.iter()), [5, 6], "{call:?}");
            free.check_invariants().unwrap();
            free.push_front_n(&ids(&run)).unwrap();
            assert_eq!(raw(free.iter()), [4, 1, 3, 5, 6]);
        }
    }
}

#[test]
fn the_free_list_names_refused_blocks() {
    let mut free = FreeBlockList::new(4).unwrap();
    free.remove(id(2)).unwrap();
    let operation = "remove it from the free list";
    assert_eq!(free.remove(id(2)), Err(PoolError::WrongState { block: id(2), state: "not free", operation }));
    assert_eq!(free.remove(id(0)), Err(PoolError::NullBlock { operation }));
    assert_eq!(free.remove(id(4)), Err(PoolError::UnknownBlock { block: 4, last: 3 }));
    for push in [FreeBlockList::push_front, FreeBlockList::push_back] {
        assert_eq!(
            push(&mut free, id(3)).unwrap_err().to_string(),
            "block 3 is already free: cannot free it again"
        );
        assert_eq!(
            push(&mut free, id(9)).unwrap_err().to_string(),
            "block id 9 is outside this pool: ids run from 1 to 3"
        );
    }
    assert_eq!(raw(free.iter()), [1, 3]);
}

// --- BlockAllocator ---

fn counts(allocator: &BlockAllocator) -> (Vec<u32>, Vec<u32>, usize) {
    allocator.check_invariants().unwrap();
    let references = (0..allocator.num_blocks() as u32).filter_map(|b| allocator.ref_count(id(b))).collect();
    let free = raw(allocator.free_order());
    assert_eq!(
        (allocator.num_free(), allocator.num_held()),
        (free.len(), allocator.num_usable() - free.len())
    );
    (references, free, allocator.num_held())
}

#[test]
fn references_are_counted_one_by_one() {
    let mut allocator = BlockAllocator::new(6).unwrap();
    let blocks = allocator.allocate(3).unwrap();
    assert_eq!(raw(blocks), [1, 2, 3]);
    allocator.acquire(&ids(&[2, 1, 2])).unwrap(); // twice in one call: two references
    assert_eq!(counts(&allocator), (vec![0, 2, 3, 1, 0, 0], vec![4, 5], 3));
    allocator.release(&ids(&[2, 3, 2])).unwrap();
    assert_eq!(counts(&allocator), (vec![0, 2, 1, 0, 0, 0], vec![3, 4, 5], 2));
    allocator.release(&ids(&[1, 2, 1])).unwrap(); // 2 becomes idle first and 1 last, so 1 comes out first
    assert_eq!(counts(&allocator), (vec![0; 6], vec![1, 2, 3, 4, 5], 0));
    assert_eq!(allocator.ref_count(id(6)), None);
}

#[test]
fn the_allocator_refuses_whole_calls() {
    let mut allocator = BlockAllocator::new(6).unwrap();
    allocator.allocate(3).unwrap();
    allocator.acquire(&ids(&[2])).unwrap();
    let before = counts(&allocator);
    for at in 0..=3 {
        for (bad, expected) in [
            (4, PoolError::NotHeld { block: id(4), held: 0, operation: "", position: at }),
            (0, PoolError::NullBlock { operation: "" }),
            (6, PoolError::UnknownBlock { block: 6, last: 5 }),
        ] {
            let mut call = vec![1, 2, 3];
            call.insert(at, bad);
            let call = ids(&call);
            for result in [allocator.acquire(&call), allocator.release(&call)] {
                let mut error = result.unwrap_err();
                if let PoolError::NotHeld { operation, .. } | PoolError::NullBlock { operation } = &mut error
                {
                    *operation = "";
                }
                assert_eq!(error, expected, "{call:?}");
                assert_eq!(counts(&allocator), before, "{call:?}");
            }
        }
    }
    // The call contains the block once more than it has references. The error contains the number of
    // references before the call.
    let error = allocator.release(&ids(&[2, 1, 2, 3, 2])).unwrap_err();
    assert_eq!(error, PoolError::NotHeld { block: id(2), held: 2, operation: "release it", position: 4 });
    assert_eq!(error.to_string(), "block 2 has 2 references: cannot release it (reference 4 of this call)");
    assert_eq!(counts(&allocator), before);
    let mut out = ids(&[9]);
    let refused = Err(PoolError::OutOfBlocks(Refusal::new(3, 2, 0, true)));
    assert_eq!(allocator.allocate_into(3, &mut out), refused);
    assert_eq!((raw(out), counts(&allocator)), (vec![9], before));
}

// --- LruEvictor ---

fn candidates(blocks: &[(u32, u32)]) -> Vec<Candidate> {
    blocks.iter().map(|&(block, depth)| Candidate { block: id(block), depth }).collect()
}

#[test]
fn lru_order_is_time_then_depth_then_position() {
    let mut lru = LruEvictor::new(16).unwrap();
    lru.insert(&mut candidates(&[(5, 2), (6, 1), (7, 0)])); // already deepest first
    lru.insert(&mut candidates(&[(1, 0), (2, 3), (9, 1), (4, 3), (3, 0), (8, 3)])); // in any order, with ties
    lru.insert(&mut candidates(&[(10, 7)])); // deep, but last, because time comes first
    lru.insert(&mut []);
    assert_eq!(raw(lru.order()), [5, 6, 7, 2, 4, 8, 9, 1, 3, 10]);
    // A hit removes a block. Its next release adds it at the back.
    assert!(lru.remove(id(6)) && !lru.remove(id(6)));
    lru.insert(&mut candidates(&[(6, 1)]));
    // Blocks that are already in the order keep their position.
    lru.insert(&mut candidates(&[(4, 9), (11, 0)]));
    assert_eq!(raw(lru.order()), [5, 7, 2, 4, 8, 9, 1, 3, 10, 6, 11]);
    lru.check_invariants().unwrap();
}

#[test]
fn every_policy_keeps_its_contract() {
    for &policy in kvpool_policies::ALL {
        let mut evictor = policy.build(10, None).unwrap();
        assert_eq!((evictor.name(), kvpool_policies::by_name(evictor.name())), (policy.name(), Ok(policy)));
        assert!(evictor.is_empty() && evictor.evict().is_none() && !evictor.remove(id(3)));
        let register = |evictor: &mut dyn Evictor, block: u32, depth: u32| {
            let parent = (depth > 0).then(|| id(block - 1));
            evictor.registered(id(block), Content { key: block.into(), depth }, parent);
        };
        for (block, depth) in [(1, 0), (2, 1), (3, 2), (4, 0), (5, 1), (6, 2)] {
            register(evictor.as_mut(), block, depth);
        }
        evictor.insert(&mut candidates(&[(1, 0), (2, 1), (3, 2)]));
        evictor.insert(&mut candidates(&[(6, 2), (5, 1), (4, 0)]));
        evictor.grow(12).unwrap();
        register(evictor.as_mut(), 11, 0);
        evictor.insert(&mut candidates(&[(11, 0)]));
        let order = evictor.order();
        let place = |block| order.iter().position(|&b| b == id(block)).unwrap();
        assert!(place(3) < place(2) && place(2) < place(1), "the deeper before the shallower: {order:?}");
        assert!(place(6) < place(5) && place(5) < place(4), "the deeper before the shallower: {order:?}");
        // If a block without children is removed, the order of the other blocks does not change.
        assert!(evictor.remove(id(11)) && !evictor.contains(id(11)) && !evictor.remove(id(11)));
        for stranger in [0, 8, 12, u32::MAX] {
            assert!(!evictor.contains(id(stranger)) && !evictor.remove(id(stranger)));
        }
        let expected: Vec<_> = order.into_iter().filter(|&b| b != id(11)).collect();
        assert_eq!(evictor.order(), expected);
        for (at, &block) in expected.iter().enumerate() {
            assert_eq!((evictor.len(), evictor.contains(block)), (expected.len() - at, true));
            assert_eq!(evictor.evict(), Some(block), "it returns a block whenever it holds one");
            evictor.check_invariants().unwrap();
        }
        assert!(evictor.is_empty() && evictor.evict().is_none());
    }
}

// --- PrefixIndex ---

fn config(algorithm: HashAlgorithm, verify: Verify) -> HasherConfig {
    HasherConfig { algorithm, block_size: B, verify, ..Default::default() }
}

fn chain_with(config: HasherConfig, tokens: &[u32]) -> HashChain {
    let mut cursor =
        HashCursor::new(Arc::new(BlockHasher::new(config).unwrap()), ExtraKeys::default()).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}

fn chain(tokens: &[u32]) -> HashChain {
    chain_with(config(HashAlgorithm::Sha256, Verify::None), tokens)
}

fn index() -> PrefixIndex {
    PrefixIndex::new(9, B, Verify::None).unwrap()
}

#[test]
fn copies_are_found_computed_ones_first_and_the_oldest_of_these_hits() {
    let chain = chain(&[1, 2]);
    let mut index = index();
    let copies = |index: &PrefixIndex| raw(index.copies(&chain.hashes()[0]));
    for block in [4, 2, 7, 5] {
        assert_eq!(index.insert(id(block), &chain, 0), Ok(Inserted::Registered));
        assert_eq!(index.find(&chain, 0), None, "nothing is computed");
        assert!(index.is_registered(&chain, 0));
    }
    assert_eq!(copies(&index), [4, 2, 7, 5]);
    // The copies are computed in another order than they were inserted. Lookups return the copy that
    // was computed first. The others follow in the order in which they were computed.
    for (computed, expected) in [(7, [7, 4, 2, 5]), (5, [7, 5, 4, 2]), (4, [7, 5, 4, 2]), (7, [7, 5, 4, 2])] {
        index.mark_computed(id(computed)).unwrap();
        assert_eq!((copies(&index), index.find(&chain, 0)), (expected.to_vec(), Some(id(7))));
        index.check_invariants().unwrap();
    }
    assert!(index.has_other_computed_copy(id(7)) && index.has_other_computed_copy(id(2)));
    assert_eq!((index.num_registered(), index.num_hashes()), (4, 1));
    // If the first copy is removed, lookups return the oldest remaining computed copy. If the last
    // computed copy is removed, lookups return none.
    for (removed, left, hit) in
        [(7, &[5, 4, 2][..], Some(5)), (5, &[4, 2], Some(4)), (4, &[2], None), (2, &[], None)]
    {
        assert!(index.remove(id(removed)) && !index.remove(id(removed)));
        assert_eq!((copies(&index), index.find(&chain, 0)), (left.to_vec(), hit.map(id)));
        assert!(!index.has_other_computed_copy(id(removed)));
        index.check_invariants().unwrap();
    }
    assert_eq!((index.num_registered(), index.num_hashes()), (0, 0));
}

/// In an earlier version, a copy that became computed was inserted directly after the oldest copy. When
/// the oldest of three copies was removed, lookups returned the youngest.
#[test]
fn of_several_computed_copies_the_oldest_that_is_left_hits() {
    let chain = chain(&[1, 2]);
    let mut index = index();
    for block in 1..=5 {
        assert_eq!(index.insert(id(block), &chain, 0), Ok(Inserted::Registered));
        if block != 4 {
            // The fourth copy is the last to be computed, so lookups return it only after all others
            // are removed.
            index.mark_computed(id(block)).unwrap();
        }
    }
    index.mark_computed(id(4)).unwrap();
    for oldest in [1, 2, 3, 5, 4] {
        assert_eq!(index.find(&chain, 0), Some(id(oldest)));
        assert!(index.remove(id(oldest)));
        index.check_invariants().unwrap();
    }
    assert_eq!(index.find(&chain, 0), None);
}

/// If the parent of a block's content is unknown, the index returns none. In an earlier version, it
/// returned the parent of the block's former content.
#[test]
fn a_parent_that_is_not_known_is_none() {
    let (first, second) = (chain(&[1, 2, 3, 4]), chain(&[5, 6, 7, 8]));
    let forged = |parent| {
        let (algorithm, hash) = (HashAlgorithm::Sha256, second.hashes()[1]);
        ChainLink::forged(algorithm, 0, hash, None, parent, 1, vec![7, 8].into())
    };
    let config = PoolConfig { num_blocks: 4, block_size: B, ..Default::default() };
    let events = WatchConfig { event_capacity: 9, ..Default::default() };
    for parent in [None, Some(second.hashes()[0])] {
        let mut pool = BlockPool::new(config.clone()).unwrap().watched(&events).unwrap();
        let block = pool.allocate(1).unwrap();
        pool.register(&block, &first, 1).unwrap();
        pool.mark_computed(&block).unwrap();
        pool.drop_cached(&block).unwrap();
        pool.take_events();
        assert_eq!(pool.register_link(block[0], &forged(parent)), Ok(block[0]));
        pool.mark_computed(&block).unwrap();
        let stored =
            BlockEvent::Stored { hash: second.hashes()[1], group: 0, parent, depth: 1, block: block[0] };
        assert_eq!(pool.take_events().events, [stored]);
    }
}

#[test]
fn a_copy_can_be_removed_from_the_head_the_middle_and_the_end() {
    let chain = chain(&[1, 2]);
    for computed in 0..=3 {
        for removed in 0..3 {
            let mut index = index();
            (1..=3).for_each(|b| assert_eq!(index.insert(id(b), &chain, 0), Ok(Inserted::Registered)));
            (1..=computed).for_each(|b| index.mark_computed(id(b)).unwrap());
            let ring = index.copies(&chain.hashes()[0]);
            assert!(index.remove(ring[removed]));
            let left: Vec<_> = ring.iter().copied().filter(|&b| b != ring[removed]).collect();
            assert_eq!(index.copies(&chain.hashes()[0]), left, "{computed} computed");
            assert_eq!(index.find(&chain, 0), left.first().copied().filter(|&b| index.is_computed(b)));
            index.check_invariants().unwrap();
            // A removed block can be registered again with another content, and is not computed then.
            let other = chain_with(config(HashAlgorithm::Sha256, Verify::None), &[8, 8]);
            index.insert(ring[removed], &other, 0).unwrap();
            assert_eq!(index.copies(&chain.hashes()[0]), left);
            assert!(!index.is_computed(ring[removed]), "the old content's bit is gone");
            index.check_invariants().unwrap();
        }
    }
}

#[test]
fn the_index_knows_place_and_parent() {
    let chain = chain(&[1, 2, 3, 4, 5, 6]);
    for (keep_parents, new) in
        [(false, PrefixIndex::new as fn(_, _, _) -> _), (true, PrefixIndex::with_parents)]
    {
        let mut index: PrefixIndex = new(9, B, Verify::None).unwrap();
        for (position, block) in [8, 3, 6].into_iter().enumerate() {
            index.insert(id(block), &chain, position).unwrap();
            assert_eq!(index.depth_of(id(block)), Some(position as u32));
            assert_eq!(index.hash_of(id(block)), Some(chain.hashes()[position]));
            let parent = position.checked_sub(1).filter(|_| keep_parents).map(|p| chain.hashes()[p]);
            assert_eq!(index.parent_of(id(block)), parent);
        }
        assert_eq!((index.depth_of(id(1)), index.hash_of(id(1)), index.parent_of(id(1))), (None, None, None));
        index.clear();
        assert_eq!((index.num_registered(), index.num_hashes(), index.hash_of(id(8))), (0, 0, None));
        index.check_invariants().unwrap();
    }
}

#[test]
fn the_index_names_refused_blocks() {
    let chain = chain(&[1, 2, 3, 4]);
    let mut index = index();
    index.insert(id(1), &chain, 0).unwrap();
    assert_eq!(index.insert(id(1), &chain, 1), Err(PoolError::AlreadyRegistered { block: id(1) }));
    let too_short = |start| Err(PoolError::ChainTooShort { start, blocks: 1, chain: 2 });
    assert_eq!(index.insert(id(2), &chain, 2), too_short(2));
    let most = (1 << 28) - 1;
    assert_eq!(index.insert(id(2), &chain, most), too_short(most));
    let too_deep = |position| Err(PoolError::TooDeep { position, most });
    assert_eq!(index.insert(id(2), &chain, most + 1), too_deep(most + 1));
    assert_eq!(index.insert(id(2), &chain, usize::MAX), too_deep(usize::MAX));
    assert_eq!(index.insert(id(0), &chain, 1), Err(PoolError::NullBlock { operation: "registered" }));
    assert_eq!(index.insert(id(9), &chain, 1), Err(PoolError::UnknownBlock { block: 9, last: 8 }));
    assert_eq!(index.mark_computed(id(2)), Err(PoolError::NotRegistered { block: id(2) }));
    assert_eq!(index.mark_computed(id(9)), Err(PoolError::UnknownBlock { block: 9, last: 8 }));
    assert!(!index.remove(id(2)) && !index.remove(id(0)) && !index.remove(id(99)));
    assert_eq!((index.find(&chain, 2), index.find(&chain, usize::MAX)), (None, None));
    assert_eq!((index.num_registered(), index.is_computed(id(1))), (1, false));
    index.check_invariants().unwrap();
}

#[test]
fn a_chain_must_suit_the_index() {
    let of = |algorithm, verify| chain_with(config(algorithm, verify), &[1, 2, 3, 4]);
    let sha = HashAlgorithm::Sha256;
    let external = HashChain::from_digests(sha, B, 0, vec![BlockHash::from_bytes([1; 32])]).unwrap();
    let mismatch = PoolError::BlockSizeMismatch { chain: 4, pool: 2 };
    let wide = chain_with(HasherConfig { block_size: 4, ..Default::default() }, &[1, 2, 3, 4]);
    let missing = |verify| Err(PoolError::MissingVerification { verify });
    for (verify, chain, expected) in [
        (Verify::None, &wide, Err(mismatch.clone())),
        (Verify::Tokens, &wide, Err(mismatch)),
        (Verify::None, &external, Ok(())),
        (Verify::Fingerprint, &external, missing("fingerprints")),
        (Verify::Tokens, &external, missing("fingerprints")),
        (Verify::None, &of(sha, Verify::Tokens), Ok(())),
        (Verify::Fingerprint, &of(sha, Verify::None), missing("fingerprints")),
        (Verify::Fingerprint, &of(sha, Verify::Tokens), Ok(())),
        (Verify::Tokens, &of(sha, Verify::Fingerprint), Ok(())), // a cursor keeps its tokens anyway
        (Verify::Fingerprint, &of(HashAlgorithm::Xxh3, Verify::Fingerprint), Ok(())),
        (
            Verify::None,
            &of(HashAlgorithm::Xxh3, Verify::Fingerprint),
            Err(PoolError::UnverifiedAlgorithm { algorithm: HashAlgorithm::Xxh3 }),
        ),
        (Verify::Tokens, &forged(&[[1; 32]], &[7], &[]), missing("tokens")),
        (Verify::Tokens, &forged(&[[1; 32]], &[7], &[1]), missing("tokens")),
    ] {
        let mut index = PrefixIndex::new(4, B, verify).unwrap();
        assert_eq!(index.check_chain(chain), expected, "{verify}");
        assert_eq!(index.insert(id(1), chain, 0).map(drop), expected, "{verify}");
        assert_eq!(index.num_registered(), usize::from(expected.is_ok()));
    }
}

fn forged(hashes: &[[u8; 32]], fingerprints: &[Fingerprint], tokens: &[u32]) -> HashChain {
    let hashes = hashes.iter().copied().map(BlockHash::from_bytes).collect();
    HashChain::forged(HashAlgorithm::Sha256, B, 0, hashes, fingerprints.to_vec(), tokens.to_vec())
}

#[test]
fn a_collision_is_neither_indexed_nor_found() {
    let first = forged(&[[1; 32]], &[7], &[1, 2]);
    let other_fingerprint = forged(&[[1; 32]], &[8], &[1, 2]);
    let other_tokens = forged(&[[1; 32]], &[7], &[1, 3]);
    for (verify, other) in [
        (Verify::Fingerprint, &other_fingerprint),
        (Verify::Tokens, &other_fingerprint),
        (Verify::Tokens, &other_tokens),
    ] {
        let mut index = PrefixIndex::new(9, B, verify).unwrap();
        assert_eq!(index.insert(id(5), &first, 0), Ok(Inserted::Registered));
        for computed in [false, true] {
            assert_eq!(index.insert(id(6), other, 0), Ok(Inserted::Collision));
            assert!(!index.contains(id(6)) && !index.is_registered(other, 0));
            assert_eq!(index.find(other, 0), None, "{verify}");
            assert_eq!(index.find(&first, 0), computed.then_some(id(5)));
            index.mark_computed(id(5)).unwrap();
        }
        assert_eq!(raw(index.copies(&first.hashes()[0])), [5]);
        // After the first block is removed, another content can be registered under the hash. The old
        // verification data of the block are not used.
        index.remove(id(5));
        assert_eq!(index.insert(id(5), other, 0), Ok(Inserted::Registered));
        index.mark_computed(id(5)).unwrap();
        assert_eq!((index.find(other, 0), index.find(&first, 0)), (Some(id(5)), None));
        index.check_invariants().unwrap();
    }
    // An index cannot detect a collision in data that it does not compare. For this reason, weak
    // digests need verification.
    let mut index = PrefixIndex::new(9, B, Verify::Fingerprint).unwrap();
    index.insert(id(5), &first, 0).unwrap();
    assert_eq!(index.insert(id(6), &other_tokens, 0), Ok(Inserted::Registered));
}

#[test]
fn hashes_with_the_same_first_bytes_stay_distinct() {
    // Digests from other sources may differ only in their last byte.
    let hashes: Vec<_> = (0..200u8)
        .map(|last| {
            let mut hash = [7; 32];
            hash[31] = last;
            hash
        })
        .collect();
    let chain = forged(&hashes, &[], &[]);
    let mut index = PrefixIndex::new(201, B, Verify::None).unwrap();
    for position in 0..200 {
        index.insert(id(position as u32 + 1), &chain, position).unwrap();
        index.mark_computed(id(position as u32 + 1)).unwrap();
    }
    for position in 0..200 {
        assert_eq!(index.find(&chain, position), Some(id(position as u32 + 1)));
    }
    assert_eq!(index.num_hashes(), 200);
    index.check_invariants().unwrap();
}
