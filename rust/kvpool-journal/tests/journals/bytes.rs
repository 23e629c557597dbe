//! Tests the bytes of a journal: truncated at any byte, damaged at any byte, or random.

use std::sync::{Arc, Mutex};

use kvpool::groups::{GroupKind, GroupSpec, Groups};
use kvpool::{
    AdmitOptions, BlockPool, CacheManager, Computed, Covered, ExtraKeys, ManagerConfig, PoolConfig,
    RequestRef, Rows, Until,
};
use kvpool_journal::{
    AppendRecord, Difference, Entry, Journal, JournalConfig, JournalError, JournalReader, Journaled,
    ManagerCall, ManagerCalls, Options, PoolCall, PoolCalls, ReplayError, Tail, compare, replay,
};
use proptest::prelude::*;

use super::world::{EVENTS, any_settings, calls, recorded_manager, ring, run_manager};

fn recorded(config: ManagerConfig, calls: &[super::world::Call]) -> Vec<u8> {
    let mut manager = recorded_manager(config, EVENTS, ring(4));
    run_manager(&mut manager, calls);
    manager.take_journal().unwrap().image().unwrap()
}

/// If two appends are equal, the record of the second copies the bytes of the first. If they differ,
/// the record of the second contains every difference.
#[test]
fn records_of_appends_contain_the_arguments() {
    let config = ManagerConfig { num_blocks: 64, block_size: 4, ..ManagerConfig::default() };
    let mut manager = recorded_manager(config, EVENTS, ring(7));
    let admit = |manager: &mut Journaled<CacheManager>, id: &str| {
        let cursor = manager.prepare(&[1, 2, 3], ExtraKeys::default()).unwrap();
        manager.admit(id.into(), cursor, &AdmitOptions::default()).unwrap();
    };
    admit(&mut manager, "a");
    admit(&mut manager, "b");
    let both: [RequestRef<'_>; 2] = ["a".into(), "b".into()];
    let (mut asked, mut random) = (Vec::new(), 1_u64);
    for step in 0..1000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // One step in four is of a random kind. All other steps are of the same kind, so that many of
        // the appends in the journal are equal.
        let kind = if random >> 62 == 0 { random >> 32 } else { 0 };
        let rows: &[usize] = [&[0, 1][..], &[0], &[1], &[1, 0]][(kind % 4) as usize];
        let requests: Vec<_> = rows.iter().map(|&row| both[row]).collect();
        let computed = if kind & 4 == 0 { Computed::AllButLast } else { Computed::Nothing };
        let covered = if kind & 8 == 0 { Covered::All } else { Covered::Lookahead((kind >> 8) as usize % 3) };
        let most_changes = (kind & 16 != 0).then_some(9);
        if kind & 32 != 0 {
            let request = both[rows[0]];
            manager.release(request, Until::Now).unwrap();
            admit(&mut manager, if rows[0] == 0 { "a" } else { "b" });
        }
        let tokens: Vec<_> = (0..rows.len() as u32).map(|row| step + row).collect();
        let offsets: Vec<_> = if kind & 64 == 0 { Vec::new() } else { (0..=rows.len()).collect() };
        let rows_asked =
            Rows { requests: &requests, tokens: &tokens, offsets: &offsets, computed, covered, most_changes };
        let answer = manager.append(&rows_asked);
        if answer.is_err() {
            // The append was refused. Release both requests and admit them again; each gets the same
            // slot as before.
            for (id, request) in [("a", both[0]), ("b", both[1])] {
                manager.release(request, Until::Now).unwrap();
                admit(&mut manager, id);
            }
        }
        asked.push((rows.to_vec(), tokens.len(), offsets, computed.into(), covered.into(), most_changes));
    }
    let slots = [0, 1].map(|row: usize| manager.slot_of(both[row]).unwrap());
    assert_eq!(slots, [0, 1]);

    let image = manager.take_journal().unwrap().image().unwrap();
    let reader = JournalReader::new(&image).unwrap();
    let (mut batch, mut found, mut again) = (Vec::new(), Vec::new(), 0);
    for record in reader.records() {
        let (
            _,
            Entry::Operation(
                ManagerCall::Append {
                    append: AppendRecord { rows, tokens, offsets, computed, covered, most_changes, .. },
                },
                _,
            ),
        ) = record.unwrap()
        else {
            continue;
        };
        match rows {
            kvpool_journal::Rows::Slots(slots) => batch = slots.iter().map(|&slot| slot as usize).collect(),
            kvpool_journal::Rows::Same => again += 1,
            kvpool_journal::Rows::Ids(ids) => panic!("{ids:?}"),
        }
        found.push((batch.clone(), tokens, offsets, computed, covered, most_changes));
    }
    assert_eq!(found, asked);
    assert!(again > 400, "{again}");
    assert_eq!(replay(&image, Options::default(), &mut |_| true).unwrap().difference, None);
}

