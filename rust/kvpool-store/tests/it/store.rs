//! Tests the behaviour that a store adds to any back end. Each test checks one behaviour.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Fake, LEN, Mode, always, at, finish, get, key, namespace, payload, put, settle};
use kvpool_store::{
    Admit, Arena, BreakerConfig, Completion, Get, Presence, Put, Stats, Store, StoreConfig, StoreError,
    TokenRange, Why,
};

fn open(fake: &Arc<Fake>, config: StoreConfig) -> (Store, Arc<Arena>) {
    let arena = Arena::new(8, LEN).unwrap();
    (Store::open(fake.clone(), arena.clone(), &namespace(1), config).unwrap(), arena)
}

fn want(n: u64, slot: u32) -> Get {
    Get { key: key(n), len: LEN, slot }
}

fn offer(n: u64, slot: u32) -> Put {
    Put { key: key(n), tokens: TokenRange { first: n * 16, count: 16 }, len: LEN, slot, admit: None }
}

#[test]
fn stored_objects_are_found_also_after_a_restart() {
    let fake = Fake::new(4);
    let (mut store, arena) = open(&fake, always());
    assert_eq!(get(&mut store, &arena, 1, at(0)), Err(Why::Absent));
    assert_eq!(put(&mut store, &arena, 1, at(0)), Ok(()));
    assert_eq!(get(&mut store, &arena, 1, at(0)), Ok(()));
    store.close();
    let (mut store, arena) = open(&fake, always());
    assert_eq!(
        (store.stats().restored, store.stats().bytes, store.stats().capacity_bytes),
        (1, 8192, 4 * 8192)
    );
    assert_eq!(store.contains(&key(1), at(0)), Presence::Here);
    assert_eq!(get(&mut store, &arena, 1, at(0)), Ok(()));
    store.check_invariants().unwrap();
}

#[test]
fn another_namespace_is_a_cold_start() {
    let fake = Fake::new(1);
    let (mut store, arena) = open(&fake, always());
    put(&mut store, &arena, 1, at(0)).unwrap();
    drop(store);
    let arena = Arena::new(8, LEN).unwrap();
    let mut store = Store::open(fake.clone(), arena.clone(), &namespace(2), always()).unwrap();
    assert_eq!((store.stats().restored, store.stats().foreign), (0, 1));
    assert_eq!(get(&mut store, &arena, 1, at(0)), Err(Why::Absent));
}

/// The server returns an object of another namespace. The store detects this by the header.
#[test]
fn objects_of_a_shared_back_end_are_verified() {
    let fake = Fake::shared(4);
    let (mut store, arena) = open(&fake, always());
    put(&mut store, &arena, 1, at(0)).unwrap();
    let arena2 = Arena::new(2, LEN).unwrap();
    let mut other = Store::open(fake.clone(), arena2.clone(), &namespace(2), always()).unwrap();
    assert_eq!(other.contains(&key(1), at(0)), Presence::Unknown);
    assert_eq!(get(&mut other, &arena2, 1, at(0)), Err(Why::Damaged));
    assert_eq!((other.stats().damaged, fake.objects()), (1, 0));
    assert!(other.stats().last_error.unwrap().contains("namespace"));
    assert_eq!(get(&mut store, &arena, 1, at(0)), Err(Why::Absent));
    assert_eq!(store.stats().lost, 1);
    // A store that was opened later does not know the place of an object, and loads it by its name.
    put(&mut store, &arena, 1, at(0)).unwrap();
    let (mut store, arena) = open(&fake, StoreConfig { breaker: BreakerConfig::default(), ..always() });
    assert_eq!(get(&mut store, &arena, 1, at(0)), Ok(()));
    // After a miss, the store does not ask the back end for this object again for some time.
    assert_eq!(get(&mut store, &arena, 7, at(0)), Err(Why::Absent));
    let calls = fake.calls();
    assert_eq!(store.contains(&key(7), at(9)), Presence::Absent);
    assert_eq!(get(&mut store, &arena, 7, at(9)), Err(Why::Absent));
    assert_eq!((fake.calls(), store.stats().known_absent), (calls, 1));
    assert_eq!(get(&mut store, &arena, 7, at(10)), Err(Why::Absent));
    assert_eq!(fake.calls(), calls + 1);
}

