//! The text that `show` returns contains every operation of the journal once, in order. `show` can also
//! return any part of it.

use kvpool::{CacheManager, ManagerConfig};
use kvpool_journal::{Journal, Line, show};
use proptest::prelude::*;

use super::world::{
    EVENTS, any_settings, calls, recorded_manager, recorded_pool, ring, run_manager, run_pool,
};

fn image(journal: Option<Journal>) -> Vec<u8> {
    journal.unwrap().image().unwrap()
}

/// Returns the expected lines for a part of the journal, from the lines of the whole journal.
fn part(lines: &[Line], from: u64, count: u64) -> Vec<Line> {
    let in_part = |line: &&Line| {
        line.number >= from
            && (line.number < from + count || line.number == from + count && line.call == "digest")
    };
    lines.iter().filter(in_part).cloned().collect()
}

fn check(image: &[u8], operations: u64, every: u32, from: u64, count: u64) -> Result<(), TestCaseError> {
    let (summary, lines) = show(image, Some(0), usize::MAX).unwrap();
    prop_assert_eq!((summary.first_operation, summary.operations), (0, operations));
    prop_assert_eq!(summary.digests, operations / u64::from(every));
    prop_assert_eq!(summary.kinds.values().sum::<u64>(), operations);
    prop_assert_eq!(summary.bytes, image.len());
    let calls: Vec<_> = lines.iter().filter(|line| line.call != "digest").collect();
    prop_assert!(calls.iter().map(|line| line.number).eq(0..operations));
    for (call, times) in &summary.kinds {
        prop_assert_eq!(calls.iter().filter(|line| line.call == *call).count() as u64, *times);
    }
    let digests = lines.iter().filter(|line| line.call == "digest").map(|line| line.number);
    prop_assert!(digests.eq((1..=operations / u64::from(every)).map(|nth| nth * u64::from(every))));
    prop_assert_eq!(part(&lines, from, count), show(image, Some(from), count as usize).unwrap().1);
    let last = show(image, None, count as usize).unwrap().1;
    let shown = last.iter().filter(|line| line.call != "digest").count() as u64;
    prop_assert_eq!(shown, count.min(operations));
    prop_assert!(lines.ends_with(&last));
    prop_assert!(lines.iter().all(|line| line.words.len() < 4000 && !line.words.contains('\n')));
    Ok(())
}

proptest! {
    #[test]
    fn a_manager_is_shown(config in any_settings(), every in 1u32..9, run in calls(80),
        from in 0u64..90, count in 1u64..90) {
        let mut manager = recorded_manager(config, EVENTS, ring(every));
        run_manager(&mut manager, &run);
        let operations = manager.journal().unwrap().operations();
        check(&image(manager.take_journal()), operations, every, from, count)?;
    }

    #[test]
    fn a_pool_is_shown(config in any_settings(), every in 1u32..9, run in calls(80), from in 0u64..90,
        count in 1u64..90) {
        let hashed_by = CacheManager::new(ManagerConfig { host_blocks: 0, ..config.clone() }).unwrap();
        let mut pool = recorded_pool(&config, EVENTS, ring(every));
        run_pool(&mut pool, &hashed_by, &run);
        let operations = pool.journal().unwrap().operations();
        check(&image(pool.take_journal()), operations, every, from, count)?;
    }
}
