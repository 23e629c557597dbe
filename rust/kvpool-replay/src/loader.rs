//! Reads a trace from a file, a folder of files, or a stream, in slices, and counts the bytes read.
//!
//! [`TraceLoader`] calls a [`TraceReader`] record by record, and collects the requests. All files of a
//! folder are read as one input. Bytes are counted when they are read from the file, before
//! decompression, so the progress of a compressed file is correct.

use std::{
    collections::VecDeque,
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    error::TraceError,
    reader::{ReadOptions, ReadTrace, TraceReader},
    source::BUFFER_BYTES,
    trace::TraceRequest,
};

/// The file or stream that a loader reads.
type Input = Box<dyn BufRead + Send>;

/// Reads a trace in slices and counts the bytes read, so that a caller can show progress.
///
/// ```no_run
/// use kvpool_replay::reader::{ReadOptions, TraceLoader};
///
/// let mut loader = TraceLoader::open("trace.jsonl.gz", &ReadOptions::default())?;
/// while !loader.advance(1 << 20)? {
///     println!("{} of {:?} bytes", loader.bytes_read(), loader.total_bytes());
/// }
/// let read = loader.finish()?;
/// println!("{} requests, read as {}", read.trace.requests().len(), read.format);
/// # Ok::<(), kvpool_replay::error::TraceError>(())
/// ```
pub struct TraceLoader {
    reader: TraceReader<Input>,
    requests: Vec<TraceRequest>,
    bytes_read: Arc<AtomicU64>,
    total_bytes: Option<u64>,
    /// The file of the folder that is being read now. `None` if the input is a single file or a stream.
    file: Option<PathBuf>,
    further_files: VecDeque<PathBuf>,
    done: bool,
}

impl fmt::Debug for TraceLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceLoader")
            .field("requests", &self.requests.len())
            .field("bytes_read", &self.bytes_read())
            .field("total_bytes", &self.total_bytes)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl TraceLoader {
    /// Opens the file at `path`. For a folder, all of its `.json` and `.jsonl` files, plain or `.gz`,
    /// are read as one trace, in the order of their names.
    ///
    /// # Errors
    ///
    /// [`TraceError::Open`], [`TraceError::EmptyFolder`], and the errors of [`TraceReader::new`].
    pub fn open(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let mut files = VecDeque::from([path.to_owned()]);
        if path.is_dir() {
            files = files_in(path).map_err(|source| TraceError::Open { path: path.to_owned(), source })?;
        }
        let Some(first) = files.pop_front() else {
            return Err(TraceError::EmptyFolder { path: path.to_owned() });
        };
        let sizes =
            [&first].into_iter().chain(&files).map(|file| std::fs::metadata(file).map(|data| data.len()));
        let total_bytes = sizes.sum::<io::Result<u64>>().ok();
        let bytes_read = Arc::new(AtomicU64::new(0));
        let input = open_file(&first, &bytes_read)?;
        let file = path.is_dir().then_some(first);
        let mut loader =
            Self::new(input, options, bytes_read).map_err(|error| in_file(file.as_ref(), error))?;
        (loader.file, loader.further_files, loader.total_bytes) = (file, files, total_bytes);
        Ok(loader)
    }

    /// Makes a loader for a stream: standard input, a socket, or bytes in memory.
    ///
    /// # Errors
    ///
    /// The errors of [`TraceReader::new`].
    pub fn from_reader(
        input: impl BufRead + Send + 'static,
        options: &ReadOptions,
    ) -> Result<Self, TraceError> {
        let bytes_read = Arc::new(AtomicU64::new(0));
        Self::new(Box::new(Counted { input, bytes: bytes_read.clone() }), options, bytes_read)
    }

    fn new(input: Input, options: &ReadOptions, bytes_read: Arc<AtomicU64>) -> Result<Self, TraceError> {
        Ok(Self {
            reader: TraceReader::new(input, options)?,
            requests: Vec::new(),
            bytes_read,
            total_bytes: None,
            file: None,
            further_files: VecDeque::new(),
            done: false,
        })
    }

    /// Reads about `bytes` bytes of the input. Returns `true` when everything is read.
    ///
    /// # Errors
    ///
    /// The first error of [`TraceReader`], in [`TraceError::InFile`] for a file of a folder. The loader
    /// cannot be used afterwards.
    pub fn advance(&mut self, bytes: u64) -> Result<bool, TraceError> {
        let until = self.bytes_read().saturating_add(bytes.max(1));
        while !self.done && self.bytes_read() < until {
            self.step().map_err(|error| in_file(self.file.as_ref(), error))?;
        }
        Ok(self.done)
    }

    /// Decodes one record, and collects the requests that are complete now.
    fn step(&mut self) -> Result<(), TraceError> {
        let reader = &mut self.reader;
        if !reader.take_record()? {
            match self.further_files.pop_front() {
                Some(file) => {
                    reader.continue_with(open_file(&file, &self.bytes_read)?)?;
                    self.file = Some(file);
                }
                None => {
                    self.done = true;
                    reader.finish()?;
                }
            }
        }
        while let Some(request) = reader.take_request()? {
            self.requests.push(request);
        }
        self.done |= reader.is_full();
        Ok(())
    }

    /// The number of bytes of the input read so far, before decompression. It includes bytes that are
    /// read but not decoded yet.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// The number of bytes of the input; `None` for a stream.
    #[must_use]
    pub fn total_bytes(&self) -> Option<u64> {
        self.total_bytes
    }

    /// The number of requests read so far. It remains 0 until the end in formats whose requests the
    /// reader sorts.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Reads the rest of the input, and returns the trace.
    ///
    /// # Errors
    ///
    /// The errors of [`advance`](Self::advance); [`TraceError::Empty`] if there is no request.
    pub fn finish(mut self) -> Result<ReadTrace, TraceError> {
        while !self.advance(u64::MAX)? {}
        if self.requests.is_empty() {
            return Err(in_file(self.file.as_ref(), TraceError::Empty { lines: self.reader.lines() }));
        }
        Ok(self.reader.read_trace(self.requests))
    }
}

struct Counted<R> {
    input: R,
    bytes: Arc<AtomicU64>,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = self.input.read(buffer)?;
        self.bytes.fetch_add(size as u64, Ordering::Relaxed);
        Ok(size)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.bytes.fetch_add(amount as u64, Ordering::Relaxed);
        self.input.consume(amount);
    }
}

fn open_file(path: &Path, bytes: &Arc<AtomicU64>) -> Result<Input, TraceError> {
    let file = File::open(path).map_err(|source| TraceError::Open { path: path.to_owned(), source })?;
    let input = BufReader::with_capacity(BUFFER_BYTES, file);
    Ok(Box::new(Counted { input, bytes: bytes.clone() }))
}

/// Adds the path of the file to an error, if the input is a folder.
fn in_file(file: Option<&PathBuf>, error: TraceError) -> TraceError {
    match (file, error) {
        (_, error @ TraceError::Open { .. }) | (None, error) => error,
        (Some(path), error) => TraceError::InFile { path: path.clone(), error: Box::new(error) },
    }
}

/// Returns the files of a folder that may be traces, in the order of their names.
fn files_in(folder: &Path) -> io::Result<VecDeque<PathBuf>> {
    const ENDINGS: [&str; 4] = [".json", ".jsonl", ".json.gz", ".jsonl.gz"];
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_file() && ENDINGS.iter().any(|ending| name.ends_with(ending)) {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files.into())
}