/// A probe asks for many keys at once, and finds objects that other stores wrote. The store uses the
/// answers for a limited time.
#[test]
fn a_probe_finds_objects_of_other_stores() {
    let fake = Fake::shared(400);
    let (mut store, arena) = open(&fake, always());
    (0..200).for_each(|n| put(&mut store, &arena, 2 * n, at(0)).unwrap());
    let (mut other, arena) = open(&fake, always());
    let keys: Vec<_> = (0..400).map(key).collect();
    let calls = fake.calls();
    let job = other.probe(&keys, at(0));
    let done = finish(&mut other, at(0)).remove(0);
    assert_eq!((done.job, fake.calls() - calls), (job, 4), "128 keys a question");
    let expected = |n| if n % 2 == 0 { Ok(()) } else { Err(Why::Absent) };
    assert!((0..400).all(|n| done.objects[n] == expected(n)));
    let known = |store: &Store, n, seconds| store.contains(&key(n), at(seconds));
    assert_eq!([known(&other, 4, 9), known(&other, 5, 9)], [Presence::Here, Presence::Absent]);
    assert_eq!([known(&other, 4, 10), known(&other, 5, 10)], [Presence::Unknown; 2]);
    // The store `other` does not write an object again that another store wrote. It can remove this object.
    assert_eq!(put(&mut other, &arena, 6, at(1)), Ok(()));
    assert_eq!((other.stats().known, other.stats().writes), (1, 0));
    assert_eq!(other.remove(&[key(6)], at(1)), 0);
    settle(&mut other, at(1));
    assert!(!fake.has(6) && known(&other, 6, 1) == Presence::Absent);
    // The store that wrote the object detects the removal at its next probe.
    assert_eq!(known(&store, 6, 1), Presence::Here);
    store.probe(&[key(6), key(8)], at(1));
    assert_eq!(finish(&mut store, at(1))[0].objects, [Err(Why::Absent), Ok(())]);
    assert_eq!((known(&store, 6, 1), store.stats().lost), (Presence::Absent, 1));
    settle(&mut store, at(1));
    store.check_invariants().unwrap();
}

/// A probe and a write run at the same time, and the reply to the probe arrives last. The store still
/// finds the object that was written meanwhile.
#[test]
fn an_answer_from_before_a_write_does_not_count() {
    let fake = Fake::shared(4);
    let (mut store, arena) = open(&fake, always());
    fake.answers_late(true);
    store.probe(&[key(1)], at(0));
    fake.until_waiting(1);
    arena.write(3).unwrap().copy_from_slice(&payload(1, LEN));
    let job = store.put(&[offer(1, 3)], at(0)).unwrap();
    let mut done = Vec::new();
    while done.iter().all(|done: &Completion| done.job != job) {
        store.wait(at(0), Duration::from_secs(1), &mut done);
    }
    fake.answers_late(false);
    settle(&mut store, at(0));
    assert_eq!((store.stats().lost, store.contains(&key(1), at(0))), (0, Presence::Here));
    assert_eq!(get(&mut store, &arena, 1, at(0)), Ok(()));
    // The back end loses the object. A later probe does not find it, so the store removes it from its
    // index.
    assert_eq!(fake.forget(1), 1);
    store.probe(&[key(1)], at(0));
    settle(&mut store, at(0));
    assert_eq!((store.stats().lost, store.contains(&key(1), at(0))), (1, Presence::Absent));
}

