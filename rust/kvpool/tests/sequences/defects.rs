//! Sequences one by one: the defects of older block managers that touch forks, copies and swaps, each as a test that the code
//! with the defect fails, and what a life of a sequence must hold.

use kvpool::{HashAlgorithm, hash::HashChain};

use super::*;

/// Sequences over tiers with so many usable blocks.
fn sequences(block_size: usize, usable: &[usize]) -> Sequences {
    let hasher = BlockHasher::new(HasherConfig { block_size, ..Default::default() }).unwrap();
    let tier = |&usable| PoolConfig { num_blocks: usable + 1, block_size, ..Default::default() };
    Sequences::new(Tiers::new(usable.iter().map(tier).collect()).unwrap(), Arc::new(hasher)).unwrap()
}

fn prompt(sequences: &Sequences, tokens: &[u32]) -> HashCursor {
    let extra = ExtraKeys { epoch: sequences.epoch(), ..Default::default() };
    let mut prompt = HashCursor::new(Arc::clone(sequences.hasher()), extra).unwrap();
    prompt.append(tokens);
    prompt
}

fn admit(sequences: &mut Sequences, tokens: &[u32], tier: usize) -> SequenceId {
    let prompt = prompt(sequences, tokens);
    sequences.admit(prompt, tier).unwrap()
}

fn commit_all(sequences: &mut Sequences, id: SequenceId) {
    let tokens = sequences.info(id).unwrap().tokens;
    sequences.commit(id, tokens).unwrap();
}

fn table(sequences: &Sequences, id: SequenceId) -> Vec<u32> {
    sequences.block_table(id).unwrap().iter().map(|block| block.get()).collect()
}

fn ref_count(sequences: &Sequences, tier: usize, block: u32) -> u32 {
    sequences.tiers().pool(tier).unwrap().ref_count(BlockId::new(block)).unwrap()
}

fn plan_of(sequences: &mut Sequences) -> Vec<((usize, u32), (usize, u32))> {
    sequences.check_invariants().unwrap();
    let plan = sequences.take_plan().unwrap();
    let place = |place: Place| (place.tier, place.block.get());
    plan.transfers().iter().map(|t| (place(t.src), place(t.dst))).collect()
}

/// (free, cached-free, active, fenced) of a tier.
fn sums(sequences: &Sequences, tier: usize) -> (usize, usize, usize, usize) {
    sequences.check_invariants().unwrap();
    let stats = sequences.tiers().pool(tier).unwrap().stats();
    (stats.free, stats.cached_free, stats.active, stats.fenced)
}

/// Every block of every tier is free or cached once all sequences are gone.
fn leaks_nothing(sequences: &mut Sequences, ids: &[SequenceId]) {
    ids.iter().for_each(|&id| sequences.free(id, None).unwrap());
    assert!(sequences.is_empty());
    for tier in 0..sequences.tiers().len() {
        assert_eq!((sums(sequences, tier).2, sums(sequences, tier).3), (0, 0), "tier {tier} leaks");
    }
}

fn change(index: usize, block: u32) -> TableChange {
    TableChange { index, block: BlockId::new(block), group: 0 }
}

/// Copy-on-write must replace the tail in the writer's table, and leave the other's alone.
#[test]
fn defect_c1_copy_on_write_replaces_the_tail() {
    let mut sequences = sequences(4, &[8]);
    let a = admit(&mut sequences, &[1, 2, 3, 4, 5], 0);
    let b = sequences.fork(a).unwrap();
    assert_eq!(sequences.append(b, &[6], 0).unwrap(), [change(1, 3)]);
    assert_eq!((table(&sequences, a), table(&sequences, b)), (vec![1, 2], vec![1, 3]));
    assert_eq!(plan_of(&mut sequences), [((0, 2), (0, 3))]);
    assert_eq!([1, 2, 3].map(|block| ref_count(&sequences, 0, block)), [2, 1, 1]);
    // Each has a tail of its own now: no more copies.
    assert_eq!(sequences.append(b, &[7], 0).unwrap(), []);
    assert_eq!(sequences.append(a, &[8], 0).unwrap(), []);
    assert_eq!(plan_of(&mut sequences), []);
    assert_eq!(sequences.cursor(a).unwrap().tail(), [5, 8]);
    assert_eq!(sequences.cursor(b).unwrap().tail(), [5, 6, 7]);
    leaks_nothing(&mut sequences, &[a, b]);
    assert_eq!(sums(&sequences, 0), (8, 0, 0, 0));
}