/// The reader refuses a journal with KV-cache groups whose version has a flipped bit. No checksum
/// covers the version, and the flipped version is the one of journals without groups.
#[test]
fn a_journal_with_groups_is_not_read_as_one_without() {
    let groups = Groups::new(vec![GroupSpec::new(GroupKind::Full, 4)], Some(4)).unwrap();
    let config =
        ManagerConfig { num_blocks: 8, block_size: 4, groups: Some(groups), ..ManagerConfig::default() };
    let mut image = recorded(config, &[]);
    assert_eq!(image[..8], *b"KVPJRN05");
    assert!(JournalReader::new(&image).is_ok());
    image[7] ^= 1;
    assert_eq!(JournalReader::new(&image).unwrap_err(), JournalError::NoHeader);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// If a journal is truncated at any byte, its complete frames can be replayed.
    #[test]
    fn every_beginning_replays(config in any_settings(), calls in calls(120),
        cuts in prop::collection::vec(any::<u32>(), 20)) {
        let image = recorded(config, &calls);
        let whole = JournalReader::new(&image).unwrap().operations();
        for cut in cuts {
            let at = cut as usize % image.len();
            match JournalReader::new(&image[..at]) {
                // The journal was truncated inside of the magic number or the header, so there is no
                // journal yet.
                Err(JournalError::NotAJournal { .. } | JournalError::NoHeader) => {}
                Err(other) => panic!("{other}"),
                Ok(reader) => {
                    prop_assert!(reader.operations() <= whole);
                    if let Tail::Cut { at: start, bytes } = reader.tail() {
                        prop_assert_eq!(start + bytes, at);
                    }
                    let report = replay(&image[..at], Options::default(), &mut |_| true).unwrap();
                    prop_assert_eq!(report.difference, None);
                    prop_assert_eq!(report.operations, reader.operations());
                    prop_assert_eq!(compare(&image, &image[..at]).unwrap(), None);
                }
            }
        }
    }

    /// A flipped bit is detected: all operations before the frame with this bit are replayed, and none
    /// after it.
    #[test]
    fn a_flipped_bit_ends_the_journal(config in any_settings(), calls in calls(120),
        at in any::<u32>(), bit in 0u8..8) {
        let mut image = recorded(config, &calls);
        let at = at as usize % image.len();
        image[at] ^= 1 << bit;
        if let Ok(reader) = JournalReader::new(&image) {
            let tail = reader.tail();
            let before = match tail {
                Tail::Cut { at: start, .. } => start <= at,
                _ => false,
            };
            prop_assert!(before, "{:?} with byte {} flipped", tail, at);
            let report = replay(&image, Options::default(), &mut |_| true).unwrap();
            prop_assert_eq!(report.difference, None);
        }
    }

    /// Reading and replaying arbitrary bytes ends with an error, or at the end of the journal.
    #[test]
    fn any_bytes_are_an_error_or_a_journal(
        bytes in prop::collection::vec(any::<u8>(), 0..400), header in any::<bool>()) {
        let mut file = bytes;
        if header {
            let mut own = recorded(ManagerConfig { num_blocks: 8, ..ManagerConfig::default() }, &[]);
            own.append(&mut file);
            file = own;
        }
        let _ = replay(&file, Options::default(), &mut |_| true);
    }

    /// A replay of valid frames that contain impossible records ends without a panic. The test
    /// exchanges records between frames, so they refer to unknown ids and chains.
    #[test]
    fn impossible_records_are_refused(config in any_settings(), calls in calls(60),
        from in any::<u32>(), to in any::<u32>()) {
        let image = recorded(config, &calls);
        let reader = JournalReader::new(&image).unwrap();
        let mut entries: Vec<_> = reader.records::<ManagerCall>().map(|entry| entry.unwrap()).collect();
        let (from, to) = (from as usize % entries.len().max(1), to as usize % entries.len().max(1));
        if from < entries.len() && to < entries.len() {
            entries.swap(from, to);
            entries.truncate(entries.len() - entries.len() / 4);
            let forged = super::forged::journal(&image, &entries);
            let _ = replay(&forged, Options::default(), &mut |_| true);
        }
    }
}