/// A probe and a removal run at the same time, and the outdated answer of the probe arrives last. The
/// removed object is not found again.
#[test]
fn an_answer_from_before_a_removal_does_not_count() {
    let fake = Fake::shared(1);
    let (mut writer, arena) = open(&fake, always());
    put(&mut writer, &arena, 1, at(0)).unwrap();
    let (mut other, _) = open(&fake, always());
    // Remove the object with `remove`, in the other store and in the store that wrote it, or by an
    // eviction.
    let ways: [fn(&mut Store); 2] = [
        |store| drop(store.remove(&[key(1)], at(0)).to_string()),
        |store| assert!(store.put(&[offer(2, 2)], at(0)).is_ok()),
    ];
    for (nth, way) in [0, 0, 1].into_iter().enumerate() {
        let store = if nth == 0 { &mut other } else { &mut writer };
        fake.answers_late(true);
        let asked = store.probe(&[key(1)], at(0));
        fake.until_waiting(1);
        ways[way](store);
        let mut done = Vec::new();
        while fake.has(1) {
            store.wait(at(0), Duration::from_millis(10), &mut done);
        }
        // In some runs the removal ends before the reply to the probe arrives, in others after it.
        store.wait(at(0), Duration::from_millis(10), &mut done);
        fake.answers_late(false);
        done.extend(settle(store, at(0)));
        let answer = done.iter().find(|done| done.job == asked).unwrap();
        assert_eq!(answer.objects, [Err(Why::Absent)], "{nth}");
        assert_eq!(store.contains(&key(1), at(0)), Presence::Absent);
        put(&mut writer, &arena, 1, at(0)).unwrap();
        settle(&mut writer, at(0));
    }
}

/// A shared server identifies objects by name, so a pending removal would also remove a new object of
/// the same name. Until the removal has finished, a write of that key is refused as busy. Without this
/// rule, a store could report an object as written that is removed shortly afterwards.
#[test]
fn nothing_is_written_that_is_still_to_be_removed() {
    let fake = Fake::shared(1);
    let (mut store, arena) = open(&fake, always());
    put(&mut store, &arena, 1, at(0)).unwrap();
    let ways: [fn(&mut Store); 2] = [
        |store| assert_eq!(store.remove(&[key(1)], at(0)), 1),
        |store| assert!(store.put(&[offer(2, 2)], at(0)).is_ok()), // evicts key 1
    ];
    for way in ways {
        put(&mut store, &arena, 1, at(0)).unwrap();
        fake.stall(true);
        way(&mut store);
        let job = store.put(&[offer(1, 3)], at(0)).unwrap();
        let mut done = Vec::new();
        store.poll(at(0), &mut done);
        let ended = done.iter().find(|ended| ended.job == job).unwrap();
        assert_eq!(ended.objects, [Err(Why::Busy)]);
        // A probe and a load that run before the pending removal do not find the object either.
        let asked = [store.probe(&[key(1)], at(0)), store.get(&[want(1, 4)], at(0)).unwrap()];
        assert_eq!(store.contains(&key(1), at(0)), Presence::Absent);
        fake.stall(false);
        let mut done = settle(&mut store, at(0));
        done.retain(|done| asked.contains(&done.job));
        assert!(done.len() == 2 && done.iter().all(|done| done.objects == [Err(Why::Absent)]), "{done:?}");
        assert!(!fake.has(1));
        assert_eq!(put(&mut store, &arena, 1, at(0)), Ok(()));
        settle(&mut store, at(0));
        assert!(fake.has(1));
        store.check_invariants().unwrap();
    }
    // The bytes of a failed write are removed from the back end when it works again.
    fake.set(Mode::Fails);
    store.remove(&[key(1)], at(0));
    store.put(&[offer(3, 3)], at(0)).unwrap();
    let (mut out, mut rounds) = (Vec::new(), 0);
    while out.is_empty() && rounds < 1000 {
        store.wait(at(0), Duration::from_millis(10), &mut out);
        rounds += 1;
    }
    fake.set(Mode::Works);
    settle(&mut store, at(60));
    assert_eq!(put(&mut store, &arena, 3, at(60)), Ok(()));
    settle(&mut store, at(60));
    assert!(fake.has(3));
}