/// A swapped group shares what it shared (c2), its tables name the new blocks (c3), the old ones come back (c4); the same
/// group took 4 blocks for 2 in vLLM v0 (9).
#[test]
fn defect_c2_c3_c4_and_09_swap_keeps_sharing_and_leaks_nothing() {
    let mut sequences = sequences(4, &[8, 2]);
    let a = admit(&mut sequences, &[1, 2, 3, 4, 5], 0);
    let b = sequences.fork(a).unwrap();
    let c = sequences.fork(b).unwrap();
    assert_eq!(ref_count(&sequences, 0, 2), 3);
    let swap = sequences.begin_swap(&[a, b, c], 1).unwrap();
    assert_eq!(plan_of(&mut sequences), [((0, 1), (1, 1)), ((0, 2), (1, 2))]);
    // Until it is over the tables are the old ones.
    assert_eq!((table(&sequences, b), sequences.info(b).unwrap().tier), (vec![1, 2], 0));
    sequences.complete_swap(swap).unwrap();
    assert_eq!((sums(&sequences, 0), sums(&sequences, 1)), ((8, 0, 0, 0), (0, 0, 2, 0)));
    for id in [a, b, c] {
        assert_eq!((table(&sequences, id), sequences.info(id).unwrap().tier), (vec![1, 2], 1));
    }
    assert_eq!((ref_count(&sequences, 1, 1), ref_count(&sequences, 1, 2)), (3, 3));

    let swap = sequences.begin_swap(&[a, b, c], 0).unwrap();
    assert_eq!(plan_of(&mut sequences).len(), 2);
    sequences.complete_swap(swap).unwrap();
    assert_eq!(sums(&sequences, 1), (2, 0, 0, 0));
    let (shared, tail) = (table(&sequences, a)[0], table(&sequences, a)[1]);
    assert_eq!((ref_count(&sequences, 0, shared), ref_count(&sequences, 0, tail)), (3, 3));
    // Still copy-on-write.
    assert_eq!(sequences.append(b, &[6], 0).unwrap().len(), 1);
    assert_eq!(table(&sequences, a), table(&sequences, c));
    assert_eq!(plan_of(&mut sequences).len(), 1);
    leaks_nothing(&mut sequences, &[a, b, c]);
}

/// A swap that does not fit takes nothing, frees nothing, and leaves no table with a hole.
#[test]
fn defect_10_a_swap_is_all_or_nothing() {
    let mut sequences = sequences(2, &[8, 4]);
    let a = admit(&mut sequences, &[1, 2, 3], 0);
    let b = admit(&mut sequences, &[4, 5, 6], 0);
    let other = admit(&mut sequences, &[7], 1);
    let before = (sums(&sequences, 0), sums(&sequences, 1), table(&sequences, a), table(&sequences, b));
    let order = sequences.tiers().pool(1).unwrap().free_order();
    let Err(SequenceError::OutOfBlocks(refusal)) = sequences.begin_swap(&[a, b], 1) else { panic!() };
    let got = (refusal.needed, refusal.available, refusal.missing, refusal.can_ever_fit);
    assert_eq!(got, (4, 3, 1, true));
    assert_eq!(sequences.fit_swap(&[a, b], 1, 0), Ok(Fit::Later));
    assert_eq!(sequences.fit_swap(&[a, b], 1, 1), Ok(Fit::Never));
    let after = (sums(&sequences, 0), sums(&sequences, 1), table(&sequences, a), table(&sequences, b));
    assert_eq!(before, after);
    assert_eq!(sequences.tiers().pool(1).unwrap().free_order(), order);
    assert_eq!(plan_of(&mut sequences), []);
    // They are not moving, either.
    sequences.append(a, &[8], 0).unwrap();
    sequences.free(other, None).unwrap();
    assert_eq!(sequences.fit_swap(&[a, b], 1, 0), Ok(Fit::Ok));
    let swap = sequences.begin_swap(&[a, b], 1).unwrap();
    sequences.abort_swap(swap).unwrap();
    leaks_nothing(&mut sequences, &[a, b]);
}

