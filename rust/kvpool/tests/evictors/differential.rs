//! LRU twice: [`LruEvictor`], which is closed by itself, and `Closed<Recency>`, which any policy would be. With holders that
//! hold whole prefixes they evict alike, victim by victim, as long as there is one copy of each content; so does a pool with
//! retention that is told nothing.

use super::world::{Step, World};
use super::*;

fn step() -> impl Strategy<Value = Step> {
    let table = || 0_usize..8;
    prop_oneof![
        8 => path().prop_map(Step::Admit),
        4 => (table(), path()).prop_map(|(nth, more)| Step::Turn(nth, more)),
        8 => table().prop_map(Step::Release),
        3 => (table(), 0_u64..9).prop_map(|(nth, step)| Step::ReleaseAfter(nth, step)),
        2 => (0_u64..9).prop_map(Step::Complete),
        3 => (table(), 0_usize..12).prop_map(|(nth, at)| Step::Copy(nth, at)),
        2 => Just(Step::TakePlan),
        1 => prop_oneof![Just(Step::BumpEpoch), Just(Step::Reset), Just(Step::Grow)],
    ]
}

/// A run of hits is one call, and so are the releases of a moment: for a policy that works on all at once that is the same.
#[test]
fn a_run_of_blocks_is_each_of_them() {
    const LENGTH: u32 = 60;
    let steps = prop::collection::vec(step(), LENGTH as usize);
    let policy =
        prop_oneof![1 => prop::sample::select(kvpool_policies::ALL), 1 => Just(kvpool_policies::HAZARD)];
    check(
        file!(),
        LENGTH,
        (4_usize..16, any::<bool>(), policy, steps),
        |(num_blocks, drop, policy, steps)| {
            let config = RetentionConfig::default();
            let kinds = [Kind::Plain(policy), Kind::OneByOne(policy)];
            let mut worlds = kinds.map(|kind| World::new(kind, num_blocks, &config, drop));
            for step in &steps {
                worlds.iter_mut().for_each(|world| world.act(step));
                let [run, each] = [0, 1].map(|at: usize| worlds[at].pool().eviction_order());
                assert_eq!(run, each, "{} after {step:?}", policy.name());
            }
            let [run, each] = worlds.map(|world| world.victims);
            assert_eq!(run, each);
        },
    );
}

#[test]
fn lru_behind_closed_is_lru() {
    const LENGTH: u32 = 100;
    let steps = prop::collection::vec(step(), LENGTH as usize);
    check(file!(), LENGTH, (4_usize..16, any::<bool>(), steps), |(num_blocks, drop, steps)| {
        let kinds =
            [Kind::Plain(kvpool_policies::LRU), Kind::ClosedLru, Kind::Retaining(kvpool_policies::LRU)];
        let config = RetentionConfig::default();
        let mut worlds = kinds.map(|kind| World::new(kind, num_blocks, &config, drop));
        for step in &steps {
            worlds.iter_mut().for_each(|world| world.act(step));
            if worlds[0].has_copies() {
                break; // a pinned block was overtaken, and computed anew: which copy a child hangs on is not LRU's to know
            }
            let [order, closed, retaining] = [0, 1, 2].map(|at: usize| worlds[at].pool().eviction_order());
            assert_eq!((&closed, &retaining), (&order, &order), "after {step:?}");
        }
        let [lru, closed, retaining] = worlds.map(|world| world.victims);
        assert_eq!((&closed, &retaining), (&lru, &lru));
    });
}