/// If only this store uses the back end, a probe has its result immediately. If the back end is shared
/// and blocks, all keys of a probe miss at the deadline.
#[test]
fn a_probe_never_blocks() {
    let (mut store, arena) = open(&Fake::new(4), always());
    put(&mut store, &arena, 1, at(0)).unwrap();
    store.probe(&[key(1), key(2)], at(0));
    let mut done = Vec::new();
    store.poll(at(0), &mut done);
    assert_eq!(done[0].objects, [Ok(()), Err(Why::Absent)]);

    let fake = Fake::shared(4);
    let (mut store, _) = open(&fake, always());
    fake.stall(true);
    store.probe(&[key(1), key(2), key(3)], at(0));
    fake.until_waiting(1);
    done.clear();
    store.poll(at(2), &mut done);
    assert_eq!(done[0].objects, [Err(Why::TimedOut); 3]);
    fake.stall(false);
    settle(&mut store, at(2));
    assert_eq!(store.contains(&key(1), at(2)), Presence::Unknown, "it came too late");
    fake.set(Mode::Fails);
    store.probe(&[key(1), key(2)], at(2));
    assert_eq!(finish(&mut store, at(2))[0].objects, [Err(Why::Failed); 2]);
    assert!(store.stats().last_error.unwrap().contains("asked to fail"));
}

#[test]
fn a_damaged_object_is_a_miss_and_is_removed() {
    let fake = Fake::new(4);
    let (mut store, arena) = open(&fake, always());
    put(&mut store, &arena, 1, at(0)).unwrap();
    assert!(fake.flip(1, 30_000));
    assert_eq!(get(&mut store, &arena, 1, at(0)), Err(Why::Damaged));
    settle(&mut store, at(0));
    assert_eq!((fake.objects(), store.stats().damaged, store.stats().misses), (0, 1, 1));
    assert_eq!(get(&mut store, &arena, 1, at(0)), Err(Why::Absent));
    assert_eq!(put(&mut store, &arena, 1, at(0)), Ok(()));
    store.check_invariants().unwrap();
}

#[test]
fn the_oldest_makes_room_deepest_first() {
    let fake = Fake::new(3);
    let (mut store, arena) = open(&fake, always());
    for n in 0..3 {
        arena.write(n).unwrap().copy_from_slice(&payload(u64::from(n), LEN));
    }
    store.put(&[offer(0, 0), offer(1, 1), offer(2, 2)], at(0)).unwrap();
    assert_eq!(finish(&mut store, at(0))[0].objects, [Ok(()); 3]);
    settle(&mut store, at(0));
    put(&mut store, &arena, 5, at(0)).unwrap(); // 2 is the deepest object of its call
    let here = |store: &Store, n| store.contains(&key(n), at(0)) == Presence::Here;
    assert_eq!([0, 1, 2, 5].map(|n| here(&store, n)), [true, true, false, true]);
    get(&mut store, &arena, 1, at(0)).unwrap();
    put(&mut store, &arena, 6, at(0)).unwrap();
    assert_eq!([0, 1, 5, 6].map(|n| here(&store, n)), [false, true, true, true]);
    assert_eq!((fake.objects(), store.stats().evicted), (3, 2));
}

#[test]
fn the_second_offer_is_written() {
    let (mut store, arena) = open(&Fake::new(4), StoreConfig::default());
    assert_eq!(put(&mut store, &arena, 1, at(0)), Err(Why::NotAdmitted));
    assert_eq!(put(&mut store, &arena, 1, at(0)), Ok(()));
    assert_eq!(put(&mut store, &arena, 1, at(0)), Ok(()));
    store.put(&[Put { admit: Some(Admit::Always), ..offer(2, 0) }], at(0)).unwrap();
    assert_eq!(settle(&mut store, at(0))[0].objects, [Ok(())]);
    let Stats { not_admitted, known, writes, .. } = store.stats();
    assert_eq!((not_admitted, known, writes), (1, 1, 2));
}