/// A shared block is counted once: vLLM v0 counted 4 for 2 and refused this.
#[test]
fn defect_12_a_swap_that_fits_is_not_refused() {
    let mut sequences = sequences(2, &[12, 4]);
    let a = admit(&mut sequences, &[1, 2, 3, 4, 5], 0);
    let family = [a, sequences.fork(a).unwrap(), sequences.fork(a).unwrap()];
    sequences.append(family[1], &[6], 0).unwrap();
    // Two shared blocks, a tail shared by two, a tail of one: 4 blocks for 9 table entries, and no more than these.
    assert_eq!(sequences.fit_swap(&family, 1, 0), Ok(Fit::Ok));
    let swap = sequences.begin_swap(&family, 1).unwrap();
    assert_eq!((sequences.tiers().swap_mapping(swap).unwrap().len(), sums(&sequences, 1)), (4, (0, 0, 4, 0)));
    // The tail's own copy is still planned: both copies read the tail that it comes from.
    assert_eq!(plan_of(&mut sequences).iter().filter(|(src, _)| *src == (0, 3)).count(), 3);
    sequences.complete_swap(swap).unwrap();
    assert_eq!(sums(&sequences, 0), (12, 0, 0, 0));
    leaks_nothing(&mut sequences, &family);
}

/// Two forks append the same tokens; one copies and promotes, the other ends up on the same content, and the source of the
/// planned copy has no holder left. In vLLM v0 it was free then, and a swap-in of the same step overwrote it.
#[test]
fn defect_18_the_source_of_a_planned_copy_is_not_handed_out() {
    let mut sequences = sequences(2, &[2, 4]);
    let mut store = Store::new(2, &[3, 5]);
    let host = admit(&mut sequences, &[9, 9, 8], 1);
    let m = admit(&mut sequences, &[1], 0);
    store.write(at(0, 1), &[11, 0]);
    sequences.commit(m, 1).unwrap();
    let k = sequences.fork(m).unwrap();
    assert_eq!(sequences.append(m, &[2], 0).unwrap(), [change(0, 2)]);
    sequences.free(k, None).unwrap();
    // Block 1 is nobody's, and pinned.
    assert_eq!(sums(&sequences, 0), (0, 0, 1, 1));
    assert_eq!(sequences.fit_swap(&[host], 0, 0), Ok(Fit::Later));
    sequences.truncate(host, 2).unwrap();
    let Err(SequenceError::OutOfBlocks(refusal)) = sequences.begin_swap(&[host], 0) else { panic!() };
    assert_eq!((refusal.needed, refusal.available, refusal.fenced), (1, 0, 1));
    let plan = sequences.take_plan().unwrap();
    store.execute(&plan);
    assert_eq!(store.block(at(0, 2))[0], 11);
    // Now it can be had.
    assert_eq!(sums(&sequences, 0), (1, 0, 1, 0));
    let swap = sequences.begin_swap(&[host], 0).unwrap();
    assert_eq!(plan_of(&mut sequences), [((1, 1), (0, 1))]);
    sequences.complete_swap(swap).unwrap();
    leaks_nothing(&mut sequences, &[host, m]);
}

fn at(tier: usize, block: u32) -> Place {
    Place { tier, block: BlockId::new(block) }
}

/// The same with both forks committed and deduplicated: nothing of either is lost.
#[test]
fn defect_18_two_forks_that_append_the_same_share_again() {
    let mut sequences = sequences(2, &[6, 6]);
    let m = admit(&mut sequences, &[1], 0);
    commit_all(&mut sequences, m);
    let k = sequences.fork(m).unwrap();
    sequences.append(m, &[2], 0).unwrap();
    sequences.append(k, &[2], 0).unwrap();
    assert_eq!((table(&sequences, m), table(&sequences, k)), (vec![2], vec![1]));
    assert_eq!(plan_of(&mut sequences), [((0, 1), (0, 2))]);
    assert_eq!(sequences.commit_deduped(m, 2).unwrap(), []);
    assert_eq!(sequences.commit_deduped(k, 2).unwrap(), [change(0, 2)]);
    assert_eq!((ref_count(&sequences, 0, 2), sums(&sequences, 0)), (2, (5, 0, 1, 0)));
    leaks_nothing(&mut sequences, &[m, k]);
}

/// vLLM v0 forked block by block, recursively: 1,500 blocks were too many (defect 3).
#[test]
fn a_sequence_of_a_million_blocks_is_forked_and_freed() {
    const BLOCKS: usize = 1_000_000;
    let mut sequences = sequences(1, &[BLOCKS + 2]);
    let tokens: Vec<u32> = (0..BLOCKS as u32).collect();
    let a = admit(&mut sequences, &tokens, 0);
    let b = sequences.fork(a).unwrap();
    assert_eq!(sequences.append(b, &[7], 0).unwrap().len(), 1);
    commit_all(&mut sequences, b);
    assert_eq!(sequences.trim_window(b, 10).unwrap(), BLOCKS - 9);
    let c = sequences.fork(b).unwrap();
    sequences.free(a, None).unwrap();
    sequences.truncate(b, BLOCKS - 5).unwrap();
    assert_eq!(sequences.info(c).unwrap().blocks, BLOCKS + 1);
    sequences.free(b, Some(1)).unwrap();
    sequences.free(c, None).unwrap();
    sequences.complete_step(1).unwrap();
    let stats = sequences.tiers().pool(0).unwrap().stats();
    assert_eq!((stats.free, stats.cached_free), (1, BLOCKS + 1));
}

