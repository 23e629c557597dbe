//! Tests the transfer engine under shuttle, compiled from its own sources: its worker thread, the
//! threads that submit, wait and poll, and its shutdown.
//!
//! This is the engine of the CPU. `tests/transfer` tests the code for devices, with a fake driver.

#![expect(clippy::expect_used, reason = "helpers of tests may panic as tests do")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Counter, Ordering};

use common::{check, together};
use kvpool_transfer_shuttle::{
    After, Device, EngineConfig, HostOptions, Options, Region, Store, Transfer, TransferEngine, TransferError,
};

const BLOCKS: i64 = 6;

/// Returns a store that owns its host memory. Each block is filled with its block number.
fn store() -> Arc<Store> {
    // This byte is never read. It only describes the layout of a block.
    let mut byte = [0_u8; 1];
    let regions = vec![Region { base: byte.as_mut_ptr() as u64, stride: 1, nbytes: 1 }];
    // SAFETY: the only block is the byte above, and nothing is copied from it or to it.
    let like = unsafe { Store::new(regions, 1, Device::Cpu, vec![], false, None) }.expect("a layout");
    let options = HostOptions { pinned: Some(false), ..HostOptions::default() };
    let store = Store::host(BLOCKS as u64, &like, &options).expect("memory");
    for block in 0..BLOCKS {
        store.write_block(block, &[block as u8 + 1]).expect("a block");
    }
    store
}

fn engine() -> Arc<TransferEngine> {
    TransferEngine::new(Device::Cpu, EngineConfig { threads: 1, ..EngineConfig::default() })
        .expect("an engine")
}

fn submit(
    engine: &Arc<TransferEngine>,
    store: &Arc<Store>,
    pair: (i64, i64),
    after: After,
) -> Result<Arc<Transfer>, TransferError> {
    engine.submit(store, store, [pair].into_iter(), &Options { after, ..Options::default() })
}

fn content(store: &Store, block: i64) -> u8 {
    store.read_block(block).expect("a block")[0]
}

/// No wake-up is lost: threads that wait for one transfer, wait for all transfers, or poll are notified
/// of every finished transfer.
#[test]
fn every_end_is_reported_to_waiting_threads() {
    check(|| {
        let (engine, store) = (engine(), store());
        let first = submit(&engine, &store, (0, 1), After::Nothing).expect("checked");
        let polled = Arc::new(Counter::new(0));
        let waits = {
            let first = first.clone();
            move || first.wait(None).expect("copied")
        };
        let submits = {
            let (engine, store, first) = (engine.clone(), store.clone(), first.clone());
            move || {
                let second = submit(&engine, &store, (1, 2), After::Transfer(first)).expect("checked");
                second.wait(None).expect("copied");
                assert_eq!(content(&store, 2), 1, "it did not wait for what it is after");
            }
        };
        let polls = {
            let (engine, polled) = (engine.clone(), polled.clone());
            move || {
                polled.fetch_add(engine.poll().expect("no device").len(), Ordering::Relaxed);
                engine.wait_all(None).expect("no limit");
            }
        };
        together(vec![Box::new(waits), Box::new(submits), Box::new(polls)]);
        assert_eq!((engine.num_in_flight(), content(&store, 1)), (0, 1));
        // A wait may have reported a finished transfer before a poll did. After both, no finished
        // transfer is unreported.
        assert!(polled.load(Ordering::Relaxed) <= 2);
        assert!(engine.poll().expect("no device").is_empty());
        engine.close();
    });
}

/// `poll` reports each finished transfer once, to one of the polling threads.
#[test]
fn an_end_is_polled_once() {
    check(|| {
        let (engine, store) = (engine(), store());
        for block in 1..4 {
            submit(&engine, &store, (0, block), After::Nothing).expect("checked");
        }
        let poll = |engine: Arc<TransferEngine>| {
            move || {
                let some: Vec<_> =
                    engine.poll().expect("no device").iter().map(|transfer| transfer.id).collect();
                engine.wait_all(None).expect("no limit");
                some.into_iter()
                    .chain(engine.poll().expect("no device").iter().map(|one| one.id))
                    .collect::<Vec<_>>()
            }
        };
        let polled = together(vec![Box::new(poll(engine.clone())), Box::new(poll(engine.clone()))]);
        let mut polled: Vec<_> = polled.into_iter().flatten().collect();
        polled.sort_unstable();
        assert_eq!(polled, [0, 1, 2]);
        engine.close();
    });
}