#[test]
fn a_failed_removal_is_repeated_until_it_succeeds() {
    let fake = Fake::new(4);
    let (mut store, arena) = open(&fake, always());
    put(&mut store, &arena, 1, at(0)).unwrap();
    fake.set(Mode::Fails);
    assert_eq!(store.remove(&[key(1), key(2)], at(0)), 1);
    assert_eq!(store.contains(&key(1), at(0)), Presence::Absent);
    while store.stats().failed < 2 {
        store.wait(at(0), crate::common::AGES, &mut Vec::new());
    }
    fake.set(Mode::Works);
    settle(&mut store, at(100));
    assert_eq!((fake.objects(), store.stats().bytes), (0, 0));
    store.check_invariants().unwrap();
}

#[test]
fn failures_are_misses_and_the_breaker_opens() {
    let fake = Fake::new(4);
    let breaker = BreakerConfig { failures: 3, pause: at(5) };
    let (mut store, arena) = open(&fake, StoreConfig { breaker, ..always() });
    put(&mut store, &arena, 1, at(0)).unwrap();
    fake.set(Mode::Fails);
    for _ in 0..2 {
        assert_eq!(get(&mut store, &arena, 1, at(0)), Err(Why::Failed));
    }
    fake.set(Mode::Panics);
    assert_eq!(get(&mut store, &arena, 1, at(0)), Err(Why::Failed));
    assert_eq!(store.stats().last_error.unwrap(), "fake panicked");
    let calls = fake.calls();
    fake.set(Mode::Works);
    assert_eq!(get(&mut store, &arena, 1, at(4)), Err(Why::Unavailable));
    assert_eq!(put(&mut store, &arena, 2, at(4)), Err(Why::Unavailable));
    assert_eq!(store.contains(&key(1), at(4)), Presence::Absent);
    assert_eq!((fake.calls(), store.stats().opened, store.stats().unavailable), (calls, 1, 2));
    assert_eq!(get(&mut store, &arena, 1, at(5)), Ok(()));
    assert_eq!(put(&mut store, &arena, 2, at(5)), Ok(()));
}

#[test]
fn a_full_back_end_is_read_still() {
    let fake = Fake::new(4);
    let (mut store, arena) =
        open(&fake, StoreConfig { breaker: BreakerConfig { failures: 1, pause: at(5) }, ..always() });
    put(&mut store, &arena, 1, at(0)).unwrap();
    fake.set(Mode::IsFull);
    store.put(&[offer(2, 2)], at(0)).unwrap();
    assert_eq!(finish(&mut store, at(0))[0].objects, [Err(Why::Full)]);
    fake.set(Mode::Works);
    assert_eq!(get(&mut store, &arena, 1, at(0)), Ok(()));
    settle(&mut store, at(0));
    assert_eq!((store.stats().full > 0, store.stats().opened), (true, 0));
    store.check_invariants().unwrap();
}