/// A handle kept after free never names whoever took its slot (defect 14).
#[test]
fn a_stale_handle_is_refused_after_its_slot_is_reused() {
    let mut sequences = sequences(2, &[8, 8]);
    let old = admit(&mut sequences, &[1, 2, 3], 0);
    sequences.free(old, None).unwrap();
    let new = admit(&mut sequences, &[4, 5, 6], 0);
    assert_eq!(old.to_bits() as u32, new.to_bits() as u32, "one slot");
    assert_ne!(old, new);
    assert_eq!(SequenceId::from_bits(old.to_bits()), old);
    let stale = SequenceError::Stale { handle: old };
    assert_eq!(sequences.info(old), Err(stale.clone()));
    assert_eq!(sequences.free(old, None), Err(stale.clone()));
    assert_eq!(sequences.fork(old), Err(stale.clone()));
    assert_eq!(sequences.append(old, &[1], 0), Err(stale.clone()));
    assert_eq!(sequences.commit_deduped(old, 1), Err(stale.clone()));
    assert_eq!(sequences.truncate(old, 0), Err(stale.clone()));
    assert_eq!(sequences.trim_window(old, 0), Err(stale.clone()));
    assert_eq!(sequences.begin_swap(&[new, old], 1), Err(stale.clone()));
    assert_eq!(sequences.fit_swap(&[old], 1, 0), Err(stale.clone()));
    assert_eq!(sequences.block_table(old), Err(stale.clone()));
    assert_eq!(sequences.cursor(old).err(), Some(stale));
    assert_eq!(sequences.info(new).unwrap().tokens, 3);
    for bits in [u64::MAX, 1, 5 << 32] {
        assert!(matches!(
            sequences.free(SequenceId::from_bits(bits), None),
            Err(SequenceError::Stale { .. })
        ));
    }
    leaks_nothing(&mut sequences, &[new]);
}

/// Registered blocks are registered in the tier they move to, and stay cached in the one they left: a swap back is free.
#[test]
fn a_swap_keeps_registrations_and_a_swap_back_copies_nothing() {
    let mut sequences = sequences(2, &[8, 8]);
    let tokens = [1, 2, 3, 4, 5];
    let a = admit(&mut sequences, &tokens, 0);
    commit_all(&mut sequences, a);
    let swap = sequences.begin_swap(&[a], 1).unwrap();
    assert_eq!(plan_of(&mut sequences).len(), 3);
    sequences.complete_swap(swap).unwrap();
    assert_eq!(sequences.info(a).unwrap().registered_blocks, 2);
    assert_eq!((sums(&sequences, 0), sums(&sequences, 1)), ((6, 2, 0, 0), (5, 0, 3, 0)));
    // A prompt hits in both tiers.
    let (device, host) = (admit(&mut sequences, &tokens, 0), admit(&mut sequences, &tokens, 1));
    assert_eq!(sequences.info(device).unwrap().computed_tokens, 4);
    assert_eq!(sequences.info(host).unwrap().computed_tokens, 4);
    assert_eq!(table(&sequences, host)[..2], table(&sequences, a)[..2]);
    sequences.free(host, None).unwrap();

    // Back: both full blocks are there, only the tail is copied. Without a tail, nothing.
    let swap = sequences.begin_swap(&[a], 0).unwrap();
    assert_eq!(sequences.tiers().swap_mapping(swap).unwrap().iter().filter(|moved| moved.2).count(), 1);
    sequences.abort_swap(swap).unwrap();
    sequences.truncate(a, 4).unwrap();
    let swap = sequences.begin_swap(&[a], 0).unwrap();
    assert_eq!(sequences.tiers().pending_copies().count(), 0);
    sequences.complete_swap(swap).unwrap();
    assert_eq!(table(&sequences, a)[..], table(&sequences, device)[..2]);
    assert_eq!(sums(&sequences, 1), (6, 2, 0, 0));
    // The next token goes to a block of its own, not into a cached one.
    assert_eq!(sequences.append(a, &[6], 0).unwrap()[0].index, 2);
    leaks_nothing(&mut sequences, &[a, device]);
}

