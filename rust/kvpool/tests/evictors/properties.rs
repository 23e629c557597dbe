//! Properties 12, 22 and 23, and closedness, of every policy with and without retention, over random histories of a pool.
//!
//! What is checked of each victim is in [`super::world`]: it is idle, no cached-free block hangs on it, nothing of a lower
//! rank could go; an allocation succeeds exactly if enough is available.

use super::world::{Step, World};
use super::*;

/// Steps of holders that hold whole prefixes.
fn whole() -> impl Strategy<Value = Step> {
    let table = || 0_usize..8;
    prop_oneof![
        8 => path().prop_map(Step::Admit),
        4 => (table(), path()).prop_map(|(nth, more)| Step::Turn(nth, more)),
        8 => table().prop_map(Step::Release),
        3 => (table(), 0_u64..9).prop_map(|(nth, step)| Step::ReleaseAfter(nth, step)),
        2 => (0_u64..9).prop_map(Step::Complete),
        1 => prop_oneof![Just(Step::BumpEpoch), Just(Step::Reset), Just(Step::Grow)],
        1 => Just(Step::Exhaust),
    ]
}

/// Steps of holders that compute the same at the same time: copies of one content, whole prefixes all the same.
fn copying() -> impl Strategy<Value = Step> {
    let table = || 0_usize..8;
    // Short, so that several fit into the pool at once.
    let short = || prop::collection::vec(0_u8..2, 1..3);
    prop_oneof![
        4 => short().prop_map(Step::Begin),
        3 => (table(), short()).prop_map(|(nth, more)| Step::Extend(nth, more)),
        4 => table().prop_map(Step::Finish),
        1 => (table(), 0_usize..12).prop_map(|(nth, at)| Step::Truncate(nth, at)),
    ]
}

fn hints() -> impl Strategy<Value = Step> {
    let blocks = || prop::collection::vec(1_usize..20, 1..6);
    let tenant = prop::sample::select(vec![3_u32, 3, 7, 7, 9]);
    prop_oneof![
        3 => (blocks(), retention()).prop_map(|(blocks, retention)| Step::Retain(blocks, retention)),
        3 => (0_usize..8, retention()).prop_map(|(nth, retention)| Step::RetainTable(nth, retention)),
        3 => (blocks(), tenant).prop_map(|(blocks, tenant)| Step::Assign(blocks, tenant)),
        2 => (-1_i8..6).prop_map(|half| Step::Advance(f64::from(half) / 2.0)),
    ]
}

/// Steps of holders that hold what they like.
fn odd() -> impl Strategy<Value = Step> {
    let table = || 0_usize..8;
    prop_oneof![
        2 => (0_usize..4).prop_map(Step::Allocate),
        2 => (path(), 0_usize..6).prop_map(|(path, most)| Step::Match(path, most)),
        3 => (table(), path(), 0_usize..3).prop_map(|(table, path, start)| Step::Register { table, path, start }),
        3 => table().prop_map(Step::Mark),
        2 => (table(), 0_usize..8).prop_map(|(nth, at)| Step::ReleaseOne(nth, at)),
        1 => table().prop_map(Step::Acquire),
        2 => (table(), 0_usize..4, path()).prop_map(|(table, at, path)| Step::Promote { table, at, path }),
        1 => prop::collection::vec(1_usize..20, 1..3).prop_map(Step::Evict),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(Kind::all())
}

const LENGTH: u32 = 60;

fn steps(step: impl Strategy<Value = Step>) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step, LENGTH as usize)
}

fn settings() -> impl Strategy<Value = (usize, RetentionConfig)> {
    (4_usize..14).prop_flat_map(|num_blocks| (Just(num_blocks), limits(num_blocks - 1)))
}

#[test]
fn properties_12_22_and_23_hold_for_every_policy_and_any_holders() {
    let step = prop_oneof![4 => whole(), 3 => odd(), 1 => copying(), 3 => hints()];
    let setting = (kind(), settings(), any::<bool>(), any::<bool>(), steps(step));
    check(file!(), LENGTH, setting, |(kind, (num_blocks, config), drop_duplicates, clock, steps)| {
        let mut world = World::new(kind, num_blocks, &config, drop_duplicates);
        if clock {
            world.advance(0.0);
        }
        for step in &steps {
            world.act(step);
            world.check();
        }
        world.act(&Step::Exhaust);
    });
}

/// The cache stays closed: with holders that hold whole prefixes nothing is cached that no lookup can reach, however many of
/// them computed the same, and whether their copies are kept or dropped.
#[test]
fn every_cached_block_can_be_reached_whatever_policy_and_hints() {
    let step = prop_oneof![7 => whole(), 7 => copying(), 2 => hints()];
    // LRU without retention is the default, and the one that is closed by its times alone.
    let kind = || prop_oneof![2 => kind(), 1 => Just(Kind::Plain(kvpool_policies::LRU))];
    check(
        file!(),
        LENGTH / 4, // as many cases as four of the others: much has to come together
        (kind(), settings(), any::<bool>(), steps(step)),
        |(kind, (num_blocks, config), drop, steps)| {
            let mut world = World::new(kind, num_blocks, &config, drop);
            world.advance(0.0);
            for step in &steps {
                world.act(step);
                world.check();
                world.check_reachable();
            }
            world.act(&Step::Exhaust);
        },
    );
}