/// If reads never end, every call of this thread still returns, and loads miss at their deadline. Their
/// slots remain in use, except for loads that no worker has begun.
#[test]
fn a_stalled_back_end_is_one_that_misses() {
    let fake = Fake::new(4);
    let breaker = BreakerConfig { failures: 4, pause: at(5) };
    let (mut store, arena) = open(&fake, StoreConfig { queue: 4, deadline: at(2), breaker, ..always() });
    for n in 0..4 {
        put(&mut store, &arena, n, at(0)).unwrap();
    }
    fake.stall(true);
    let wanted: Vec<_> = (0..5).map(|n| want(n % 4, n as u32)).collect();
    store.get(&wanted, at(10)).unwrap();
    fake.until_waiting(2);
    let mut out = Vec::new();
    store.poll(at(11), &mut out);
    assert_eq!(out, []);
    assert!(matches!(store.get(&[want(1, 0)], at(11)), Err(StoreError::SlotBusy { slot: 0 })));
    store.poll(at(12), &mut out);
    let late = Err(Why::TimedOut);
    assert_eq!(out[0].objects, [late, late, late, late, Err(Why::Busy)]);
    // The store's two workers run two of the loads. At the deadline, the store has withdrawn the other loads,
    // which no worker had begun.
    let stats = store.stats();
    assert_eq!(
        (stats.quarantined, stats.in_flight, stats.timed_out, stats.opened, stats.busy),
        (2, 2, 4, 1, 1)
    );
    for slot in 0..2 {
        assert!(matches!(arena.write(slot), Err(StoreError::SlotBusy { .. })));
        assert!(matches!(arena.read(slot), Err(StoreError::SlotBusy { .. })));
    }
    assert!((2..8).all(|slot| arena.write(slot).is_ok()));
    // The circuit breaker is open, so the store sends no task. A place is not cleared while a load may
    // read it.
    store.get(&[want(3, 3)], at(13)).unwrap();
    assert_eq!(store.remove(&[key(0)], at(13)), 1);
    assert_eq!(store.put(&[offer(9, 4)], at(13)).map(|_| ()).ok(), Some(()));
    out.clear();
    store.poll(at(13), &mut out);
    assert_eq!(out.iter().map(|done| done.objects[0]).collect::<Vec<_>>(), [Err(Why::Unavailable); 2]);
    store.check_invariants().unwrap();
    // The back end works again. The late loads end, and the store does not report their results.
    fake.stall(false);
    assert_eq!(settle(&mut store, at(20)), []);
    assert_eq!((store.stats().quarantined, store.stats().loads, fake.has(0)), (0, 0, false));
    assert!((0..8).all(|slot| arena.write(slot).is_ok()));
    assert_eq!(get(&mut store, &arena, 1, at(20)), Ok(()));
    store.check_invariants().unwrap();
}

/// After a renewal to new weights, no load returns KV that was computed with the old weights. This also
/// holds for transfers that end later, and after a restart.
#[test]
fn a_store_that_is_renewed_serves_nothing_of_before() {
    let fake = Fake::new(4);
    let (mut store, arena) = open(&fake, always());
    put(&mut store, &arena, 1, at(0)).unwrap();
    fake.stall(true);
    store.put(&[offer(2, 2)], at(0)).unwrap();
    store.get(&[want(1, 1)], at(0)).unwrap();
    fake.until_waiting(2);
    store.renew(&namespace(2), at(0)).unwrap();
    assert!([1, 2].iter().all(|&n| store.contains(&key(n), at(0)) == Presence::Absent));
    let mut told = Vec::new();
    store.poll(at(0), &mut told);
    assert!(told.len() == 2 && told.iter().all(|job| job.objects == [Err(Why::Absent)]), "{told:?}");
    fake.stall(false);
    settle(&mut store, at(0));
    assert!([1, 2].iter().all(|&n| store.contains(&key(n), at(0)) == Presence::Absent && !fake.has(n)));
    put(&mut store, &arena, 1, at(0)).unwrap();
    assert_eq!(get(&mut store, &arena, 1, at(0)), Ok(()));
    assert_eq!((store.stats().objects, store.stats().removed), (1, 1));
    store.check_invariants().unwrap();
    store.close();
    let (store, _) = open(&fake, always());
    assert_eq!(
        (store.stats().restored, store.stats().foreign),
        (0, 1),
        "the weights that it starts with are the old ones"
    );
}

#[test]
fn a_store_that_is_renewed_to_its_own_namespace_begins_anew() {
    for fake in [Fake::new(4), Fake::shared(4)] {
        let (mut store, arena) = open(&fake, always());
        put(&mut store, &arena, 1, at(0)).unwrap();
        let before = store.namespace().clone();
        store.renew(&namespace(1), at(0)).unwrap();
        assert_ne!(*store.namespace(), before);
        // The back end of this test ignores the namespace in a name, so it may still return an old
        // object.
        assert!(matches!(get(&mut store, &arena, 1, at(0)), Err(Why::Absent | Why::Damaged)));
        settle(&mut store, at(0));
        put(&mut store, &arena, 1, at(0)).unwrap();
        let (other, _) = open(&fake, always());
        assert_eq!(other.namespace(), store.namespace(), "what is stored now is found by others");
    }
}

