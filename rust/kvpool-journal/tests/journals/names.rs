//! Tests the names of policies in the header of a journal.

use kvpool::{BlockPool, EvictionPolicy, PoolConfig};
use kvpool_journal::{
    Journal, JournalConfig, JournalError, JournalReader, Journaled, Options, ReplayError, replay,
};
use kvpool_observe::{AdvisorConfig, WatchConfig};
use kvpool_policies::{ADVISED, ALL, Recency, eviction_policy};

const MINE: EvictionPolicy = eviction_policy!("mine", Recency::new);
/// A policy with the name of a policy that only earlier versions of kvpool had.
const SIEVE: EvictionPolicy = eviction_policy!("sieve", Recency::new);

fn image(config: &PoolConfig, watch: &WatchConfig) -> Vec<u8> {
    let journal = Journal::ring(1 << 17, JournalConfig::default()).unwrap();
    Journaled::<BlockPool>::with_watch(config.clone(), watch, journal).unwrap().journal_image().unwrap()
}

/// A journal contains only the name of its policy. The reader of the journal looks up the name in the
/// list of policies that it knows.
#[test]
fn a_journal_is_read_with_the_policies_of_its_reader() {
    let own = PoolConfig { num_blocks: 8, eviction: MINE, ..PoolConfig::default() };
    let advisor = AdvisorConfig { policies: [ADVISED, &[MINE]].concat(), ..AdvisorConfig::default() };
    let advised = WatchConfig { advisor: Some(advisor), ..WatchConfig::default() };
    let plain = PoolConfig { num_blocks: 8, ..PoolConfig::default() };
    let subjects = [(own, WatchConfig::default(), "eviction"), (plain, advised, "advisor")];
    for (config, watch, setting) in subjects {
        let image = image(&config, &watch);
        let header = JournalReader::new(&image).unwrap().header().clone();
        let error = header.pool_config(ALL).map(drop).and(header.watch_config(ALL).map(drop)).unwrap_err();
        let JournalError::UnknownSetting { field, value } = error else { panic!("{error}") };
        assert_eq!((field, value.as_str()), (setting, "mine"));
        let policies = [ALL, &[MINE]].concat();
        assert_eq!(header.pool_config(&policies).unwrap().eviction, config.eviction);
        assert_eq!(header.watch_config(&policies).unwrap().advisor, watch.advisor);
    }
}

/// A pool, manager or advisor in a journal of an earlier version may have a policy that no longer
/// exists. The error names that policy, and the one to use instead.
#[test]
fn a_journal_of_a_removed_policy_is_refused_with_the_policy_to_use_instead() {
    let evicted = PoolConfig { num_blocks: 8, eviction: SIEVE, ..PoolConfig::default() };
    let advisor = AdvisorConfig { policies: vec![SIEVE], ..AdvisorConfig::default() };
    let advised = WatchConfig { advisor: Some(advisor), ..WatchConfig::default() };
    let plain = PoolConfig { num_blocks: 8, ..PoolConfig::default() };
    for (config, watch, field) in [(evicted, WatchConfig::default(), "eviction"), (plain, advised, "advisor")]
    {
        let image = image(&config, &watch);
        let ReplayError::Journal(error) = replay(&image, Options::default(), &mut |_| true).unwrap_err()
        else {
            panic!()
        };
        assert!(matches!(&error, JournalError::RemovedPolicy { policy, .. } if policy == "sieve"));
        assert_eq!(
            error.to_string(),
            format!(
                "the journal was made with {field} \"sieve\", which kvpool no longer has: it has lru, \
                 last-accessed, s3-fifo, arc, adaptive, hazard. Record a new journal with s3-fifo, or replay \
                 this one with the version that wrote it"
            )
        );
        // A reader that has its own policy with that name accepts the journal.
        let header = JournalReader::new(&image).unwrap().header().clone();
        assert_eq!(header.pool_config(&[ALL, &[SIEVE]].concat()).unwrap().eviction, config.eviction);
    }
}
