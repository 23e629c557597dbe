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
    assert_eq!(manager.resume_with(0, Part { allocate_tokens: Some(4), external_tokens: 2 }).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), Some((vec![6], 0)));
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.trim_window(2, 3).ok(), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[1, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.fence().unwrap().get(), 0);
    assert!(manager.commit(1, 2).is_ok());
    assert!(manager.append(&refs(&[3]), &[0], Computed::AllButLast).is_err());
    assert!(manager.complete_step(5).is_ok());
    assert!(manager.end_fence(Ticket::new(0)).is_ok());
    assert_eq!(manager.admit(2, prompt(&manager, &[0, 0], b"s")).ok().as_ref().map(table), Some((vec![7], 0)));
    assert_eq!(manager.begin_swap_out(&refs(&[2])).ok().map(SwapId::get), Some(0));
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 1, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.extend(1, 14).is_err());
    assert!(manager.complete_step(2).is_ok());
    assert!(manager.release(4, None).is_ok());
    assert_eq!(manager.admit(2, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(2, prompt(&manager, &[1, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0], b"")).ok().as_ref().map(table), Some((vec![1], 0)));
    assert!(manager.commit(3, 0).is_err());
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0, 0, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(4, prompt(&manager, &[1], b"")).ok().as_ref().map(table), Some((vec![2], 0)));
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.commit(3, 0).is_err());
    assert_eq!(manager.admit(4, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 1], b"")).ok().as_ref().map(table), None);
    assert!(manager.append(&refs(&[3, 0]), &[1, 1], Computed::AllButLast).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 1, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.preempt(0, None).is_ok());
    assert_eq!(manager.admit(5, prompt(&manager, &[1, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.append(&refs(&[5, 4, 0]), &[0, 0, 0], Computed::Nothing).is_ok());
    assert!(manager.commit(1, 2).is_ok());
    assert!(manager.fork(5, 0).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(5, prompt(&manager, &[1, 0, 0, 0, 0, 0, 0, 0], b"s")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[1, 1, 1, 1, 1, 1], b"")).ok().as_ref().map(table), None);
    assert!(manager.release(3, None).is_err());
    assert_eq!(manager.admit(0, prompt(&manager, &[0, 0, 0, 0, 0, 0, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0, 1, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.truncate_batch(&refs(&[5]), &[3], None).is_ok());
    assert!(manager.release(1, None).is_ok());
    assert_eq!(manager.admit(2, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert!(manager.complete_swap(SwapId::from_number(0)).is_err());
    assert!(manager.extend(2, 7).is_err());
    assert!(manager.append_ragged(&Rows { requests: &refs(&[0, 2, 3]), tokens: &[0, 0, 0, 0], offsets: &[0, 1, 2, 4], computed: Computed::Counts(&[4, 0, 0]), covered: Covered::Each(&[1, 6, 6]), most_changes: None }).is_err());
    assert!(manager.append_tokens(2, &[0, 0, 0, 0, 0, 0, 0], 1).is_err());
    assert_eq!(manager.admit(2, prompt(&manager, &[1, 0, 0, 0], b"s")).ok().as_ref().map(table), None);
    assert!(manager.append_ragged(&Rows { requests: &refs(&[]), tokens: &[], offsets: &[0], computed: Computed::Counts(&[]), covered: Covered::Lookahead(1), most_changes: None }).is_ok());
    assert!(manager.release(2, None).is_ok());
    assert_eq!(manager.admit(0, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert!(manager.preempt(1, None).is_err());
    assert_eq!(manager.admit(1, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert!(manager.external_done(3, Loaded::First(5)).is_err());
    let mut plan = manager.plan_step();
    let _ = manager.plan_resume(&mut plan, 3);
    manager.commit_step(&mut plan).unwrap();
    assert!(manager.external_done(5, Loaded::All).is_err());
    assert_eq!(manager.admit(3, prompt(&manager, &[0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), Some((vec![6, 1, 3], 1)));
    assert!(manager.commit(0, 2).is_err());
    assert!(manager.commit(0, 2).is_err());
    let mut plan = manager.plan_step();
    let _ = manager.plan_append_ragged(&mut plan, &Rows { requests: &refs(&[4, 3]), tokens: &[0, 0], offsets: &[0, 0, 2], computed: Computed::Nothing, covered: Covered::Each(&[2, 1]), most_changes: None });
    let _ = manager.plan_release(&mut plan, 1, None);
    let _ = manager.plan_preempt(&mut plan, 5, Ticket::new(5));
    let _ = manager.plan_resume(&mut plan, 1);
    manager.commit_step(&mut plan).unwrap();
    assert_eq!(manager.resume(1).ok().as_ref().map(table), None);
    assert!(manager.external_done(0, Loaded::All).is_err());
    assert_eq!(manager.admit(1, prompt(&manager, &[0, 0, 0, 0, 0, 0, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(4, prompt(&manager, &[0, 0, 0, 0, 1], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(4, prompt(&manager, &[1, 1, 1, 1, 1, 1, 1], b"s")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(2, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.begin_swap_in(&refs(&[0, 0, 3])).ok().map(SwapId::get), None);
    assert_eq!(manager.admit_with(3, prompt(&manager, &[0, 0], b""), &AdmitOptions { part: Part { allocate_tokens: None, external_tokens: 2 }, ..Default::default() }).ok().as_ref().map(table), None);
    assert!(manager.append(&refs(&[1]), &[1], Computed::AllButLast).is_err());
    assert_eq!(manager.admit(2, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit(2, prompt(&manager, &[0, 0, 0, 0, 0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.fork(1, 2).is_err());
    assert_eq!(manager.admit(5, prompt(&manager, &[0, 0, 0], b"")).ok().as_ref().map(table), None);
    assert!(manager.complete_step(0).is_ok());
    assert!(manager.external_done(2, Loaded::AllBut(std::slice::from_ref(&(9..10)))).is_err());
    assert_eq!(manager.admit(4, prompt(&manager, &[0, 0], b"")).ok().as_ref().map(table), None);
    assert_eq!(manager.admit_with(3, prompt(&manager, &[0, 0], b""), &AdmitOptions { part: Part { allocate_tokens: Some(0), external_tokens: 6 }, ..Default::default() }).ok().as_ref().map(table), None);
    assert_eq!(manager.begin_swap_out(&refs(&[1, 1])).ok().map(SwapId::get), None);
    assert_eq!(manager.admit(0, prompt(&manager, &[], b"")).ok().as_ref().map(table), None);
    manager.check_invariants().unwrap();
    closed(manager.take_events());
    let pool = manager.tiers().pool(0).unwrap();
    assert_eq!(indices(&pool.free_order()), [8]);
    assert_eq!(indices(&pool.eviction_order()), Vec::<usize>::new());
    let pool = manager.tiers().pool(1).unwrap();
    assert_eq!(indices(&pool.free_order()), Vec::<usize>::new());
    assert_eq!(indices(&pool.eviction_order()), Vec::<usize>::new());
    assert_eq!(indices(manager.block_table(0).unwrap()), Vec::<usize>::new());
    assert_eq!(indices(manager.block_table(2).unwrap()), [7]);
    assert_eq!(indices(manager.block_table(3).unwrap()), [6, 1, 3]);
    assert_eq!(indices(manager.block_table(4).unwrap()), [2]);
    assert_eq!(indices(manager.block_table(5).unwrap()), [4, 5]);
}
