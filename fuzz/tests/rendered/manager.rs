use kvpool_testing::block_ids;
use kvpool_testing::indices;
use kvpool::*;
use kvpool_observe::*;

fn prompt(manager: &CacheManager, tokens: &[u32], salt: &[u8]) -> HashCursor {
    let salt = (!salt.is_empty()).then(|| salt.into());
    manager.prepare(tokens, ExtraKeys { salt, ..Default::default() }).unwrap()
}

fn refs(ids: &[i64]) -> Vec<RequestRef<'_>> {
    ids.iter().map(|&id| RequestRef::Int(id)).collect()
}

fn table(admission: &Admission) -> (Vec<usize>, usize) {
    (indices(&admission.block_ids), admission.cached_blocks)
}

fn closed(batch: EventBatch) {
    let mut cached = std::collections::BTreeMap::new();
    for event in batch.events {
        match event {
            BlockEvent::Stored { hash, parent, .. } => drop(cached.insert(hash, parent)),
            BlockEvent::Removed { hash, .. } => drop(cached.remove(&hash)),
            _ => cached.clear(),
        }
    }
    assert!(cached.values().flatten().all(|parent| cached.contains_key(parent)));
}

#[test]
fn written() {
    let mut manager = CacheManager::new(ManagerConfig { num_blocks: 4, block_size: 2, verify: Verify::Tokens, host_blocks: 8, ..Default::default() }).unwrap().watched(&ManagerWatchConfig { event_capacity: 1000, ..Default::default() }).unwrap();
    assert!(manager.complete_step(5).is_ok());
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.fork(3, 5).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[1, 1, 1, 1, 1, 1, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0], b"")).ok().as_ref().map(table), Some((vec![1], 0)));
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[1, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(4, 0).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(5, 0).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.begin_swap_in(&refs(&[2, 0])).ok().map(SwapId::get), None);
    assert_eq!(manager.admit(2, prompt(&manager, &[0, 0, 0, 0, 1, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(1, 4).is_err());
    assert!(manager.release(0, None).is_ok());
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), Some((vec![1, 2, 3], 0)));
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0, 0, 0, 0, 0], b"s")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 1, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(3, 4).is_err());
    assert_eq!(manager.admit(3, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert!(manager.fork(2, 4).is_err());
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0, 1, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(4, prompt(&manager, &[1, 1, 1, 1], b"")).ok().as_ref().map(table), None);
    let mut plan = manager.plan_step();
    let _ = manager.plan_admit(&mut plan, 2, prompt(&manager, &[1, 1, 1, 1, 1, 1], b""));
    let _ = manager.plan_preempt(&mut plan, 1, Some(8));
    manager.commit_step(&mut plan).unwrap();
    assert_eq!(manager.resume(5).ok().as_ref().map(table), None);
    assert!(manager.append(&refs(&[1]), &[1], false).is_err());
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(5, prompt(&manager, &[0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(2, prompt(&manager, &[0], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(2, 0).is_err());
    assert_eq!(manager.admit(5, prompt(&manager, &[1, 1, 1, 1, 1, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(2, prompt(&manager, &[0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.trim_window(3, 3).ok(), None);
    assert!(manager.release(3, None).is_err());
    assert!(manager.truncate(1, 8).is_err());
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0, 0, 0, 1, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.append(&refs(&[]), &[], false).is_ok());
    assert!(manager.complete_step(7).is_ok());
    assert_eq!(manager.admit(4, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(2, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.complete_step(9).is_ok());
    assert_eq!(manager.admit(2, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.resume(3).ok().as_ref().map(table), None);
    assert!(manager.drop_cached(&block_ids(&[])).is_ok());
    assert!(manager.append_tokens(3, &[0], 4).is_err());
    assert_eq!(manager.admit(3, prompt(&manager, &[1, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), Some((vec![1, 2, 3], 0)));
    assert_eq!(manager.admit(2, prompt(&manager, &[0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.fork(2, 4).is_err());
    assert!(manager.fork(3, 2).is_ok());
    assert!(manager.complete_step(1).is_ok());
    assert_eq!(manager.admit(5, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.preempt(5, None).is_err());
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.fork(2, 0).is_ok());
    assert!(manager.append(&refs(&[3, 0]), &[1, 1], false).is_err());
    assert_eq!(manager.admit(1, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(1, 1).is_err());
    assert_eq!(manager.admit(4, prompt(&manager, &[0, 0, 1, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.release(4, None).is_err());
    assert!(manager.preempt(0, Some(4)).is_ok());
    assert!(manager.fork(5, 0).is_err());
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(2, prompt(&manager, &[0, 0, 0, 0, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(0, 6).is_err());
    assert!(manager.commit(3, 6).is_ok());
    assert_eq!(manager.admit(4, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert!(manager.append_tokens(0, &[0, 0, 0], 0).is_err());
    assert!(manager.commit(2, 6).is_ok());
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(4, prompt(&manager, &[1, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0, 0, 0, 1, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(5, prompt(&manager, &[0], b"s")).ok().as_ref().map(table), None);
    assert_eq!(manager.take_plan().unwrap().len(), 0);
    assert!(manager.preempt(3, Some(3)).is_ok());
    assert!(manager.truncate(0, 4).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[0], b"")).ok().as_ref().map(table), None);
    manager.check_invariants().unwrap();
    closed(manager.take_events());
    let pool = manager.tiers().pool(0).unwrap();
    assert_eq!(indices(&pool.free_order()), Vec::<usize>::new());
    assert_eq!(indices(&pool.eviction_order()), Vec::<usize>::new());
    let pool = manager.tiers().pool(1).unwrap();
    assert_eq!(indices(&pool.free_order()), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(indices(&pool.eviction_order()), Vec::<usize>::new());
    assert_eq!(indices(manager.block_table(0).unwrap()), Vec::<usize>::new());
    assert_eq!(indices(manager.block_table(1).unwrap()), Vec::<usize>::new());
    assert_eq!(indices(manager.block_table(2).unwrap()), [1, 2, 3]);
    assert_eq!(indices(manager.block_table(3).unwrap()), Vec::<usize>::new());
}
