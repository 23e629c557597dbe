//! Journals that ask for more memory than there is: refused by name, in a process of their own with little of it.

use std::process::Command;

use kvpool::{CacheManager, EvictionPolicy, ManagerConfig};
use kvpool_journal::{
    Entry, JournalConfig, JournalHeader, Journaled, Keys, ManagerOperation, Name, Options, replay,
};

use super::world::ring;

/// Runs a test of this program again, with 1 GiB of addresses.
fn with_little_memory(test: &str) -> std::process::Output {
    let limited = "ulimit -v 1048576; exec \"$0\" \"$@\"";
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", limited]).arg(program).args(["--exact", test, "--ignored", "--nocapture"]);
    command.output().unwrap()
}

#[test]
fn a_journal_that_asks_for_too_much_is_refused() {
    for test in ["memory::of_a_huge_pool_of_vllms", "memory::of_a_huge_append"] {
        let done = with_little_memory(test);
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{test}: {done:?}");
    }
}

#[test]
#[ignore = "runs with little memory, started by another"]
fn of_a_huge_pool_of_vllms() {
    // Its lists would fit, its keys do not.
    let header = JournalHeader::of_vllm_pool(20_000_000, EvictionPolicy::LRU, true, JournalConfig::default());
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
    let operation = ManagerOperation::AppendTokens {
        request: Name::Id("a".into()),
        tokens: 1 << 40,
        lookahead: 0,
        filled: Keys::default(),
        fingerprints: Keys::default(),
    };
    let forged = super::forged::journal(&image, &[(0, Entry::Operation(operation, 0))]);
    let refused = replay(&forged, Options::default(), &mut |_| true).unwrap_err();
    assert!(refused.to_string().contains("more than this process can have"), "{refused}");
}