/// Two sources with one content move to one block, and nothing is taken for what is cached.
#[test]
fn a_swap_takes_no_more_blocks_than_distinct_ones_touched() {
    let mut sequences = sequences(2, &[8, 3]);
    // The same content twice in tier 0: both were computed before either was registered.
    let (a, b) = (admit(&mut sequences, &[1, 2, 3], 0), admit(&mut sequences, &[1, 2, 4], 0));
    commit_all(&mut sequences, a);
    commit_all(&mut sequences, b);
    let host = admit(&mut sequences, &[1, 2, 5], 1);
    commit_all(&mut sequences, host);
    sequences.free(host, None).unwrap();
    assert_ne!(table(&sequences, a)[0], table(&sequences, b)[0]);
    assert_eq!(sums(&sequences, 1), (2, 1, 0, 0));
    let swap = sequences.begin_swap(&[a, b], 1).unwrap();
    assert_eq!((sums(&sequences, 1), plan_of(&mut sequences).len()), ((0, 0, 3, 0), 2));
    sequences.complete_swap(swap).unwrap();
    assert_eq!(table(&sequences, a)[0], table(&sequences, b)[0]);
    leaks_nothing(&mut sequences, &[a, b]);
    assert_eq!(sums(&sequences, 1), (2, 1, 0, 0));
}

/// A truncation into a registered block leaves it cached; what is written next goes into a copy.
#[test]
fn a_registered_tail_is_copied_by_the_next_append() {
    let mut sequences = sequences(4, &[6]);
    let a = admit(&mut sequences, &[1, 2, 3, 4, 5, 6, 7, 8], 0);
    commit_all(&mut sequences, a);
    sequences.truncate(a, 6).unwrap();
    assert_eq!((sequences.info(a).unwrap().computed_tokens, table(&sequences, a)), (6, vec![1, 2]));
    assert_eq!(sequences.append(a, &[9], 0).unwrap(), [change(1, 3)]);
    assert_eq!(plan_of(&mut sequences), [((0, 2), (0, 3))]);
    assert_eq!(sums(&sequences, 0), (3, 1, 2, 0));
    sequences.append(a, &[9], 0).unwrap();
    commit_all(&mut sequences, a);
    // Both contents are cached now.
    let first = admit(&mut sequences, &[1, 2, 3, 4, 5, 6, 7, 8, 0], 0);
    let second = admit(&mut sequences, &[1, 2, 3, 4, 5, 6, 9, 9, 0], 0);
    assert_eq!((table(&sequences, first)[..2].to_vec(), table(&sequences, second)[1]), (vec![1, 2], 3));
    leaks_nothing(&mut sequences, &[a, first, second]);
}

/// vLLM v0: a window that drops blocks made the fork's chain cyclic (defect 11).
#[test]
fn a_trimmed_sequence_is_forked_and_goes_on() {
    let mut sequences = sequences(2, &[8, 8]);
    let a = admit(&mut sequences, &[1, 2, 3, 4, 5, 6, 7], 0);
    commit_all(&mut sequences, a);
    assert_eq!(sequences.trim_window(a, 3).unwrap(), 2);
    assert_eq!((table(&sequences, a), sums(&sequences, 0)), (vec![0, 0, 3, 4], (4, 2, 2, 0)));
    let b = sequences.fork(a).unwrap();
    assert_eq!(sequences.info(b).unwrap().trimmed_blocks, 2);
    let own = sequences.append(b, &[8], 0).unwrap();
    assert_eq!(own.len(), 1);
    assert_eq!((table(&sequences, a), table(&sequences, b)[..3].to_vec()), (vec![0, 0, 3, 4], vec![0, 0, 3]));
    let (from, to) = ((0, 4), (0, own[0].block.get()));
    assert_eq!(plan_of(&mut sequences), [(from, to)]);
    commit_all(&mut sequences, b);
    let hashes = sequences.cursor(b).unwrap().chain().hashes().to_vec();
    assert_eq!(sequences.tiers().pool(0).unwrap().hash_of(own[0].block), Some(hashes[3]));
    // Trimmed blocks do not move.
    let swap = sequences.begin_swap(&[b, a], 1).unwrap();
    assert_eq!(plan_of(&mut sequences).len(), 3);
    sequences.complete_swap(swap).unwrap();
    assert_eq!(table(&sequences, a)[..2], [0, 0]);
    assert!(matches!(sequences.truncate(a, 3), Err(SequenceError::BadLength { least: 4, tokens: 7, .. })));
    sequences.truncate(a, 4).unwrap();
    leaks_nothing(&mut sequences, &[a, b]);
}

