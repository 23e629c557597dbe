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
    let mut manager = CacheManager::new(ManagerConfig { num_blocks: 6, block_size: 2, host_blocks: 3, watermark: 0.2, ..Default::default() }).unwrap().watched(&ManagerWatchConfig { event_capacity: 1000, ..Default::default() }).unwrap();
    assert_eq!(manager.admit(3, prompt(&manager, &[1, 0, 0, 0, 0], b"")).ok().as_ref().map(table), Some((vec![1, 2, 3], 0)));
    assert!(manager.fork(0, 2).is_err());
    assert_eq!(manager.admit(1, prompt(&manager, &[1, 0, 0, 0, 0, 0, 0, 0, 0], b"s")).ok().as_ref().map(table), None);
    assert!(manager.external_done(5, Loaded::First(6)).is_err());
    assert_eq!(manager.admit(2, prompt(&manager, &[0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(4, 2).is_err());
    assert_eq!(manager.admit(2, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), Some((vec![4], 0)));
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.fork_batch(&refs(&[2]), &refs(&[0])).is_ok());
    assert!(manager.release(0, None).is_ok());
    assert_eq!(manager.admit(1, prompt(&manager, &[1, 1, 1, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(5, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert!(manager.extend(3, 12).is_err());
    assert_eq!(manager.admit(3, prompt(&manager, &[0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(4, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[1, 0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.preempt(2, Ticket::new(3)).is_err());
    assert!(manager.preempt(0, None).is_err());
    assert!(manager.end_session(3, None).is_err());
    let mut plan = manager.plan_step();
    let _ = manager.plan_append(&mut plan, 1, &[0, 0, 0], 0);
    let _ = manager.plan_append(&mut plan, 5, &[0], 4);
    let _ = manager.plan_admit(&mut plan, 1, prompt(&manager, &[1, 1, 1, 1], b""));
    let _ = manager.plan_admit(&mut plan, 3, prompt(&manager, &[0, 0, 0, 0], b""));
    manager.commit_step(&mut plan).unwrap();
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 1, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.preempt(4, Ticket::new(1)).is_err());
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0, 0, 0, 1, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(5, 0).is_err());
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0], b"")).ok().as_ref().map(table), None);
    assert!(manager.extend(1, 11).is_err());
    assert!(manager.append(&refs(&[4, 4, 3]), &[0, 0, 0], Computed::AllButLast).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert!(manager.fork(0, 2).is_err());
    assert!(manager.append_ragged(&Rows { requests: &refs(&[4, 5]), tokens: &[1, 0, 0, 0, 1], offsets: &[0, 4, 5], computed: Computed::Counts(&[3, 4]), covered: Covered::Each(&[4, 1]), most_changes: None }).is_err());
    assert_eq!(manager.admit_with(4, prompt(&manager, &[0, 0, 0, 0, 0], b""), &AdmitOptions { part: Part { allocate_tokens: Some(1), external_tokens: 0, compute_all: false }, ..Default::default() }).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.fence().unwrap().get(), 0);
    assert_eq!(manager.admit(5, prompt(&manager, &[0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0], b"")).ok().as_ref().map(table), None);
    assert!(manager.append_tokens(2, &[0, 0, 0, 0], 2).is_err());
    assert_eq!(manager.admit(5, prompt(&manager, &[1, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.fence().unwrap().get(), 1);
    assert_eq!(manager.take_plan().unwrap().len(), 0);
    assert!(manager.extend(1, 1).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 0, 0, 1, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[1], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(1, 0).is_err());
    assert!(manager.append_ragged(&Rows { requests: &refs(&[4, 3]), tokens: &[1, 1, 1, 0, 0, 1], offsets: &[0, 3, 6], computed: Computed::Counts(&[10, 3]), covered: Covered::Lookahead(3), most_changes: Some(0) }).is_err());
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0, 1, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(indices(&manager.evict(2).unwrap()), Vec::<usize>::new());
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.end_session(3, Ticket::new(4)).is_err());
    assert_eq!(manager.begin_swap_out(&refs(&[3, 0])).ok().map(SwapId::get), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.append_tokens(5, &[0], 4).is_err());
    assert_eq!(manager.admit(1, prompt(&manager, &[1, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.append_ragged(&Rows { requests: &refs(&[0]), tokens: &[], offsets: &[0, 0], computed: Computed::Counts(&[4]), covered: Covered::Lookahead(4), most_changes: None }).is_err());
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[1, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(5, 0).is_err());
    assert!(manager.external_done(0, Loaded::All).is_err());
    assert_eq!(manager.admit(1, prompt(&manager, &[1, 1, 1, 1, 1, 1, 1, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(4, prompt(&manager, &[0, 0], b"s")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(4, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert_eq!(indices(&manager.evict(3).unwrap()), Vec::<usize>::new());
    assert_eq!(manager.admit(4, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(2, prompt(&manager, &[1, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.fork_batch(&refs(&[]), &refs(&[])).is_ok());
    manager.check_invariants().unwrap();
    closed(manager.take_events());
    let pool = manager.tiers().pool(0).unwrap();
    assert_eq!(indices(&pool.free_order()), [5]);
    assert_eq!(indices(&pool.eviction_order()), Vec::<usize>::new());
    let pool = manager.tiers().pool(1).unwrap();
    assert_eq!(indices(&pool.free_order()), [1, 2]);
    assert_eq!(indices(&pool.eviction_order()), Vec::<usize>::new());
    assert_eq!(indices(manager.block_table(2).unwrap()), [4]);
    assert_eq!(indices(manager.block_table(3).unwrap()), [1, 2, 3]);
}
