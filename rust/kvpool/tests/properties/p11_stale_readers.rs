//! Property 11: if a reader copies the bytes of a block and then checks that the block was not changed,
//! it never accepts data of a later owner.
//!
//! In mooncake#850 and vllm#47021, a reader checked that its block was still present. The block was
//! present, but it had another owner.
//!
//! An implementation fails this test if some changes do not increment the version, or if it uses the
//! number of a swap again.
//!
//! There are three ways to read blocks safely. A plan is refused after any change. The number of a swap
//! is used only once. A reader that holds references to the blocks needs no check.

use super::histories::*;
use super::*;

/// Returns the state that a reader outside of the manager can see.
fn looked_at(engine: &Engine) -> impl PartialEq + std::fmt::Debug + use<> {
    let manager = &engine.manager;
    let tables: Vec<_> = (0..4).map(|id| manager.block_table(id).ok().map(<[_]>::to_vec)).collect();
    let pool = manager.pool();
    let blocks = |b| (pool.ref_count(b), pool.hash_of(b), pool.is_computed(b));
    (tables, all_blocks(pool).map(blocks).collect::<Vec<_>>(), engine.memory.clone())
}

proptest! {
    /// Tests vllm#47021 for a reader outside of the manager. The reader begins an empty plan before it
    /// reads, and commits the plan afterwards. The commit is refused if any state that the reader may
    /// have seen has changed, even if it changed back.
    #[test]
    fn property_11_a_plan_from_before_a_read_detects_any_change(
        usable in 3usize..9,
        calls in calls(),
        extra in prop::collection::vec((0usize..3, 0i64..4, 1usize..6), 80),
    ) {
        let mut engine = Engine::new(usable);
        let (mut plan, mut seen) = (engine.manager.plan_step(), looked_at(&engine));
        let mut next = extra.into_iter();
        play(&mut engine, &calls, |engine| {
            // Some calls come from outside of the engine, such as the removal of a cached block.
            match next.next() {
                Some((0, _, block)) => {
                    let block = BlockId::new(block.min(engine.memory.len() - 1) as u32);
                    engine.manager.drop_cached(&[block]).unwrap();
                }
                Some((1, id, _)) if engine.is_running(id) => {
                    engine.manager.fork(id, 9).unwrap();
                    engine.manager.release(9, None).unwrap();
                }
                _ => {}
            }
            let now = looked_at(engine);
            let unchanged = engine.manager.commit_step(&mut plan).is_ok();
            assert!(!unchanged || now == seen, "the plan was good for what is no longer there");
            (plan, seen) = (engine.manager.plan_step(), now);
        });
    }
}

/// After a block has changed its owner twice, its state is as before. The check of the reader still
/// fails, because the version only increases.
#[test]
fn property_11_a_change_and_its_reversal_count_as_a_change() {
    let prompt = [1, 2, 3];
    type Act = fn(&mut Engine);
    let acts: [(&str, Act); 6] = [
        ("released and admitted", |engine| {
            engine.release(0, None);
            engine.admit(0, &[1, 2, 3]).unwrap();
        }),
        ("preempted and resumed", |engine| {
            engine.manager.preempt(0, None).unwrap();
            engine.resume(0).unwrap();
        }),
        ("rolled back and appended", |engine| {
            engine.manager.truncate(0, 2, None).unwrap();
            engine.manager.append_tokens(0, &[3], 0).unwrap();
        }),
        ("appended and rolled back", |engine| {
            engine.manager.append_tokens(0, &[4, 5], 0).unwrap();
            engine.manager.truncate(0, 3, None).unwrap();
        }),
        ("swapped out and in", |engine| {
            for out in [true, false] {
                let manager = &mut engine.manager;
                let ids = [0.into()];
                let swap = if out { manager.begin_swap_out(&ids) } else { manager.begin_swap_in(&ids) };
                manager.take_plan().unwrap();
                manager.complete_swap(swap.unwrap()).unwrap();
            }
        }),
        ("a swap that was taken back", |engine| {
            let swap = engine.manager.begin_swap_out(&[0.into()]).unwrap();
            engine.manager.abort_swap(swap).unwrap();
        }),
    ];
    for (name, act) in acts {
        let mut engine = Engine::new(4);
        let (num_blocks, host_blocks) = (5, 5);
        let config = ManagerConfig { num_blocks, host_blocks, block_size: B, ..Default::default() };
        engine.manager = CacheManager::new(config).unwrap();
        engine.admit(0, &prompt).unwrap();
        let (mut plan, seen) = (engine.manager.plan_step(), looked_at(&engine));
        act(&mut engine);
        assert_eq!(looked_at(&engine), seen, "{name}: the same blocks as before");
        assert_eq!(engine.manager.commit_step(&mut plan), Err(ManagerError::StaleStep), "{name}");
    }
}

