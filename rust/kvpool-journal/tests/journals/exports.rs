//! Tests the export of journals as tests. Exported tests equal the expected files in this folder, their
//! size is limited, and they are written piece by piece.

use std::io::Write;

use kvpool::groups::{GroupKind, GroupSpec, Groups, Keep};
use kvpool::retention::{Retention, RetentionConfig, Ttl};
use kvpool::{AdmitOptions, BlockPool, CacheManager, ExtraKeys, ManagerConfig, Part, PoolConfig, SwapId};
use kvpool_journal::{
    EXPORT_LIMIT, Journaled, Language, ManagerCalls, PoolCalls, ReplayError, VllmCalls, export,
};
use kvpool_vllm::{Key, Start};
use proptest::prelude::*;

use super::world::{
    EVENTS, any_settings, calls, recorded_manager, recorded_pool, ring, run_manager, run_pool,
};

pub(crate) fn exported(image: &[u8], language: Language) -> Result<String, ReplayError> {
    let mut text = Vec::new();
    export(image, language, EXPORT_LIMIT, &mut text, &mut |_| true)?;
    Ok(String::from_utf8(text).unwrap())
}

/// The exported texts equal the expected files. That these files compile and run is tested elsewhere:
/// `exported_manager.rs` and the others are themselves tests of this crate. `make journal-check`
/// compiles and runs exports that contain every call. With `KVPOOL_BLESS=1`, this test writes the
/// expected files again.
#[test]
fn exported_tests_are_these() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let bless = std::env::var_os("KVPOOL_BLESS").is_some();
    let images = [
        ("exported_manager.rs", scripted_manager()),
        ("exported_groups.rs", scripted_groups()),
        ("exported_pool.rs", scripted_pool()),
        ("exported_vllm.rs", scripted_vllm()),
    ];
    for (name, image) in images {
        let text = exported(&image, Language::Rust).unwrap();
        assert_eq!(text.lines().find(|line| line.len() > 110), None);
        let path = folder.join(name);
        if bless {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap();
        assert!(committed == text, "{name} is made anew with KVPOOL_BLESS=1");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any journal, every operation is in the exported test, and every line is printable ASCII of at
    /// most 110 columns.
    #[test]
    fn any_journal_is_exported(config in any_settings(), calls in calls(120), is_rust in any::<bool>()) {
        let language = if is_rust { Language::Rust } else { Language::Python };
        let mut manager = recorded_manager(config.clone(), EVENTS, ring(7));
        run_manager(&mut manager, &calls);
        let hashed_by = CacheManager::new(ManagerConfig { host_blocks: 0, ..config.clone() }).unwrap();
        let mut pool = recorded_pool(&config, EVENTS, ring(7));
        run_pool(&mut pool, &hashed_by, &calls);
        for mut journal in [manager.take_journal().unwrap(), pool.take_journal().unwrap()] {
            let text = exported(&journal.image().unwrap(), language).unwrap();
            let recounts = text.lines().filter(|line| line.contains("check_invariants()")).count();
            prop_assert_eq!(recounts as u64, journal.operations());
            for line in text.lines() {
                prop_assert!(line.len() <= 110, "{line}");
                prop_assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
            }
        }
    }
}

fn long(operations: usize) -> Vec<u8> {
    let mut pool =
        Journaled::<BlockPool>::with_journal(PoolConfig { num_blocks: 9, ..PoolConfig::default() }, ring(0))
            .unwrap();
    for _ in 0..operations / 2 {
        let blocks = pool.allocate(3).unwrap();
        pool.release(&blocks).unwrap();
    }
    pool.take_journal().unwrap().image().unwrap()
}

/// A writer that records its input, and refuses input that exceeds its capacity.
struct Narrow {
    room: usize,
    written: usize,
    largest: usize,
}

impl Write for Narrow {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.largest = self.largest.max(bytes.len());
        if self.written + bytes.len() > self.room {
            return Err(std::io::Error::other("no space left"));
        }
        self.written += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_export_is_bounded() {
    let image = long(20);
    for language in [Language::Rust, Language::Python] {
        let mut text = Vec::new();
        let refused = export(&image, language, 19, &mut text, &mut |_| true).unwrap_err();
        assert_eq!(refused, ReplayError::TooLong { operations: 20, limit: 19 });
        assert!(refused.to_string().contains("bisect and shrink it first, or raise the limit"));
        assert!(text.is_empty());
        assert_eq!(export(&image, language, 20, &mut text, &mut |_| true), Ok(20));
    }
}

/// The exporter does not store the text: each piece has at most a few lines, and the first piece that
/// the writer refuses ends the export.
#[test]
fn an_export_is_written_while_it_is_made() {
    for language in [Language::Rust, Language::Python] {
        let mut seen = [0; 2];
        for (operations, seen) in [100, 8000].into_iter().zip(&mut seen) {
            let mut out = Narrow { room: usize::MAX, written: 0, largest: 0 };
            export(&long(operations), language, EXPORT_LIMIT, &mut out, &mut |_| true).unwrap();
            assert!(out.written > operations * 50);
            *seen = out.largest;
        }
        assert_eq!(seen[0], seen[1]);
        let mut out = Narrow { room: 30_000, written: 0, largest: 0 };
        let refused = export(&long(8000), language, EXPORT_LIMIT, &mut out, &mut |_| true).unwrap_err();
        assert_eq!(refused, ReplayError::Write("no space left".into()));
        assert!(out.written > 25_000);
    }
}

/// If Python does not support a call of vLLM's pool, the export to Python is refused and names the
/// operation. Rust supports such calls.
#[test]
fn what_python_cannot_ask_is_refused_by_name() {
    let mut pool = super::vllm::recorded(9, true, kvpool_policies::LRU);
    let mut held = Vec::new();
    pool.allocate(2, &mut held, None).unwrap();
    // A refused call changes nothing, so the export omits it.
    pool.touch(&[99]).unwrap_err();
    pool.cache_full(
        Start::at(0),
        &held,
        |at: usize| Key::new(&[7; 32], at as u32).ok(),
        4,
        &mut Vec::new(),
        None,
    )
    .unwrap();
    let image = pool.take_journal().unwrap().image().unwrap();
    assert!(exported(&image, Language::Rust).is_ok());
    let refused = exported(&image, Language::Python).unwrap_err();
    assert!(matches!(refused, ReplayError::NoCall { operation: 2, .. }), "{refused}");
    assert!(refused.to_string().contains("several groups"));
}

/// Python cannot pass a negative time to live. The export omits a hint that was refused.
#[test]
fn a_hint_that_python_cannot_make_is_refused_by_name() {
    for retention in [None, Some(RetentionConfig::default())] {
        let is_refused = retention.is_none();
        let config =
            PoolConfig { num_blocks: 9, eviction: kvpool_policies::LRU, retention, ..PoolConfig::default() };
        let mut pool = Journaled::<BlockPool>::with_journal(config, ring(0)).unwrap();
        let hint =
            Retention { ttl: Some(Ttl::Idle(-1.0)), ..Retention::of(kvpool::retention::Keep::Demoted) };
        assert_eq!(pool.retain(&[], hint).is_err(), is_refused);
        let image = pool.take_journal().unwrap().image().unwrap();
        match exported(&image, Language::Python) {
            Ok(text) => assert!(is_refused && text.contains("# Python cannot ask this"), "{text}"),
            Err(ReplayError::NoCall { operation: 0, reason }) => {
                assert!(!is_refused && reason.contains("time to live"), "{reason}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Generates calls of these kinds ([`super::world::Call`]). The arguments are the same in every run of
/// the test.
fn script(kinds: impl IntoIterator<Item = u8>, seed: u32) -> Vec<super::world::Call> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8 ^ state >> 19
    };
    kinds.into_iter().map(|kind| (kind, next(), next(), next())).collect()
}

fn scripted_settings() -> ManagerConfig {
    ManagerConfig {
        num_blocks: 64,
        block_size: 2,
        host_blocks: 32,
        eviction: kvpool_policies::LRU,
        retention: Some(RetentionConfig { pin_budget: 2, tenants: Vec::new() }),
        ..ManagerConfig::default()
    }
}

/// An id with quotes, a comma and a backslash, that is too long for one literal of an exported test.
const LONG_ID: &str =
    "a fork, \"of\" the request 93 \\, whose id does not fit into one literal of an exported test";

/// Makes calls with valid arguments. With random arguments, a manager would refuse most of them.
fn accepted(manager: &mut Journaled<CacheManager>) {
    let prompt = |manager: &CacheManager, last: u32| {
        manager.prepare(&[1, 2, 3, 4, last], ExtraKeys::default()).unwrap()
    };
    let hints = AdmitOptions::default();
    for id in 90..94 {
        manager.admit(id.into(), prompt(manager, id as u32), &AdmitOptions::default()).unwrap();
    }
    manager.append_tokens(90.into(), &[7, 8, 9], &[], 2).unwrap();
    manager.commit_batch(&[90.into(), 91.into()], &[8, 5]).unwrap();
    manager.trim_window(90.into(), 2).unwrap();
    manager.begin_swap_out(&[91.into()]).unwrap();
    manager.take_plan().unwrap();
    manager.complete_swap(SwapId::from_number(0)).unwrap();
    manager.begin_swap_in(&[91.into()]).unwrap();
    manager.take_plan().unwrap();
    manager.complete_swap(SwapId::from_number(1)).unwrap();
    manager.preempt(92.into(), kvpool::Until::Now).unwrap();
    manager.fork(93.into(), LONG_ID.into()).unwrap();
    let mut plan = manager.plan_step();
    let cursor = prompt(manager, 5);
    manager.plan_admit_with(&mut plan, 95, cursor, &hints).unwrap();
    manager.plan_resume(&mut plan, 92).unwrap();
    manager.plan_append(&mut plan, 91, &[1, 2, 3], 0).unwrap();
    manager.plan_preempt(&mut plan, 93, None).unwrap();
    manager.plan_release(&mut plan, 90, Some(3)).unwrap();
    manager.commit_step(&mut plan).unwrap();
    manager.complete_step(3).unwrap();
    // Use one prompt before and after the start of a new epoch, and for a request that is preempted
    // before and resumed after it.
    manager.preempt(92.into(), kvpool::Until::Now).unwrap();
    manager.bump_epoch().unwrap();
    manager.admit("again".into(), prompt(manager, 6), &AdmitOptions::default()).unwrap();
    manager.commit("again".into(), 5).unwrap();
    assert_eq!(manager.resume(92.into(), Part::WHOLE).unwrap().cached_tokens, 4);
    manager.admit((-7).into(), prompt(manager, 8), &hints).unwrap();
    let requests = [91.into(), 92.into(), 93.into(), 95.into(), LONG_ID.into(), "again".into(), (-7).into()];
    manager.release_batch(&requests, kvpool::Until::Now).unwrap();
    manager.reset().unwrap();
    let num_blocks = manager.pool().num_blocks() + 1;
    manager.resize(num_blocks).unwrap();
}

fn scripted_manager() -> Vec<u8> {
    let mut manager = recorded_manager(scripted_settings(), 8, ring(1));
    accepted(&mut manager);
    manager.take_journal().unwrap().image().unwrap()
}

fn scripted_groups() -> Vec<u8> {
    let window = GroupSpec { keep: Keep::Every(6), ..GroupSpec::new(GroupKind::Sliding { window: 3 }, 4) };
    let sink = GroupSpec { sink_tokens: 3, ..GroupSpec::new(GroupKind::Sliding { window: 3 }, 2) };
    let draft = GroupSpec { keep: Keep::Nothing, ..GroupSpec::new(GroupKind::Full, 2) };
    let kinds = [GroupKind::Full, GroupKind::State, GroupKind::Chunked { chunk: 5 }, GroupKind::Cross];
    let specs = kinds.map(|kind| GroupSpec::new(kind, 2)).into_iter().chain([window, sink, draft]).collect();
    let groups = Some(Groups::new(specs, Some(2)).unwrap());
    let config = ManagerConfig { num_blocks: 128, retention: None, groups, ..scripted_settings() };
    let mut manager = recorded_manager(config, 8, ring(1));
    for turn in 0..3 {
        // If a commit ends at the end of a prompt, the state at this position remains cached.
        let prompt = manager.prepare(&[1, 2, 3, 4, 5, 6, 7, 8, turn], ExtraKeys::default()).unwrap();
        let part = Part { allocate_tokens: Some(8), external_tokens: 0, compute_all: turn == 2 };
        let options = AdmitOptions { part, ..AdmitOptions::default() };
        let admitted = manager.admit("kept".into(), prompt, &options).unwrap();
        assert_eq!(admitted.cached_tokens, [0, 8, 0][turn as usize]);
        manager.extend_encoder("kept".into(), 3).unwrap();
        manager.commit("kept".into(), 8).unwrap();
        manager.append_tokens("kept".into(), &[7, 8], &[], 2).unwrap();
        manager.take_plan().unwrap();
        manager.release("kept".into(), kvpool::Until::Now).unwrap();
    }
    manager.take_journal().unwrap().image().unwrap()
}

/// The exported test for a manager with groups creates the same manager, and compares the block tables
/// of each group.
#[test]
fn an_exported_python_test_knows_the_groups() {
    let text = exported(&scripted_groups(), Language::Python).unwrap().replace(",\n            ", ", ");
    for part in [
        "groups=[kvpool.GroupSpec(\"full\", 2), kvpool.GroupSpec(\"state\", 2), \
         kvpool.GroupSpec(\"chunked\", 2, chunk=5), kvpool.GroupSpec(\"cross\", 2), \
         kvpool.GroupSpec(\"sliding\", 4, window=3, keep=6), kvpool.GroupSpec(\"sliding\", 2, window=3, \
         sink=3), \
         kvpool.GroupSpec(\"full\", 2, keep=\"none\")]",
        "allocate_tokens=8, reuse=False",
        "    columns = 4\n",
        // This call allocates two blocks of the group that caches the encoder's output.
        "answer(manager.extend, \"kept\", 3, encoder=True) == [[0, 20, 3], [1, 21, 3]]",
    ] {
        assert!(text.contains(part), "{part}");
    }
    let plain = exported(&scripted_manager(), Language::Python).unwrap();
    assert!(plain.contains("    columns = 3\n") && !plain.contains("groups="));
}

fn scripted_pool() -> Vec<u8> {
    let hashed_by = CacheManager::new(scripted_settings()).unwrap();
    let mut pool = recorded_pool(&scripted_settings(), 8, ring(1));
    run_pool(
        &mut pool,
        &hashed_by,
        &script([0, 9, 13, 0, 8, 4, 12, 16, 19, 17, 20, 21, 22, 23, 24, 25, 26, 27, 28], 6),
    );
    pool.take_journal().unwrap().image().unwrap()
}

fn scripted_vllm() -> Vec<u8> {
    let mut pool = super::vllm::recorded(14, true, kvpool_policies::S3_FIFO);
    super::vllm::run(&mut pool, &script(0..34, 1));
    pool.take_journal().unwrap().image().unwrap()
}
