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
    let mut manager = CacheManager::new(ManagerConfig { num_blocks: 9, block_size: 2, verify: Verify::Tokens, host_blocks: 2, ..Default::default() }).unwrap().watched(&ManagerWatchConfig { event_capacity: 1000, ..Default::default() }).unwrap();
    assert!(manager.abort_swap(SwapId::from_number(999)).is_err());
    assert_eq!(manager.admit(4, prompt(&manager, &[0, 0, 0, 0, 1, 0], b"")).ok().as_ref().map(table), Some((vec![1, 2, 3], 0)));
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0, 0], b"")).ok().as_ref().map(table), Some((vec![4, 5], 0)));
    assert!(manager.commit(3, 2).is_err());
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 1, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.resume_with(0, Part { allocate_tokens: Some(4), external_tokens: 2, compute_all: false }).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), Some((vec![6], 0)));
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.trim_window(2, 3).ok(), None);
    assert_eq!(indices(&manager.evict(2).unwrap()), Vec::<usize>::new());
    let mut plan = manager.plan_step();
    let _ = manager.plan_admit(&mut plan, 1, prompt(&manager, &[0, 0], b""));
    let _ = manager.plan_release(&mut plan, 0, Some(2));
    let _ = manager.plan_preempt(&mut plan, 0, None);
    let _ = manager.plan_release(&mut plan, 3, None);
    manager.commit_step(&mut plan).unwrap();
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.append(&refs(&[1, 1, 2]), &[1, 1, 1], Computed::AllButLast).is_err());
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 1, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.extend(1, 14).is_err());
    assert!(manager.release_batch(&refs(&[4, 4]), Ticket::new(1)).is_err());
    assert_eq!(manager.admit(3, prompt(&manager, &[1, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(5, prompt(&manager, &[1, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 1, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.append_ragged(&Rows { requests: &refs(&[]), tokens: &[], offsets: &[0], computed: Computed::Nothing, covered: Covered::Lookahead(2), most_changes: None }).is_ok());
    assert_eq!(manager.admit(4, prompt(&manager, &[1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(3, 0).is_err());
    assert_eq!(manager.admit(4, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 1], b"")).ok().as_ref().map(table), Some((vec![7, 8], 0)));
    assert!(manager.append(&refs(&[3, 0]), &[1, 1], Computed::AllButLast).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 1, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.preempt(0, None).is_ok());
    assert_eq!(manager.admit(5, prompt(&manager, &[1, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.append(&refs(&[5, 4, 0]), &[0, 0, 0], Computed::Nothing).is_ok());
    assert!(manager.commit(1, 2).is_ok());
    assert!(manager.fork_batch(&refs(&[0]), &refs(&[4])).is_err());
    assert_eq!(indices(&manager.evict(3).unwrap()), Vec::<usize>::new());
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.append(&refs(&[0, 0]), &[0, 0], Computed::AllButLast).is_err());
    assert!(manager.release_batch(&refs(&[0]), Ticket::new(4)).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 0, 0, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0, 1, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.truncate_batch(&refs(&[5]), &[3], None).is_ok());
    assert!(manager.release_batch(&refs(&[5]), None).is_ok());
    assert_eq!(manager.admit(3, prompt(&manager, &[1, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), Some((vec![4, 5, 7], 0)));
    assert!(manager.extend(2, 7).is_err());
    assert!(manager.append_ragged(&Rows { requests: &refs(&[0, 2, 3]), tokens: &[0, 0, 0, 0], offsets: &[0, 1, 2, 4], computed: Computed::Counts(&[4, 0, 0]), covered: Covered::Each(&[1, 6, 6]), most_changes: None }).is_err());
    assert!(manager.end_session(2, Ticket::new(4)).is_err());
    assert_eq!(manager.admit_with(5, prompt(&manager, &[0, 0], b""), &AdmitOptions { part: Part { allocate_tokens: Some(5), external_tokens: 4, compute_all: false }, ..Default::default() }).ok().as_ref().map(table), None);
    assert!(manager.append_ragged(&Rows { requests: &refs(&[]), tokens: &[], offsets: &[0], computed: Computed::Counts(&[]), covered: Covered::Lookahead(1), most_changes: None }).is_ok());
    assert!(manager.release(2, None).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert!(manager.release_batch(&refs(&[5]), None).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 1], b"")).ok().as_ref().map(table), None);
    assert!(manager.release_batch(&refs(&[1]), None).is_ok());
    assert_eq!(manager.admit(3, prompt(&manager, &[0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(0, 4).is_err());
    assert!(manager.end_session(0, Ticket::new(0)).is_err());
    assert!(manager.fork_batch(&refs(&[4, 2]), &refs(&[5, 4])).is_err());
    assert!(manager.truncate(2, 3, Until::Now).is_err());
    assert_eq!(manager.take_plan().unwrap().len(), 0);
    assert!(manager.fork_batch(&refs(&[3]), &refs(&[1])).is_ok());
    assert_eq!(manager.resume_with(0, Part { allocate_tokens: Some(1), external_tokens: 5, compute_all: false }).ok().as_ref().map(table), None);
    assert!(manager.fork(1, 1).is_err());
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 1, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.append_ragged(&Rows { requests: &refs(&[3, 4, 4]), tokens: &[0, 0], offsets: &[0, 2, 2, 2], computed: Computed::AllButLast, covered: Covered::Lookahead(4), most_changes: Some(0) }).is_err());
    assert_eq!(indices(&manager.evict(2).unwrap()), [6]);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(4, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.end_fence(Ticket::new(5)).is_err());
    assert_eq!(indices(&manager.evict(2).unwrap()), Vec::<usize>::new());
    assert!(manager.release(1, Ticket::new(0)).is_err());
    assert_eq!(indices(&manager.evict(3).unwrap()), Vec::<usize>::new());
    assert_eq!(manager.admit(2, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), Some((vec![6], 0)));
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0, 0, 1, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.release_batch(&refs(&[]), Ticket::new(2)).is_err());
    assert_eq!(manager.admit(5, prompt(&manager, &[0], b"")).ok().as_ref().map(table), None);
    assert!(manager.fork_batch(&refs(&[0, 3]), &refs(&[0, 0])).is_err());
    assert_eq!(manager.fence().unwrap().get(), 0);
    assert_eq!(manager.admit(3, prompt(&manager, &[1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    manager.check_invariants().unwrap();
    closed(manager.take_events());
    let pool = manager.tiers().pool(0).unwrap();
    assert_eq!(indices(&pool.free_order()), Vec::<usize>::new());
    assert_eq!(indices(&pool.eviction_order()), Vec::<usize>::new());
    let pool = manager.tiers().pool(1).unwrap();
    assert_eq!(indices(&pool.free_order()), [1]);
    assert_eq!(indices(&pool.eviction_order()), Vec::<usize>::new());
    assert_eq!(indices(manager.block_table(0).unwrap()), Vec::<usize>::new());
    assert_eq!(indices(manager.block_table(1).unwrap()), [4, 5, 7]);
    assert_eq!(indices(manager.block_table(2).unwrap()), [6]);
    assert_eq!(indices(manager.block_table(3).unwrap()), [4, 5, 7]);
    assert_eq!(indices(manager.block_table(4).unwrap()), [1, 2, 3, 8]);
}