/// If the back end fails during a renewal, the call returns an error, and the store finds no earlier
/// object any more. The next renewal also records the failed one.
#[test]
fn a_renewal_that_is_not_recorded_forgets_and_is_recorded_by_the_next() {
    let fake = Fake::new(4);
    let (mut store, arena) = open(&fake, always());
    put(&mut store, &arena, 1, at(0)).unwrap();
    let before = store.namespace().clone();
    fake.set(Mode::Fails);
    let error = store.renew(&namespace(2), at(0)).unwrap_err();
    assert!(matches!(error, StoreError::NotRenewed(_)), "{error}");
    fake.set(Mode::Works);
    assert_eq!(get(&mut store, &arena, 1, at(0)), Err(Why::Absent));
    let unrecorded = store.namespace().clone();
    assert_eq!(unrecorded.without_generation(), namespace(2));
    assert_eq!(*open(&fake, always()).0.namespace(), before, "nothing was recorded");
    store.renew(&namespace(2), at(0)).unwrap();
    assert_ne!(*store.namespace(), unrecorded);
    assert_ne!(*open(&fake, always()).0.namespace(), before, "both renewals are recorded");
}

#[test]
fn a_namespace_with_a_generation_is_refused() {
    let fake = Fake::new(4);
    let (mut store, _) = open(&fake, always());
    let carried = store.namespace().clone();
    let refused =
        |error: StoreError| matches!(error, StoreError::InvalidConfig { field: "namespace.extra", .. });
    assert!(refused(store.renew(&carried, at(0)).unwrap_err()));
    assert_eq!(*store.namespace(), carried, "nothing has changed");
    let arena = Arena::new(1, LEN).unwrap();
    assert!(refused(Store::open(fake, arena, &carried, always()).unwrap_err()));
}

/// An engine reuses a slot as soon as its job is reported. A call that is still blocked in the back end
/// must neither keep the slot nor write to it.
#[test]
fn a_staged_transfer_lets_its_slot_go_with_its_job() {
    let fake = Fake::new(4);
    let (mut store, arena) = open(&fake, StoreConfig { staged: true, workers: 1, ..always() });
    put(&mut store, &arena, 1, at(0)).unwrap();
    fake.stall(true);
    store.get(&[want(1, 1)], at(0)).unwrap();
    fake.until_waiting(1);
    arena.write(1).unwrap_err(); // refused while the job is running
    store.put(&[offer(2, 2)], at(0)).unwrap(); // no worker is free to begin it
    let ended = finish(&mut store, at(10));
    assert_eq!(ended.iter().map(|job| job.objects[0]).collect::<Vec<_>>(), [Err(Why::TimedOut); 2]);
    assert_eq!(store.stats().quarantined, 1);
    arena.write(1).unwrap().fill(8);
    arena.write(2).unwrap().fill(8);
    fake.stall(false);
    settle(&mut store, at(10));
    assert!([1, 2].iter().all(|&slot| arena.read(slot).unwrap().iter().all(|&byte| byte == 8)));
    assert_eq!(get(&mut store, &arena, 1, at(10)), Ok(()), "nothing is wrong with the object itself");
    assert_eq!(store.stats().objects, 1);
    store.check_invariants().unwrap();

    // A write uses the slot only until its bytes are copied.
    fake.stall(true);
    store.put(&[offer(3, 2)], at(10)).unwrap();
    fake.until_waiting(1);
    arena.write(2).unwrap().fill(9);
    fake.stall(false);
    assert_eq!(finish(&mut store, at(10))[0].objects, [Ok(())]);
    store.get(&[want(3, 3)], at(10)).unwrap();
    assert_eq!(finish(&mut store, at(10))[0].objects, [Ok(())]);
    assert!(
        arena.read(3).unwrap()[..LEN as usize].iter().all(|&byte| byte == 8),
        "what was offered was written"
    );
}

