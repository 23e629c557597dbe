//! Injects faults of every kind, at every block, in random states, with every policy. The scrubber
//! finds each fault within one pass over the pool. Operations that run before that return no wrong
//! result, do not panic and do not hang.
//!
//! `KVPOOL_FAULT_STATES` sets the number of random states per policy in which faults are injected
//! (default 30, enough for every kind of fault). Two of the tests use a third of these states.

use std::collections::BTreeSet;

use kvpool::{BlockId, Fault, PoolError, Verify};
use kvpool_observe::PoolWatch;

use super::world::{Numbers, Setting, World};

/// Returns the kind of a fault. Faults in different blocks, or with different values, have the same
/// kind.
fn kind(fault: Fault) -> String {
    match fault {
        Fault::Evictor(_, what, _) => format!("Evictor {what}"),
        other => format!("{other:?}").split('(').next().unwrap_or_default().to_owned(),
    }
}

/// Draws a wrong value for a link or a count: 0, another block, an id that is out of range, or the
/// value of loose links.
fn value(numbers: &mut Numbers, num_blocks: usize) -> u32 {
    let block = numbers.below(num_blocks) as u32;
    [0, block, block, block + 1, num_blocks as u32, u32::MAX, u32::MAX - 1][numbers.below(7)]
}

fn is_poisoned<T>(result: &Result<T, PoolError>) -> bool {
    matches!(result, Err(PoolError::Poisoned { .. }))
}

fn states() -> u64 {
    std::env::var("KVPOOL_FAULT_STATES").ok().and_then(|n| n.parse().ok()).unwrap_or(30)
}

/// Calls `trial` for every policy, for many states of a pool, and for faults of every kind in each
/// state. Returns the kinds of faults for which a trial returned true.
fn every_fault(states: u64, mut trial: impl FnMut(Setting, u64, usize, Fault) -> bool) -> BTreeSet<String> {
    let mut met = BTreeSet::new();
    for setting in Setting::all() {
        for seed in 0..states {
            let mut numbers = Numbers(seed ^ 0xFA17);
            let operations = 5 + numbers.below(60);
            for _ in 0..3 {
                let block = BlockId::new(numbers.below(setting.num_blocks) as u32);
                for fault in Fault::all(block, value(&mut numbers, setting.num_blocks)) {
                    if trial(setting, seed, operations, fault) {
                        met.insert(kind(fault));
                    }
                }
            }
        }
    }
    met
}

/// Checks that faults of all common structures occurred, and faults of the links of every kind of
/// evictor.
fn check_met(met: &BTreeSet<String>) {
    for fault in Fault::all(BlockId::new(1), 1) {
        if !matches!(fault, Fault::Evictor(..)) {
            assert!(met.contains(&kind(fault)), "{fault:?} was never injected");
        }
    }
    for what in [0, 1, 2, 3, 4, 5, 6, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24] {
        assert!(met.contains(&format!("Evictor {what}")), "Evictor {what} was never injected: {met:?}");
    }
}

#[test]
fn one_pass_finds_every_fault() {
    let met = every_fault(states(), |setting, seed, operations, fault| {
        let mut world = World::after(setting, seed, operations);
        if !world.pool.inject(fault) {
            return false;
        }
        let num_blocks = world.pool.num_blocks();
        let mut found = false;
        for _ in 0..num_blocks.div_ceil(3) {
            found |= is_poisoned(&world.scrub(3));
        }
        assert!(found, "{fault:?} after {operations} operations of {seed}, {setting:?}");
        assert!(world.pool.poison_reason().is_some() && is_poisoned(&world.pool.allocate(0)));
        true
    });
    check_met(&met);
}

/// Returns whether the fault is in other data of a block than its links. Operations do not check these
/// data, but the scrubber of a pool with a digest finds the fault.
fn needs_digest(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::References(..)
            | Fault::FenceReferences(..)
            | Fault::Hash(..)
            | Fault::Group(..)
            | Fault::Depth(..)
            | Fault::Computed(_)
            | Fault::NumReferences(_)
            | Fault::NumFenced(_)
            | Fault::NumFenceReferences(_)
            | Fault::NumRegistered(_)
    )
}