/// A file whose bytes the test can read while a journal writes them. Writing fails after a given number
/// of bytes.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>, usize);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut written = self.0.lock().unwrap();
        if self.1 > 0 && written.len() + bytes.len() > self.1 {
            return Err(std::io::Error::other("no space left"));
        }
        written.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn pool_into(sink: &Shared) -> Journaled<BlockPool> {
    let config = JournalConfig { digest_every: 2, frame_bytes: 64 };
    let journal = Journal::to_writer(Box::new(sink.clone()), config).unwrap();
    Journaled::<BlockPool>::with_journal(PoolConfig { num_blocks: 9, ..PoolConfig::default() }, journal)
        .unwrap()
}

#[test]
fn a_disk_that_is_full_stops_the_journal_and_not_the_pool() {
    let sink = Shared(Arc::default(), 400);
    let mut pool = pool_into(&sink);
    for _ in 0..200 {
        let blocks = pool.allocate(3).unwrap();
        pool.release(&blocks).unwrap();
    }
    // The thread that writes has failed because the simulated disk is full, so no further calls are
    // recorded.
    pool.flush_journal();
    let operations = pool.journal().unwrap().operations();
    assert!(pool.journal().unwrap().error().unwrap().contains("no space left"));
    pool.reset().unwrap();
    assert_eq!(pool.journal().unwrap().operations(), operations);
    let written = sink.0.lock().unwrap().clone();
    let report = replay(&written, Options::default(), &mut |_| true).unwrap();
    assert_eq!(report.difference, None);
}

#[test]
fn a_ring_keeps_the_latest_operations_and_refuses_a_replay() {
    let config = JournalConfig { digest_every: 8, frame_bytes: 64 };
    let journal = Journal::ring(1024, config).unwrap();
    let mut pool =
        Journaled::<BlockPool>::with_journal(PoolConfig { num_blocks: 9, ..PoolConfig::default() }, journal)
            .unwrap();
    for _ in 0..1000 {
        let blocks = pool.allocate(3).unwrap();
        pool.release(&blocks).unwrap();
        assert!(pool.journal().unwrap().bytes() <= 1024 + 128);
    }
    let image = pool.take_journal().unwrap().image().unwrap();
    let reader = JournalReader::new(&image).unwrap();
    assert_eq!(reader.operations(), 2000);
    assert!(reader.first_operation() > 1900);
    let refused = replay(&image, Options::default(), &mut |_| true).unwrap_err();
    assert_eq!(refused, ReplayError::NoBeginning { first: reader.first_operation() });
}

#[test]
fn another_answer_is_reported_as_a_difference() {
    let mut pool =
        Journaled::<BlockPool>::with_journal(PoolConfig { num_blocks: 9, ..PoolConfig::default() }, ring(1))
            .unwrap();
    let blocks = pool.allocate(3).unwrap();
    pool.release(&blocks).unwrap();
    let image = pool.take_journal().unwrap().image().unwrap();
    let reader = JournalReader::new(&image).unwrap();
    let mut entries: Vec<_> = reader.records::<PoolCall>().map(|entry| entry.unwrap()).collect();
    // Change the recorded answer of the release, so that the replay finds a different answer.
    if let Entry::Operation(_, check) = &mut entries[2].1 {
        *check ^= 1;
    }
    let forged = super::forged::journal(&image, &entries);
    let report = replay(&forged, Options::default(), &mut |_| true).unwrap();
    let Some(Difference::Answer { operation: 1, asked, .. }) = report.difference else {
        panic!("{:?}", report.difference)
    };
    assert!(asked.starts_with("release"), "{asked}");
    let apart = compare(&image, &forged).unwrap().unwrap();
    assert_eq!(apart.operation, 1);

    let mut entries: Vec<_> = reader.records::<PoolCall>().map(|entry| entry.unwrap()).collect();
    if let Entry::Digest(digest) = &mut entries[3].1 {
        *digest ^= 1;
    }
    let forged = super::forged::journal(&image, &entries);
    let report = replay(&forged, Options::default(), &mut |_| true).unwrap();
    assert_eq!(report.difference, Some(Difference::Digest { operations: 2, since: 1 }));
}