/// The number of transfers that an engine stores is bounded under every schedule. At the limit, a
/// thread that submits waits for the oldest transfer, and this wait ends. `MAX_UNREPORTED` is 2 under
/// shuttle, so the engine stores 4 transfers. Each thread uses two engines, and its transfers wait for
/// one another.
#[test]
fn a_thread_that_submits_too_much_waits() {
    let untold = Arc::new(Counter::new(0));
    let seen = untold.clone();
    check(move || {
        let (one, two, store) = (engine(), engine(), store());
        let submits = |engine: Arc<TransferEngine>, other: Arc<TransferEngine>, block: i64| {
            let store = store.clone();
            move || {
                let mut last = submit(&other, &store, (0, block), After::Nothing).expect("checked");
                for _ in 0..4 {
                    last = submit(&engine, &store, (0, block), After::Transfer(last)).expect("checked");
                    assert!(engine.num_in_flight() <= 4, "{} under way", engine.num_in_flight());
                }
                last.wait(None).expect("copied");
            }
        };
        together(vec![
            Box::new(submits(one.clone(), two.clone(), 1)),
            Box::new(submits(one.clone(), two.clone(), 2)),
            Box::new(submits(two.clone(), one.clone(), 3)),
        ]);
        one.close();
        two.close();
        for engine in [one, two] {
            let told = engine.poll().expect("no device").len();
            assert!((1..=4).contains(&told), "{told} kept");
            seen.fetch_max(told, Ordering::Relaxed);
        }
        assert_eq!([1, 2, 3].map(|block| content(&store, block)), [1, 1, 1]);
    });
    assert_eq!(untold.load(Ordering::Relaxed), 4, "the bound was never reached");
}