/// A stalled write keeps its place until the write ends. The place is then cleared, because no entry of
/// the index refers to it.
#[test]
fn a_stalled_write_is_not_found() {
    let fake = Fake::new(1);
    let (mut store, arena) = open(&fake, StoreConfig { deadline: at(1), workers: 1, ..always() });
    fake.stall(true);
    store.put(&[offer(1, 0), offer(2, 1)], at(0)).unwrap();
    fake.until_waiting(1);
    assert_eq!(store.contains(&key(1), at(0)), Presence::Pending);
    store.get(&[want(1, 5)], at(0)).unwrap();
    let mut out = Vec::new();
    store.poll(at(0), &mut out);
    assert_eq!(out[0].objects, [Err(Why::Pending)]);
    out.clear();
    store.poll(at(1), &mut out);
    assert_eq!(out[0].objects, [Err(Why::TimedOut), Err(Why::NoRoom)]);
    assert_eq!((store.stats().bytes, store.contains(&key(1), at(1))), (8192, Presence::Absent));
    assert!(matches!(arena.write(0), Err(StoreError::SlotBusy { .. })), "the back end reads it still");
    fake.stall(false);
    settle(&mut store, at(1));
    settle(&mut store, at(1));
    assert_eq!((fake.objects(), store.stats().bytes), (0, 0));
    assert!(arena.write(0).is_ok());
    assert_eq!(put(&mut store, &arena, 2, at(1)), Ok(()));
    store.check_invariants().unwrap();
}

/// An object is evicted for a write that is later withdrawn. The evicted object must not appear again
/// after a restart.
#[test]
fn what_was_evicted_for_a_write_that_never_began_is_cleared() {
    let fake = Fake::new(2);
    let (mut store, arena) = open(&fake, StoreConfig { deadline: at(1), workers: 1, ..always() });
    put(&mut store, &arena, 1, at(0)).unwrap();
    put(&mut store, &arena, 2, at(0)).unwrap();
    fake.stall(true);
    store.get(&[want(2, 1)], at(0)).unwrap();
    fake.until_waiting(1);
    store.put(&[offer(3, 0)], at(0)).unwrap();
    store.poll(at(1), &mut Vec::new());
    fake.stall(false);
    settle(&mut store, at(1));
    assert_eq!([1, 2, 3].map(|n| fake.has(n)), [false, true, false]);
    store.check_invariants().unwrap();
}

#[test]
fn calls_that_are_wrong_change_nothing() {
    let (mut store, arena) = open(&Fake::new(2), always());
    let before = store.stats();
    let reading = arena.read(2).unwrap();
    let message = |result: Result<_, StoreError>| result.map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        message(store.get(&[want(1, 0), want(2, 8)], at(0))),
        "slot 8 is outside this arena: it has 8"
    );
    assert_eq!(
        message(store.get(&[want(1, 0), want(2, 0)], at(0))),
        "slot 0 is in use: a transfer or a guard has it"
    );
    assert_eq!(message(store.get(&[want(1, 2)], at(0))), "slot 2 is in use: a transfer or a guard has it");
    let long = Put { len: LEN + 1, ..offer(1, 0) };
    assert_eq!(message(store.put(&[long], at(0))), "a payload of 5001 bytes: from 1 to 5000 fit");
    assert_eq!(
        message(store.get(&[Get { len: 0, ..want(1, 0) }], at(0))),
        "a payload of 0 bytes: from 1 to 5000 fit"
    );
    drop(reading);
    assert!((0..8).all(|slot| arena.write(slot).is_ok()));
    assert_eq!(store.stats(), before);
    let mut out = Vec::new();
    store.poll(Duration::MAX, &mut out);
    assert_eq!(out, []);
    let none = StoreConfig { workers: 0, ..always() };
    let opened = Store::open(Fake::new(2), arena, &namespace(1), none);
    assert_eq!(opened.unwrap_err().to_string(), "workers is 0: must be at least 1");
}