/// Operations on a pool with broken links may be refused, may find shorter hits, or may evict other
/// blocks. They must never allocate a block that is held, or return a block with other content for a
/// lookup. The records of [`World`] show whether they do. Afterwards the scrubber finds the fault,
/// unless the operations have overwritten it.
#[test]
fn no_operation_on_a_broken_pool_gives_a_wrong_answer() {
    let met = every_fault(states() / 3, |setting, seed, operations, fault| {
        let mut world = World::after(setting, seed, operations);
        world.pool.state_digest();
        // Faults in the recorded content of a free block are left out too, because operations do not
        // read it.
        if needs_digest(fault) || matches!(fault, Fault::Registered(_)) || !world.pool.inject(fault) {
            return false;
        }
        let context = format!("{fault:?} after {operations} operations of {seed}, {setting:?}");
        for _ in 0..60 {
            match world.step() {
                Ok(()) => {}
                Err(PoolError::Poisoned { .. }) => return true,
                Err(error) => panic!("{error}: {context}"),
            }
        }
        let all = world.pool.num_blocks();
        if !is_poisoned(&world.scrub(all)) {
            let checked = world.pool.check_invariants();
            // If a child was removed from the count of a wrong parent, the right parent has a count
            // that is too high by one. That parent is evicted later, or never.
            let spoilt = matches!(fault, Fault::Evictor(_, 15, _))
                && checked.as_ref().is_err_and(|broken| broken.invariant.starts_with("E2"));
            assert!(spoilt || checked.is_ok(), "not found: {checked:?}: {context}");
            assert!(world.agrees(), "{context}");
        }
        true
    });
    assert!(met.contains("FreeNext") && met.contains("RingNext") && met.contains("Evictor 1"), "{met:?}");
}

/// A pool without a digest is checked for faults of links, states and sums in the same way. Only a
/// wrong reference count that is plausible is not found.
#[test]
fn links_and_places_need_no_digest() {
    every_fault(states() / 3, |setting, seed, operations, fault| {
        let mut world = World::after(Setting { digest: false, ..setting }, seed, operations);
        if needs_digest(fault) || !world.pool.inject(fault) {
            return false;
        }
        let all = world.pool.num_blocks();
        assert!(is_poisoned(&world.scrub(all)), "{fault:?} after {operations} of {seed}, {setting:?}");
        true
    });
}

/// After several faults, the pool's error contains the first broken invariant.
#[test]
fn the_reason_names_the_invariant() {
    let setting = Setting {
        num_blocks: 14,
        eviction: kvpool_policies::LRU,
        retention: false,
        verify: Verify::None,
        duplicates: kvpool::DuplicatePolicy::Keep,
        digest: true,
    };
    let mut world = World::after(setting, 3, 30);
    assert!(world.pool.inject(Fault::NumHeld(100)));
    let error = world.scrub(1).unwrap_err();
    assert!(error.to_string().contains("B1 (the sums hold)"), "{error}");
    assert!(world.pool.inject(Fault::NumFree(100)));
    assert_eq!(world.scrub(1), Err(error.clone()));
    assert_eq!(world.pool.allocate(1), Err(error));
}

/// Changing any field of a block, or any number of the pool that the digest includes, changes the
/// digest.
#[test]
fn every_field_changes_the_digest() {
    let mut changed = BTreeSet::new();
    for (seed, setting) in (0..60).zip(Setting::all().collect::<Vec<_>>().into_iter().cycle()) {
        let mut numbers = Numbers(seed);
        let block = BlockId::new(1 + numbers.below(setting.num_blocks - 1) as u32);
        for fault in [
            Fault::References(block, 77),
            Fault::FenceReferences(block, 77),
            Fault::Hash(block, numbers.below(64) as u32 / 8 * 32 + numbers.below(8) as u32),
            Fault::Computed(block),
            Fault::Depth(block, 77),
            Fault::NumFree(77),
            Fault::NumHeld(77),
            Fault::NumFenced(77),
            Fault::NumRegistered(77),
        ] {
            let mut world = World::after(setting, seed, 30);
            let before = world.pool.state_digest_from_scratch();
            if world.pool.inject(fault) {
                assert_ne!(before, world.pool.state_digest_from_scratch(), "{fault:?}");
                changed.insert(kind(fault));
            }
        }
    }
    assert_eq!(changed.len(), 9, "{changed:?}");
}