/// `close` refuses later transfers and waits for earlier ones. Nothing is copied after `close` has
/// returned.
#[test]
fn after_close_nothing_is_under_way() {
    let outcomes = Arc::new([const { Counter::new(0) }; 2]);
    let counted = outcomes.clone();
    check(move || {
        let (engine, store) = (engine(), store());
        let submits = |block: i64| {
            let (engine, store, outcomes) = (engine.clone(), store.clone(), counted.clone());
            move || match submit(&engine, &store, (0, block), After::Nothing) {
                Ok(transfer) => {
                    transfer.wait(None).expect("copied");
                    assert_eq!(content(&store, block), 1);
                    outcomes[0].fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    assert_eq!(error, TransferError::EngineClosed);
                    outcomes[1].fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let closes = {
            let (engine, store) = (engine.clone(), store.clone());
            move || {
                engine.close();
                let before: Vec<_> = (1..3).map(|block| content(&store, block)).collect();
                shuttle::thread::yield_now();
                assert!(matches!(
                    submit(&engine, &store, (0, 5), After::Nothing),
                    Err(TransferError::EngineClosed)
                ));
                assert_eq!(before, (1..3).map(|block| content(&store, block)).collect::<Vec<_>>());
                assert_eq!(engine.num_in_flight(), 0);
            }
        };
        together(vec![Box::new(submits(1)), Box::new(submits(2)), Box::new(closes)]);
        assert_eq!(content(&store, 5), 6);
    });
    assert!(outcomes.iter().all(|outcome| outcome.load(Ordering::Relaxed) > 100), "one side only");
}

/// Two threads call `close`, and both calls return.
#[test]
fn two_threads_can_close_an_engine_at_once() {
    check(|| {
        let (engine, store) = (engine(), store());
        let transfer = submit(&engine, &store, (0, 1), After::Nothing).expect("checked");
        let close = |engine: Arc<TransferEngine>| move || engine.close();
        together(vec![Box::new(close(engine.clone())), Box::new(close(engine.clone()))]);
        transfer.wait(None).expect("copied");
        assert_eq!(content(&store, 1), 1);
    });
}

/// Before an engine is dropped, it finishes the transfers that it accepted, even if the worker thread
/// holds the last reference to the engine.
#[test]
fn a_dropped_engine_finishes_its_work() {
    check(|| {
        let (engine, store) = (engine(), store());
        let transfer = submit(&engine, &store, (0, 1), After::Nothing).expect("checked");
        let waits = {
            let transfer = transfer.clone();
            move || transfer.wait(None).expect("copied")
        };
        together(vec![Box::new(waits), Box::new(move || drop(engine))]);
        assert_eq!((content(&store, 1), transfer.error()), (1, None));
    });
}

/// Transfers of two engines finish if each one waits for the previous one, which the other engine runs.
#[test]
fn engines_wait_for_each_other() {
    check(|| {
        let (one, two, store) = (engine(), engine(), store());
        let first = submit(&one, &store, (0, 1), After::Nothing).expect("checked");
        let second = submit(&two, &store, (1, 2), After::Transfer(first)).expect("checked");
        let third = submit(&one, &store, (2, 3), After::Transfer(second)).expect("checked");
        let end = |engine: Arc<TransferEngine>| move || engine.close();
        together(vec![Box::new(end(one)), Box::new(end(two))]);
        third.wait(None).expect("copied");
        assert_eq!([1, 2, 3].map(|block| content(&store, block)), [1, 1, 1]);
    });
}

/// Copies in both directions between two stores exclude each other. None of them waits forever, because
/// an engine locks the stores in a fixed order.
#[test]
fn copies_in_both_directions_do_not_wait_for_each_other() {
    let outcomes = Arc::new([const { Counter::new(0) }; 2]);
    let counted = outcomes.clone();
    check(move || {
        let (from, to) = (store(), store());
        from.write_block(0, &[9]).expect("a block");
        let copies = |src: &Arc<Store>, dst: &Arc<Store>, pair: (i64, i64)| {
            let (src, dst) = (src.clone(), dst.clone());
            move || {
                let engine = engine();
                let transfer = engine.submit(&src, &dst, [pair].into_iter(), &Options::default());
                transfer.expect("checked").wait(None).expect("copied");
                engine.close();
            }
        };
        let reads = {
            let (from, to) = (from.clone(), to.clone());
            move || {
                assert!(
                    [&from, &to]
                        .iter()
                        .zip([0, 1])
                        .all(|(store, block)| [2, 9].contains(&content(store, block)))
                );
            }
        };
        together(vec![
            Box::new(copies(&from, &to, (0, 1))),
            Box::new(copies(&to, &from, (1, 0))),
            Box::new(reads),
        ]);
        // One of the two copies ran first, and the other one copied its result back.
        let last = content(&from, 0);
        assert_eq!(last, content(&to, 1));
        counted[usize::from(last == 9)].fetch_add(1, Ordering::Relaxed);
    });
    assert!(outcomes.iter().all(|outcome| outcome.load(Ordering::Relaxed) > 100), "one order only");
}

/// A closed store accepts no new transfers. Transfers that it accepted before are finished.
#[test]
fn a_store_is_closed_while_others_submit() {
    check(|| {
        let (engine, from, to) = (engine(), store(), store());
        let submits = {
            let (engine, from, to) = (engine.clone(), from.clone(), to.clone());
            move || match engine.submit(&from, &to, [(0, 1)].into_iter(), &Options::default()) {
                Ok(transfer) => transfer.wait(None).map(|()| true).expect("copied"),
                Err(error) => {
                    assert!(matches!(error, TransferError::StoreClosed { .. }));
                    false
                }
            }
        };
        let closes = {
            let from = from.clone();
            move || {
                from.close();
                true
            }
        };
        let copied = together(vec![Box::new(submits), Box::new(closes)])[0];
        assert_eq!(content(&to, 1), if copied { 1 } else { 2 });
        let late = engine.submit(&from, &to, [(0, 2)].into_iter(), &Options::default());
        assert!(matches!(late, Err(TransferError::StoreClosed { .. })));
        engine.close();
    });
}