#[test]
fn a_swap_is_not_completed_before_its_copies_are_taken() {
    let mut sequences = sequences(2, &[4, 4]);
    let a = admit(&mut sequences, &[1, 2, 3], 0);
    let swap = sequences.begin_swap(&[a], 1).unwrap();
    let number = swap.get();
    let not_taken = SequenceError::Tier(TierError::CopiesNotTaken { swap: number });
    assert_eq!(sequences.complete_swap(swap), Err(not_taken));
    assert_eq!((table(&sequences, a), sequences.info(a).unwrap().swap), (vec![1, 2], Some(swap)));
    assert_eq!(sequences.free(a, None), Err(SequenceError::Moving { handle: a }));
    sequences.take_plan().unwrap();
    sequences.complete_swap(swap).unwrap();
    let over = SequenceError::Tier(TierError::UnknownSwap { swap: number });
    assert_eq!(sequences.complete_swap(swap), Err(over.clone()));
    assert_eq!(sequences.abort_swap(swap), Err(over));
    leaks_nothing(&mut sequences, &[a]);
}

/// Each fork takes its own reference along: one swap to each of two tiers, one completed, one aborted.
#[test]
fn one_block_is_in_two_swaps_at_once() {
    let mut sequences = sequences(2, &[4, 4, 4]);
    let a = admit(&mut sequences, &[1, 2, 3], 0);
    let b = sequences.fork(a).unwrap();
    let (to_1, to_2) = (sequences.begin_swap(&[a], 1).unwrap(), sequences.begin_swap(&[b], 2).unwrap());
    assert_eq!(plan_of(&mut sequences).len(), 4);
    sequences.complete_swap(to_1).unwrap();
    assert_eq!((ref_count(&sequences, 0, 1), sums(&sequences, 0)), (1, (2, 0, 2, 0)));
    sequences.abort_swap(to_2).unwrap();
    assert_eq!((sums(&sequences, 2), table(&sequences, b)), ((4, 0, 0, 0), vec![1, 2]));
    // Alone now: it writes in place.
    assert_eq!(sequences.append(b, &[4], 0).unwrap(), []);
    assert_eq!(sequences.info(a).unwrap().tier, 1);
    leaks_nothing(&mut sequences, &[a, b]);
}

/// An aborted swap's copies are planned no longer; other copies are.
#[test]
fn an_abort_leaves_the_other_copies_of_the_plan() {
    let mut sequences = sequences(2, &[6, 6]);
    let a = admit(&mut sequences, &[1, 2, 3], 0);
    let b = sequences.fork(a).unwrap();
    sequences.append(a, &[4], 0).unwrap();
    let swap = sequences.begin_swap(&[a, b], 1).unwrap();
    assert_eq!(sequences.tiers().pending_copies().count(), 4);
    sequences.abort_swap(swap).unwrap();
    assert_eq!(sums(&sequences, 1), (6, 0, 0, 0));
    assert_eq!(plan_of(&mut sequences), [((0, 2), (0, 3))]);
    leaks_nothing(&mut sequences, &[a, b]);
}

/// Parallel sampling forks before the prompt is computed: all compute, and say so, what they share.
#[test]
fn forks_of_an_uncomputed_prompt_all_commit_it() {
    for dedupe in [false, true] {
        let mut sequences = sequences(2, &[6]);
        let a = admit(&mut sequences, &[1, 2, 3], 0);
        let b = sequences.fork(a).unwrap();
        for id in [a, b] {
            let committed =
                if dedupe { sequences.commit_deduped(id, 3).map(drop) } else { sequences.commit(id, 3) };
            committed.unwrap();
        }
        assert_eq!(sequences.info(b).unwrap().registered_blocks, 1);
        assert_eq!((table(&sequences, a), table(&sequences, b)), (vec![1, 2], vec![1, 2]));
        leaks_nothing(&mut sequences, &[a, b]);
    }
}

