//! Policies by name, in a journal's header.

use kvpool::evictor::policies::Recency;
use kvpool::{AdvisorConfig, BlockPool, EvictionPolicy, PoolConfig, eviction_policy};
use kvpool_journal::{Journal, JournalConfig, JournalError, JournalReader, Journaled};
use kvpool_policies::{ADVISED, ALL};

const MINE: EvictionPolicy = eviction_policy!("mine", Recency::new);

/// A journal has names: it is read with the policies that its reader knows.
#[test]
fn a_journal_is_read_with_the_policies_of_its_reader() {
    let image = |config: &PoolConfig| {
        let journal = Journal::ring(1 << 17, JournalConfig::default()).unwrap();
        Journaled::<BlockPool>::with_journal(config.clone(), journal).unwrap().journal_image().unwrap()
    };
    let own = PoolConfig { num_blocks: 8, eviction: MINE, ..PoolConfig::default() };
    let advisor = AdvisorConfig { policies: [ADVISED, &[MINE]].concat(), ..AdvisorConfig::default() };
    let advised = PoolConfig { num_blocks: 8, advisor: Some(advisor), ..PoolConfig::default() };
    for (config, setting) in [(own, "eviction"), (advised, "advisor")] {
        let image = image(&config);
        let header = JournalReader::new(&image).unwrap().header().clone();
        let error = header.pool_config(ALL).unwrap_err();
        let JournalError::UnknownSetting { field, value } = error else { panic!("{error}") };
        assert_eq!((field, value.as_str()), (setting, "mine"));
        let read = header.pool_config(&[ALL, &[MINE]].concat()).unwrap();
        assert_eq!((read.eviction, &read.advisor), (config.eviction, &config.advisor));
    }
}