/// Each call that changes a table, or the holders of a block, makes the plans stale that were begun
/// before it.
#[test]
fn property_11_every_call_that_moves_a_block_ends_earlier_plans() {
    type Act = fn(&mut CacheManager);
    let acts: [(&str, Act); 14] = [
        ("admit", |manager| drop(manager.admit(9, manager.prepare(&[8], ExtraKeys::default()).unwrap()))),
        ("append", |manager| drop(manager.append(&[0.into()], &[4], Computed::Nothing).unwrap())),
        ("append_tokens", |manager| drop(manager.append_tokens(0, &[4], 0).unwrap())),
        ("commit", |manager| assert_eq!(manager.commit(0, 5).unwrap(), 1)),
        ("commit_batch", |manager| assert_eq!(manager.commit_batch(&[0.into()], &[5]).unwrap(), 1)),
        ("truncate", |manager| manager.truncate(0, 4, None).unwrap()),
        ("trim_window", |manager| assert_eq!(manager.trim_window(0, 1).unwrap(), 1)),
        ("fork", |manager| manager.fork(0, 9).unwrap()),
        ("preempt", |manager| manager.preempt(0, Some(3)).unwrap()),
        ("release", |manager| manager.release(0, Some(3)).unwrap()),
        ("begin_swap_out", |manager| assert_eq!(manager.begin_swap_out(&[0.into()]).unwrap().get(), 0)),
        ("drop_cached", |manager| assert_eq!(manager.drop_cached(&ids(&[1])).unwrap(), 1)),
        ("bump_epoch", |manager| assert_eq!(manager.bump_epoch().unwrap(), 1)),
        ("resize", |manager| manager.resize(12).unwrap()),
    ];
    for (name, act) in acts {
        let (num_blocks, host_blocks) = (9, 9);
        let config = ManagerConfig { num_blocks, host_blocks, block_size: B, ..Default::default() };
        let mut manager = CacheManager::new(config).unwrap();
        let prompt = manager.prepare(&[1, 2, 3, 4, 5], ExtraKeys::default()).unwrap();
        manager.admit(0, prompt).unwrap();
        manager.commit(0, 3).unwrap();
        let mut undisturbed = manager.plan_step();
        assert_eq!(manager.commit_step(&mut undisturbed), Ok(Vec::new()));
        let mut plan = manager.plan_step();
        act(&mut manager);
        assert_eq!(manager.commit_step(&mut plan), Err(ManagerError::StaleStep), "{name}");
        manager.check_invariants().unwrap();
    }
}

/// The number of a finished swap is never used again. So a late completion or abort of that swap does
/// not affect a later swap.
#[test]
fn property_11_a_late_message_of_a_swap_does_not_end_another_one() {
    let (num_blocks, host_blocks) = (5, 5);
    let config = ManagerConfig { num_blocks, host_blocks, block_size: B, ..Default::default() };
    let mut manager = CacheManager::new(config).unwrap();
    manager.admit(0, manager.prepare(&[1, 2, 3], ExtraKeys::default()).unwrap()).unwrap();
    let mut over = Vec::new();
    for round in 0..12usize {
        let (ids, out) = ([0.into()], manager.request(0).unwrap().tier == 0);
        let swap = if out { manager.begin_swap_out(&ids) } else { manager.begin_swap_in(&ids) }.unwrap();
        assert!(!over.contains(&swap), "{swap:?} is used twice");
        manager.take_plan().unwrap();
        for &late in &over {
            let unknown = ManagerError::Tier(TierError::UnknownSwap { swap: SwapId::get(late) });
            assert_eq!(manager.complete_swap(late), Err(unknown.clone()));
            assert_eq!(manager.abort_swap(late), Err(unknown));
            assert_eq!(manager.request(0).unwrap().state, RequestState::Moving);
        }
        if round % 3 == 2 {
            manager.abort_swap(swap).unwrap();
        } else {
            manager.complete_swap(swap).unwrap();
        }
        manager.check_invariants().unwrap();
        over.push(swap);
    }
}

/// A reader that has references to the blocks of a lookup reads the expected bytes, whatever other
/// requests do. It needs no check.
#[test]
fn property_11_a_reader_that_holds_a_match_reads_its_content() {
    every_history(4, |world, act, history| {
        let chain = world.prompt();
        let found = world.pool.match_and_acquire(chain, 2).unwrap();
        let before = world.tables.len();
        world.act(act);
        for table in world.tables.iter().skip(before) {
            let hit = world.pool.is_registered(table[0]);
            assert!(hit || table.iter().all(|block| !found.contains(block)), "{history:?}: {table:?}");
        }
        let own = found.iter().all(|&block| world.pool.num_holders(block) > 0);
        assert!(own, "{history:?}: {found:?} is given up under its reader");
    });
}
