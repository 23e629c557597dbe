//! Policies by name, in a journal's header.

use kvpool::{BlockPool, EvictionPolicy, PoolConfig};
use kvpool_journal::{Journal, JournalConfig, JournalError, JournalReader, Journaled};
use kvpool_observe::{AdvisorConfig, WatchConfig};
use kvpool_policies::{ADVISED, ALL, Recency, eviction_policy};

const MINE: EvictionPolicy = eviction_policy!("mine", Recency::new);

/// A journal has names: it is read with the policies that its reader knows.
#[test]
fn a_journal_is_read_with_the_policies_of_its_reader() {
    let image = |config: &PoolConfig, watch: &WatchConfig| {
        let journal = Journal::ring(1 << 17, JournalConfig::default()).unwrap();
        Journaled::<BlockPool>::with_watch(config.clone(), watch, journal).unwrap().journal_image().unwrap()
    };
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
