//! Tests every policy, by its name.

use std::collections::HashSet;

use kvpool::retention::RetentionConfig;
use kvpool::{BlockId, BlockPool, Candidate, Content, EvictionPolicy, PoolConfig, PoolError};
use kvpool_policies::{ADVISED, ALL, LAST_ACCESS, LRU, by_name, replacement};

#[test]
fn a_policy_is_its_name() {
    for &policy in ALL {
        let name = policy.name();
        assert_eq!((by_name(name), format!("{policy:?}")), (Ok(policy), name.to_owned()));
        assert_eq!(policy.build(4, None).unwrap().name(), name);
        assert_eq!(policy.has_order(), policy != LAST_ACCESS);
        let order = policy.order(4).unwrap();
        assert_eq!(order.map(|order| order.name()), policy.has_order().then_some(name));
        let refused = policy.build(4, Some(&RetentionConfig::default())).is_err();
        assert_eq!(refused, policy == LAST_ACCESS);
    }
    assert_eq!(ALL.iter().collect::<HashSet<_>>().len(), ALL.len(), "a name is used once");
    assert!(ADVISED.iter().all(|policy| ALL.contains(policy)));
}

/// If consecutive blocks are registered in one call, each block's parent is the block before it. If
/// consecutive blocks are released or used in one call, the call ends at the first block in use. `pop`
/// returns as many victims as the order contains.
#[test]
fn a_run_ends_at_the_first_block_in_use() {
    let ids = |ids: &[u32]| ids.iter().copied().map(BlockId::new).collect::<Vec<_>>();
    for &policy in ALL {
        for retention in [None, Some(RetentionConfig::default())] {
            let Ok(mut evictor) = policy.build(9, retention.as_ref()) else { continue };
            let content =
                |block: BlockId| (block, Content { key: block.get().into(), depth: block.get() - 1 });
            evictor.registered_run(&ids(&[1, 2]).into_iter().map(content).collect::<Vec<_>>(), None);
            let rest = ids(&[3, 4, 5]).into_iter().map(content).collect::<Vec<_>>();
            evictor.registered_run(&rest, Some(BlockId::new(2)));
            if evictor.wants_history() {
                let parents = ids(&[1, 2, 3, 4, 5]).into_iter().map(|block| evictor.parent(block));
                assert_eq!(parents.flatten().collect::<Vec<_>>(), ids(&[1, 2, 3, 4]), "{policy:?}");
            }
            // Ids outside of the pool get no content, and are no parents.
            let strange = ids(&[6, 0, 7, 9, 8]).into_iter().map(|block| (block, Content::default()));
            evictor.registered_run(&strange.collect::<Vec<_>>(), None);
            assert!(ids(&[6, 7, 8]).into_iter().all(|block| evictor.parent(block).is_none()), "{policy:?}");
            let candidate = |&block: &BlockId| Candidate { block, depth: block.get() - 1 };
            evictor.insert(&mut ids(&[1, 2, 3, 4, 5]).iter().map(candidate).collect::<Vec<_>>());
            assert!(evictor.hit(BlockId::new(3)));
            assert_eq!(evictor.hit_run(&ids(&[1, 2, 3, 4])), 2, "{policy:?}");
            assert_eq!(evictor.hit_run(&ids(&[0, 4])), 0, "{policy:?}");
            assert_eq!(evictor.hit_run(&ids(&[8, 4])), 0, "{policy:?}");
            let mut victims = ids(&[7]);
            evictor.evict_run(3, &mut victims);
            assert_eq!(victims, ids(&[7, 5, 4]), "{policy:?}");
            evictor.check_invariants().unwrap();
        }
    }
}

#[test]
fn the_error_of_the_cores_lru_names_the_lru_with_retention() {
    let retention = Some(RetentionConfig::default());
    let config = PoolConfig { eviction: EvictionPolicy::LRU, retention, ..PoolConfig::default() };
    assert_eq!(config.eviction, LRU);
    assert_eq!(
        BlockPool::new(config.clone()).unwrap_err().to_string(),
        "retention is set: must be left out, since it ranks blocks, which the core's lru does not: use \
         kvpool_policies::LRU"
    );
    assert!(BlockPool::new(PoolConfig { eviction: LRU, ..config }).unwrap().has_retention());
}

#[test]
fn an_unknown_name_is_refused_with_the_policies_that_exist() {
    let error = by_name("mru").unwrap_err();
    assert!(matches!(&error, PoolError::InvalidConfig { field: "eviction", .. }));
    assert_eq!(
        error.to_string(),
        "eviction is \"mru\": must be one of lru, last-accessed, s3-fifo, arc, adaptive, hazard"
    );
    assert_eq!(replacement("mru"), None);
}

#[test]
fn a_removed_policy_is_refused_with_the_policy_to_use_instead() {
    for name in ["fifo", "lfu", "lfu-da", "sieve", "2q", "lrfu", "gdsf"] {
        let instead = replacement(name).unwrap();
        assert!(ALL.contains(&instead) && instead != LAST_ACCESS, "{name}");
        let error = by_name(name).unwrap_err();
        assert!(matches!(&error, PoolError::InvalidConfig { field: "eviction", .. }));
        assert_eq!(
            error.to_string(),
            format!(
                "eviction is {name:?}: must be one of lru, last-accessed, s3-fifo, arc, adaptive, hazard; \
                 kvpool no longer has {name}, use {}",
                instead.name()
            )
        );
    }
    assert!(ALL.iter().all(|policy| replacement(policy.name()).is_none()));
}
