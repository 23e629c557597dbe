//! Tests that a journal in a file, which is read frame by frame, gives the same result as its bytes in
//! memory. If the file changes while it is read, the reader returns an error.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use kvpool::ManagerConfig;
use kvpool_journal::{
    Entry, JournalError, JournalFile, JournalReader, JournalSource, Language, ManagerCall, Options, bisect,
    compare, export, replay, show,
};
use proptest::prelude::*;

use super::world::{Call, EVENTS, any_settings, calls, recorded_manager, ring, run_manager};

/// A file that is removed when this value is dropped.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(bytes: &[u8]) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("kvpool-journal-file-{}-{number}.kvj", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn open(&self) -> JournalFile {
        JournalFile::open(&self.0).unwrap()
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn recorded(config: ManagerConfig, calls: &[Call]) -> Vec<u8> {
    let mut manager = recorded_manager(config, EVENTS, ring(4));
    run_manager(&mut manager, calls);
    manager.take_journal().unwrap().image().unwrap()
}

/// Returns all results of a reader for a journal, as text.
fn told<'a>(source: impl Into<JournalSource<'a>>) -> Vec<String> {
    let source = source.into();
    let mut told = match JournalReader::new(source) {
        Err(error) => vec![error.to_string()],
        Ok(reader) => {
            let records = reader.records::<ManagerCall>();
            let about = (reader.bytes(), reader.first_operation(), reader.operations(), reader.tail());
            let mut told = vec![format!("{:?} {about:?}", reader.header())];
            told.extend(records.map(|record| format!("{record:?}")));
            told
        }
    };
    let mut test = Vec::new();
    let exported = export(source, Language::Python, 500, &mut test, &mut |_| true);
    told.push(format!("{:?}", show(source, Some(3), 7)));
    told.push(format!("{:?}", replay(source, Options::default(), &mut |_| true)));
    told.push(format!("{:?}", bisect(source, &mut |_| true)));
    told.push(format!("{exported:?} {test:?}"));
    told
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// A reader gives the same result for a file and for its bytes, if the file is complete, truncated
    /// at any byte, or has one flipped bit.
    #[test]
    fn a_file_reads_as_its_bytes(
        config in any_settings(),
        calls in calls(60),
        cuts in prop::collection::vec((any::<u32>(), any::<Option<u8>>()), 8),
    ) {
        let image = recorded(config, &calls);
        let whole = TemporaryFile::new(&image);
        prop_assert_eq!(told(&image), told(&whole.open()));
        for (at, bit) in cuts {
            let at = at as usize % image.len();
            let mut bytes = image.clone();
            match bit {
                None => bytes.truncate(at),
                Some(bit) => bytes[at] ^= 1 << (bit % 8),
            }
            let kept = TemporaryFile::new(&bytes);
            let file = kept.open();
            prop_assert_eq!(told(&bytes), told(&file));
            let (of_bytes, of_files) = (compare(&image, &bytes), compare(&whole.open(), &file));
            prop_assert_eq!(format!("{of_bytes:?}"), format!("{of_files:?}"));
        }
    }
}

fn long() -> Vec<u8> {
    let calls: Vec<Call> = (0..400).map(|number| (0, number, number * 7, number)).collect();
    recorded(ManagerConfig { num_blocks: 64, ..ManagerConfig::default() }, &calls)
}

fn entries(reader: &JournalReader<'_>) -> Result<usize, JournalError> {
    reader.records::<ManagerCall>().try_fold(0, |count, record| record.map(|_| count + 1))
}

#[test]
fn a_file_that_changes_while_it_is_read_is_an_error() {
    let image = long();
    let all = entries(&JournalReader::new(&image).unwrap()).unwrap();
    for change in ["shorter", "other"] {
        let kept = TemporaryFile::new(&image);
        let file = kept.open();
        let reader = JournalReader::new(&file).unwrap();
        assert_eq!(entries(&reader).unwrap(), all);
        match change {
            "shorter" => {
                let file = std::fs::File::options().write(true).open(&kept.0).unwrap();
                file.set_len(image.len() as u64 / 2).unwrap();
            }
            _ => {
                let mut bytes = image.clone();
                let half = bytes.len() / 2;
                bytes[half] ^= 1;
                std::fs::write(&kept.0, bytes).unwrap();
            }
        }
        let mut records = reader.records::<ManagerCall>();
        let (mut read, mut error) = (0, None);
        for record in records.by_ref() {
            match record {
                Ok((_, Entry::Operation(..) | Entry::Digest(_))) => read += 1,
                Err(found) => error = Some(found),
            }
        }
        assert!(matches!(error, Some(JournalError::Io(_))), "{change}: {error:?}");
        assert!(0 < read && read < all, "{change}: {read} of {all}");
        // After an error, the iterator over the records has ended.
        assert!(records.next().is_none());
        // A new reader accepts the file in its present, changed form.
        let now = kept.open();
        assert!(JournalReader::new(&now).unwrap().operations() < reader.operations());
    }
}

#[test]
fn operations_appended_later_are_not_read() {
    let image = long();
    let kept = TemporaryFile::new(&image[..image.len() / 2]);
    let file = kept.open();
    let before = told(&file);
    std::fs::write(&kept.0, &image).unwrap();
    assert_eq!(told(&file), before);
    assert_ne!(told(&kept.open()), before);
}

#[test]
fn a_path_that_is_no_file_is_refused_by_name() {
    let folder = std::env::temp_dir();
    for (path, said) in
        [(folder.clone(), "is not a regular file"), (folder.join("kvpool-none.kvj"), "No such file")]
    {
        let refused = JournalFile::open(&path).unwrap_err().to_string();
        assert!(refused.contains(said) && refused.contains(&path.display().to_string()), "{refused}");
    }
    let empty = TemporaryFile::new(b"");
    let file = empty.open();
    assert!(JournalSource::from(&file).is_empty());
    assert!(matches!(JournalReader::new(&file), Err(JournalError::NotAJournal { .. })));
}