/// What a fork computes after the copies of a swap were executed is not in the copy: it must not be cached there.
#[test]
fn a_swap_registers_only_what_was_computed_when_it_was_copied() {
    let mut sequences = sequences(2, &[6, 6]);
    let a = admit(&mut sequences, &[1, 2, 3], 0);
    let b = sequences.fork(a).unwrap();
    let swap = sequences.begin_swap(&[a], 1).unwrap();
    assert_eq!(plan_of(&mut sequences).len(), 2);
    commit_all(&mut sequences, b); // written after the plan was executed
    sequences.complete_swap(swap).unwrap();
    assert_eq!(sums(&sequences, 1), (4, 0, 2, 0));
    let hit = admit(&mut sequences, &[1, 2, 9], 1);
    assert_eq!(sequences.info(hit).unwrap().computed_tokens, 0, "a hit on a block that nobody computed");
    // `a` computes it for itself.
    commit_all(&mut sequences, a);
    assert_eq!(sequences.info(a).unwrap().registered_blocks, 1);
    leaks_nothing(&mut sequences, &[a, b, hit]);
}

fn can_ever_fit<T: std::fmt::Debug>(result: Result<T, SequenceError>) -> bool {
    match result {
        Err(SequenceError::OutOfBlocks(refusal)) => refusal.can_ever_fit,
        other => panic!("{other:?}"),
    }
}

/// A copy is needed only while somebody shares the tail: waiting is of use.
#[test]
fn a_shared_tail_can_fit_once_the_other_is_gone() {
    let mut sequences = sequences(4, &[1]);
    let a = admit(&mut sequences, &[1, 2], 0);
    let b = sequences.fork(a).unwrap();
    assert!(can_ever_fit(sequences.append(a, &[3], 0)));
    sequences.free(b, None).unwrap();
    sequences.append(a, &[3], 0).unwrap();
}

/// Trimmed blocks take no room: a long sequence with a small window is not too large for its pool.
#[test]
fn trimmed_blocks_do_not_count_against_the_pool() {
    let mut sequences = sequences(1, &[4]);
    let a = admit(&mut sequences, &[1], 0);
    for token in 0..9 {
        sequences.append(a, &[token], 0).unwrap();
        commit_all(&mut sequences, a);
        sequences.trim_window(a, 2).unwrap();
    }
    let b = admit(&mut sequences, &[9, 9], 0);
    assert!(can_ever_fit(sequences.append(a, &[3], 0)));
    sequences.free(b, None).unwrap();
    sequences.append(a, &[3], 0).unwrap();
}

/// Cached destinations take room, too: "later" would be waited for without end.
#[test]
fn a_swap_that_never_fits_is_told_apart_from_later() {
    let mut sequences = sequences(1, &[8, 3]);
    let host = admit(&mut sequences, &[1], 1);
    commit_all(&mut sequences, host);
    let a = admit(&mut sequences, &[1, 2, 3, 4], 0);
    commit_all(&mut sequences, a);
    assert_eq!(sequences.fit_swap(&[a], 1, 0), Ok(Fit::Never));
    assert!(!can_ever_fit(sequences.begin_swap(&[a], 1)));
    leaks_nothing(&mut sequences, &[a, host]);
}

/// A step that still runs may read a block that its request has given up: whoever else holds it does not write to it.
#[test]
fn a_fenced_block_is_not_written_in_place() {
    let mut sequences = sequences(4, &[6]);
    let a = admit(&mut sequences, &[1, 2, 3, 4, 5, 6], 0);
    let b = sequences.fork(a).unwrap();
    sequences.truncate(b, 5).unwrap();
    sequences.free(a, Some(5)).unwrap();
    assert_eq!(sequences.append(b, &[99], 0).unwrap(), [change(1, 3)]);
    assert_eq!(plan_of(&mut sequences), [((0, 2), (0, 3))]);
    assert_eq!(sequences.complete_step(5).unwrap(), 2);
    leaks_nothing(&mut sequences, &[b]);
}

/// A block that is registered before its copy was made, against the order of a step, keeps its copy though nobody holds it: the
/// lookup that returns it must find the bytes.
#[test]
fn the_copy_of_a_registered_block_stays_planned() {
    let mut sequences = sequences(4, &[8]);
    let a = admit(&mut sequences, &[1, 2, 3, 4, 5, 6], 0);
    sequences.commit(a, 6).unwrap();
    let b = sequences.fork(a).unwrap();
    sequences.append(b, &[7, 8], 0).unwrap();
    sequences.commit(b, 8).unwrap();
    sequences.free(b, None).unwrap();
    assert_eq!(plan_of(&mut sequences), [((0, 2), (0, 3))]);
    let again = admit(&mut sequences, &[1, 2, 3, 4, 5, 6, 7, 8, 9], 0);
    assert_eq!(table(&sequences, again)[..2], [1, 3]);
    leaks_nothing(&mut sequences, &[a, again]);
}

