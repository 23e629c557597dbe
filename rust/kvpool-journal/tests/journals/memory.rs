//! Journals that need more memory than is available are refused with a clear error. Each test runs in a
//! separate process that has little memory.

use std::process::Command;

use kvpool::{CacheManager, ManagerConfig, Until};
use kvpool_journal::{
    AppendRecord, Entry, Filled, Journal, JournalConfig, JournalFile, JournalHeader, Journaled, Language,
    ManagerCall, ManagerCalls, Name, Observers, Options, ReplayError, Rows, TurnRecord, bisect, compare,
    export, observe, replay, show,
};

use super::world::ring;

/// Runs a test of this program in a new process whose address space is limited to this number of MiB.
fn with_little_memory(test: &str, mib: usize) -> std::process::Output {
    let limited = format!("ulimit -v {}; exec \"$0\" \"$@\"", mib << 10);
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &limited]).arg(program).args(["--exact", test, "--ignored", "--nocapture"]);
    command.output().unwrap()
}

#[test]
fn a_journal_that_asks_for_too_much_is_refused() {
    for test in ["memory::of_a_huge_pool_of_vllms", "memory::of_a_huge_append"] {
        let done = with_little_memory(test, 1024);
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{test}: {done:?}");
    }
}

#[test]
#[ignore = "runs with little memory, started by another"]
fn of_a_huge_pool_of_vllms() {
    // The arrays of this pool fit into memory, but the table of its keys does not.
    let header =
        JournalHeader::of_vllm_pool(20_000_000, kvpool_policies::LRU, None, true, JournalConfig::default());
    let mut journal = ring(0);
    journal.begin(&header);
    let refused = replay(&journal.image().unwrap(), Options::default(), &mut |_| true).unwrap_err();
    assert!(refused.to_string().contains("fit in memory"), "{refused}");
}

#[test]
#[ignore = "runs with little memory, started by another"]
fn of_a_huge_append() {
    let config = ManagerConfig { num_blocks: 8, ..ManagerConfig::default() };
    let image = Journaled::<CacheManager>::with_journal(config, ring(0)).unwrap().journal_image().unwrap();
    let (request, filled) = (Name::Id("a".into()), Filled::default());
    let turn = TurnRecord { request, tokens: 1 << 40, lookahead: 0, filled };
    let operation = ManagerCall::AppendTokens { turn };
    let forged = super::forged::journal(&image, &[(0, Entry::Operation(operation, 0))]);
    let refused = replay(&forged, Options::default(), &mut |_| true).unwrap_err();
    assert!(matches!(refused, ReplayError::TooManyTokens { tokens: 1_099_511_627_776, .. }), "{refused}");
}

/// A record of a few bytes that specifies four billion tokens is refused, although many machines have
/// enough memory for them.
#[test]
fn an_append_with_more_tokens_than_a_call_can_have_is_refused() {
    let config = ManagerConfig { num_blocks: 8, ..ManagerConfig::default() };
    let image = Journaled::<CacheManager>::with_journal(config, ring(0)).unwrap().journal_image().unwrap();
    let (tokens, limit) = (u32::MAX as usize, 1 << 26);
    let append = AppendRecord {
        rows: Rows::Ids(Vec::new()),
        tokens,
        offsets: Vec::new(),
        computed: kvpool::Computed::Nothing.into(),
        covered: kvpool::Covered::All.into(),
        most_changes: None,
        filled: Filled::default(),
    };
    let turn = TurnRecord { request: Name::Id("a".into()), tokens, lookahead: 0, filled: Filled::default() };
    for operation in [ManagerCall::Append { append }, ManagerCall::AppendTokens { turn }] {
        let forged = super::forged::journal(&image, &[(0, Entry::Operation(operation, 0))]);
        let refused = replay(&forged, Options::default(), &mut |_| true).unwrap_err();
        assert_eq!(refused, ReplayError::TooManyTokens { tokens, limit });
    }
}

/// Number of bytes in each long request id. `NAMES` is the number of such ids. Together they make the
/// journal long.
const NAME: usize = 1 << 20;
const NAMES: usize = 128;

/// Environment variable with the path of the file that the next test reads.
const LONG: &str = "KVPOOL_TEST_LONG_JOURNAL";

/// A reader of a journal in a file keeps only one frame in memory: a journal of 128 MiB is read with
/// 112 MiB of address space.
#[test]
fn a_journal_in_a_file_is_read_with_less_memory_than_it_has_bytes() {
    let path = std::env::temp_dir().join(format!("kvpool-journal-long-{}.kvj", std::process::id()));
    let journal = Journal::create(&path, JournalConfig::default()).unwrap().waiting();
    let config = ManagerConfig { num_blocks: 8, ..ManagerConfig::default() };
    let mut manager = Journaled::<CacheManager>::with_journal(config, journal).unwrap();
    for number in 0..NAMES {
        let name = format!("{}{number}", "x".repeat(NAME));
        manager.release((&*name).into(), Until::Now).unwrap_err();
    }
    drop(manager);
    // A shell limits the address space before it runs the test, because the new process inherits the
    // limit.
    let limited = "ulimit -v 114688; exec \"$0\" \"$@\"";
    let done = Command::new("sh")
        .args(["-c", limited])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "memory::of_a_long_journal", "--ignored", "--nocapture"])
        .env(LONG, &path)
        .output();
    std::fs::remove_file(&path).unwrap();
    let done = done.unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{done:?}");
}

#[test]
#[ignore = "runs with little memory, started by another"]
fn of_a_long_journal() {
    let path = std::path::PathBuf::from(std::env::var_os(LONG).unwrap());
    let mut going = |_| true;
    let file = JournalFile::open(&path).unwrap();
    assert!(file.bytes() > NAME * NAMES);
    // The whole journal does not fit into memory at once.
    assert_eq!(std::fs::read(&path).unwrap_err().kind(), std::io::ErrorKind::OutOfMemory);

    let (summary, lines) = show(&file, None, 2).unwrap();
    assert_eq!((summary.operations, summary.bytes, lines.len()), (NAMES as u64, file.bytes(), 2));
    let report = replay(&file, Options { until: None, check_every: 100 }, &mut going).unwrap();
    assert_eq!((report.operations, &report.difference), (NAMES as u64, &None));
    assert_eq!(bisect(&file, &mut going).unwrap(), report);
    assert_eq!(compare(&file, &JournalFile::open(&path).unwrap()).unwrap(), None);
    let mut looks = 0;
    observe(&file, &Observers::default(), Options::default(), 1, &mut |_, _| looks += 1, &mut going).unwrap();
    assert_eq!(looks, NAMES);
    let written = export(&file, Language::Python, 10_000, &mut std::io::sink(), &mut going).unwrap();
    assert_eq!(written, NAMES as u64);
}