#[test]
fn other_versions_and_other_files_are_refused_by_name() {
    let image = recorded(ManagerConfig { num_blocks: 8, ..ManagerConfig::default() }, &[]);
    let mut newer = image.clone();
    newer[7] = b'9';
    let refused = JournalReader::new(&newer).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the journal has format version \"09\": this version of kvpool reads 04 and 05"
    );
    let refused = JournalReader::new(b"PK\x03\x04 something else").unwrap_err();
    assert!(matches!(refused, JournalError::NotAJournal { .. }));
    assert!(matches!(JournalReader::new(b"").unwrap_err(), JournalError::NotAJournal { .. }));
    assert_eq!(JournalReader::new(&image[..8]).unwrap_err(), JournalError::NoHeader);
}

/// Returns the journal of a pool, split into its header and frames of four operations each.
fn in_frames() -> (Vec<u8>, Vec<Vec<u8>>) {
    let config = JournalConfig { digest_every: 0, frame_bytes: 64 };
    let journal = Journal::ring(1 << 20, config).unwrap();
    let mut pool =
        Journaled::<BlockPool>::with_journal(PoolConfig { num_blocks: 9, ..PoolConfig::default() }, journal)
            .unwrap();
    for _ in 0..20 {
        let blocks = pool.allocate(3).unwrap();
        pool.release(&blocks).unwrap();
    }
    let image = pool.take_journal().unwrap().image().unwrap();
    let mut frames = Vec::new();
    let mut at = 8;
    while at < image.len() {
        let length = u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize;
        frames.push(image[at..at + 12 + length].to_vec());
        at += 12 + length;
    }
    let header = [&image[..8], &frames.remove(0)].concat();
    (header, frames)
}

/// A journal is refused if its valid frames do not belong together, because two processes wrote the
/// same file, or because one frame is missing.
#[test]
fn operations_that_are_repeated_or_missing_are_refused() {
    let (header, frames) = in_frames();
    let joined = |frames: &[&[u8]]| [header.as_slice(), &frames.concat()].concat();
    let [one, two, three] = [&frames[0], &frames[1], &frames[2]].map(Vec::as_slice);
    let end = |bytes: &[u8]| JournalReader::new(bytes).unwrap().operations();
    let (first, second) = (end(&joined(&[one])), end(&joined(&[one, two])));
    let wrong = [
        (joined(&[one, one]), 0, first, "repeated, as if two processes"),
        (joined(&[one, two, one]), 0, second, "repeated"),
        (joined(&[one, two, two, three]), first, second, "repeated"),
        (joined(&[one, three]), second, first, "missing"),
    ];
    for (image, found, expected, said) in wrong {
        let refused = JournalReader::new(&image).unwrap_err();
        let JournalError::OutOfOrder { at, .. } = refused else { panic!("{refused}") };
        assert_eq!(refused, JournalError::OutOfOrder { at, found, expected });
        assert!(refused.to_string().contains(said), "{refused}");
        assert_eq!(end(&image[..at]), expected);
        let replayed = replay(&image, Options::default(), &mut |_| true).unwrap_err();
        assert_eq!(replayed, ReplayError::Journal(refused));
    }
    assert_eq!(
        end(&joined(&[one, two, three])),
        JournalReader::new(&joined(&[two, three])).unwrap().operations()
    );
}

#[test]
fn a_frame_with_a_wrong_number_of_operations_is_refused() {
    let (header, frames) = in_frames();
    for said in [0, 99] {
        let mut frame = frames[0].clone();
        frame[20..24].copy_from_slice(&u32::to_le_bytes(said));
        let checksum = xxhash_rust::xxh3::xxh3_64(&frame[12..]);
        frame[4..12].copy_from_slice(&checksum.to_le_bytes());
        let image = [header.as_slice(), &frame].concat();
        let refused = replay(&image, Options::default(), &mut |_| true).unwrap_err();
        assert!(matches!(refused, ReplayError::Journal(JournalError::BadRecord { .. })), "{refused}");
    }
}

#[test]
fn a_refused_journal_leaves_no_file_and_overwrites_none() {
    let path = std::env::temp_dir().join(format!("kvpool-journal-{}.kvj", std::process::id()));
    let wrong = JournalConfig { frame_bytes: 1, ..JournalConfig::default() };
    assert!(matches!(Journal::create(&path, wrong), Err(JournalError::InvalidConfig { .. })));
    assert!(!path.exists());
    std::fs::write(&path, "kept").unwrap();
    let error = Journal::create(&path, JournalConfig::default()).unwrap_err();
    assert_eq!(error, JournalError::Exists { path: path.display().to_string() });
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    std::fs::remove_file(&path).unwrap();
}