fn tiers(usable: &[usize]) -> Tiers {
    let tier = |&usable| PoolConfig { num_blocks: usable + 1, block_size: 4, ..Default::default() };
    Tiers::new(usable.iter().map(tier).collect()).unwrap()
}

fn chain(algorithm: HashAlgorithm, first: u32) -> HashChain {
    let hasher = BlockHasher::new(HasherConfig { algorithm, block_size: 4, ..Default::default() }).unwrap();
    let mut cursor = HashCursor::new(Arc::new(hasher), ExtraKeys::default()).unwrap();
    cursor.append(&(first..first + 8).collect::<Vec<_>>());
    cursor.chain().clone()
}

/// Somebody else's hand on a swap's blocks: the end of the swap is refused as a whole, or goes on without what is no longer
/// possible; it never stops half-way.
#[test]
fn a_swap_ends_as_a_whole() {
    let mut tiers = tiers(&[4, 4]);
    let blocks = tiers.pool_mut(0).unwrap().allocate(2).unwrap();
    let sha = chain(HashAlgorithm::Sha256, 0);
    tiers.pool_mut(0).unwrap().register(&blocks, &sha, 0).unwrap();
    tiers.pool_mut(0).unwrap().mark_computed(&blocks).unwrap();
    let swap = tiers.begin_swap(&blocks, 0, 1).unwrap();
    tiers.take_plan().unwrap();
    let host: Vec<_> = tiers.swap_mapping(swap).unwrap().iter().map(|moved| moved.1).collect();
    tiers.pool_mut(1).unwrap().register(&host[1..], &sha, 1).unwrap();
    tiers.complete_swap(swap).unwrap();
    assert_eq!(tiers.pool(0).unwrap().stats().cached_free, 2);
    assert_eq!(tiers.pool(1).unwrap().stats().registered, 2);
    tiers.check_invariants().unwrap();

    let back = tiers.begin_swap(&host[..1], 1, 0).unwrap();
    let taken = tiers.swap_mapping(back).unwrap()[0].1;
    tiers.pool_mut(0).unwrap().release(&[taken]).unwrap();
    assert!(tiers.abort_swap(back).is_err() && tiers.complete_swap(back).is_err());
    assert_eq!(tiers.swap_mapping(back).unwrap().len(), 1); // still under way
    tiers.pool_mut(0).unwrap().match_and_acquire(&sha, 1).unwrap();
    tiers.abort_swap(back).unwrap();
    tiers.check_invariants().unwrap();
}

/// Bytes move between tiers whose digests cannot be compared; registrations do not.
#[test]
fn a_swap_between_algorithms_moves_no_registration() {
    let mut tiers = tiers(&[4, 4]);
    for (tier, algorithm) in [(0, HashAlgorithm::Sha256), (1, HashAlgorithm::Blake3)] {
        let pool = tiers.pool_mut(tier).unwrap();
        let block = pool.allocate(1).unwrap();
        pool.register(&block, &chain(algorithm, 0), 0).unwrap();
        pool.mark_computed(&block).unwrap();
    }
    let swap = tiers.begin_swap(&[BlockId::new(1)], 0, 1).unwrap();
    tiers.take_plan().unwrap();
    tiers.complete_swap(swap).unwrap();
    let host = tiers.pool(1).unwrap();
    assert_eq!(host.probe(&chain(HashAlgorithm::Blake3, 0), 2).unwrap().cached_blocks, 1);
    tiers.check_invariants().unwrap();
}

/// A step that runs forbids to write in place, whoever the step's request was.
#[test]
fn what_is_planned_and_fenced_is_counted() {
    let mut tiers = tiers(&[4, 4]);
    let blocks = tiers.pool_mut(0).unwrap().allocate(1).unwrap();
    tiers.pool_mut(0).unwrap().acquire(&blocks).unwrap();
    tiers.pool_mut(0).unwrap().release_after(&blocks, 3).unwrap();
    let own = tiers.copy_on_write(0, blocks[0]).unwrap();
    assert_ne!(own, blocks[0]);
    assert_eq!((tiers.num_planned(), tiers.pool(0).unwrap().num_fenced()), (1, 1));
    tiers.take_plan().unwrap();
    assert_eq!(tiers.pool_mut(0).unwrap().complete_step(3).unwrap(), 1);
    assert_eq!(tiers.pool(0).unwrap().stats().free, 3);
    tiers.check_invariants().unwrap();
}
