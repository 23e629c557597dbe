//! Hybrid models on real bytes: random histories of the engine of [`kvpool_testing::groups`], which reads
//! every cell that a token needs.

use std::fmt::Debug;

use kvpool::CacheManager;
use kvpool_testing::groups::{World, operation, specs};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

/// What comes of random draws.
fn drawn<T: Debug>(make: fn(&mut dyn FnMut(u8) -> usize) -> T) -> impl Strategy<Value = T> {
    any::<[u8; 24]>().prop_map(move |bytes| {
        let mut bytes = bytes.into_iter();
        make(&mut |most| usize::from(bytes.next().unwrap_or(0)) % (usize::from(most) + 1))
    })
}

fn operations() -> u32 {
    std::env::var("KVPOOL_MODEL_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000)
}

/// Properties 4, 9, 12, 16, 21 and 24 of the bugs of other engines, for groups. The cache makes no call fail,
/// and no block is lost.
#[test]
fn no_layer_reads_what_is_not_its_own() {
    const LENGTH: u32 = 100;
    let config = Config {
        cases: (operations() / LENGTH).max(1),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    };
    let histories =
        (drawn(specs), 2_usize..=40, prop::collection::vec(drawn(operation), 1..2 * LENGTH as usize));
    TestRunner::new(config)
        .run(&histories, |(specs, num_blocks, history)| {
            let mut world = World::new(specs, num_blocks, CacheManager::new).unwrap();
            history.iter().for_each(|operation| drop(world.apply(operation)));
            world.check_refused_growth();
            world.finish();
            Ok(())
        })
        .unwrap();
}