/// Steps of holders that want to write where others read: their blocks are copied, and pinned until the plan is taken.
fn writing() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_usize..8, 0_usize..12).prop_map(|(nth, at)| Step::Copy(nth, at)),
        2 => Just(Step::TakePlan),
    ]
}

/// Nor is it a planned copy that opens it: its pins delay what they hold, and no parent goes before its child for that.
#[test]
fn the_cache_stays_closed_across_pins_under_every_policy_and_under_plain_lru() {
    let step = prop_oneof![7 => whole(), 3 => copying(), 5 => writing()];
    let kind = prop_oneof![1 => kind(), 2 => Just(Kind::Plain(kvpool_policies::LRU))];
    let setting = (kind, 4_usize..14, any::<bool>(), steps(step));
    check(file!(), LENGTH / 4, setting, |(kind, num_blocks, drop, steps)| {
        // Which copies have children in the order is the policy's to know, if it has them.
        let drop = drop && !kind.is_closed();
        let mut world = World::new(kind, num_blocks, &RetentionConfig::default(), drop);
        for step in &steps {
            world.act(step);
            world.check();
            world.check_reachable();
        }
        world.act(&Step::TakePlan);
        world.act(&Step::Exhaust);
    });
}

/// Property 23: an expired retention has no effect. A twin is given the same hints without an end, and takes them back, in the
/// order in which they expire, when they do: the two evict alike from then on, under every policy.
#[test]
fn property_23_an_expired_hint_is_as_good_as_one_that_was_taken_back() {
    let step = prop_oneof![6 => whole(), 2 => odd()];
    let hint = (prop::collection::vec(1_usize..14, 1..4), retention(), 1_u8..8);
    let kinds = prop::sample::select(Kind::retaining().collect::<Vec<_>>());
    let setting = (kinds, settings(), steps(step.clone()), prop::collection::vec(hint, 0..6), steps(step));
    check(file!(), 2 * LENGTH, setting, |(kind, (num_blocks, config), before, hints, after)| {
        let make = || {
            let mut world = World::new(kind, num_blocks, &config, false);
            world.advance(0.0);
            before.iter().for_each(|step| world.act(step));
            world
        };
        let (mut ending, mut endless) = (make(), make());
        let mut ends: Vec<(f64, usize)> = Vec::new();
        for (blocks, said, seconds) in &hints {
            for &block in blocks {
                if !ending.pool().is_registered(id(block)) {
                    continue;
                }
                let seconds = f64::from(*seconds);
                let hint = Retention { ttl: Some(Ttl::Absolute(seconds)), then: Then::Normal, ..*said };
                // Two hints of one block would end the first; an end of life of a shared block is not heard.
                if ends.iter().all(|&(_, other)| other != block) && hint.keep != Keep::Demoted {
                    ending.act(&Step::Retain(vec![block], hint));
                    endless.act(&Step::Retain(vec![block], Retention::of(hint.keep)));
                    ends.push((seconds, block));
                }
            }
        }
        ending.advance(100.0);
        endless.advance(100.0); // a policy may measure ages from the time at which a block is its own again
        ends.sort_by(|a, b| a.partial_cmp(b).unwrap());
        for &(_, block) in &ends {
            endless.act(&Step::Retain(vec![block], Retention::NORMAL));
        }
        for step in &after {
            ending.act(step);
            endless.act(step);
            assert_eq!(
                ending.pool().eviction_order(),
                endless.pool().eviction_order(),
                "{kind:?} after {step:?}"
            );
        }
        assert_eq!(ending.victims, endless.victims);
    });
}

/// The same against a twin that was never told anything, for LRU: once every block has been used again since, all is as it
/// would have been.
#[test]
fn property_23_lru_forgets_an_expired_hint_at_the_next_use() {
    for keep in [
        Keep::Pinned,
        Keep::Priority(Priority::MAX),
        Keep::Priority(Priority::new(0).unwrap()),
        Keep::Demoted,
    ] {
        for hinted in 0..3_u8 {
            let config = RetentionConfig { pin_budget: 3, ..Default::default() };
            let make = || {
                let mut world = World::new(Kind::Retaining(kvpool_policies::LRU), 8, &config, false);
                world.advance(0.0);
                for session in 0..3 {
                    world.act(&Step::Admit(vec![session, 0]));
                    world.act(&Step::Release(0));
                }
                world
            };
            let (mut told, mut twin) = (make(), make());
            let block = 1 + 2 * usize::from(hinted);
            let ttl = Some(Ttl::Absolute(5.0));
            told.act(&Step::Retain(vec![block, block + 1], Retention { keep, ttl, then: Then::Normal }));
            assert_eq!(told.pool().retention_stats().unwrap().with_ttl, 2);
            told.advance(5.0);
            for world in [&mut told, &mut twin] {
                for session in [1, 0, 2] {
                    world.act(&Step::Admit(vec![session, 0]));
                    world.act(&Step::Release(0));
                }
            }
            assert_eq!(told.pool().eviction_order(), twin.pool().eviction_order(), "{keep:?} of {hinted}");
        }
    }
}
