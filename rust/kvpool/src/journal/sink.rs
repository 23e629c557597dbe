//! Where frames go: a ring in memory or a writer.

use std::collections::VecDeque;
use std::io::Write;

use super::MAGIC;

/// The end of a journal that is written to.
pub(super) enum Sink {
    /// The latest frames, and the header.
    Ring { header: Vec<u8>, frames: VecDeque<Box<[u8]>>, bytes: usize, capacity: usize },
    /// A file, or whatever else takes bytes.
    Writer { writer: Box<dyn Write + Send>, bytes: u64, error: Option<String> },
}

impl Sink {
    pub(super) const fn ring(capacity: usize) -> Self {
        Self::Ring { header: Vec::new(), frames: VecDeque::new(), bytes: 0, capacity }
    }

    /// Takes magic number and header.
    pub(super) fn header(&mut self, frame: &[u8]) {
        match self {
            Self::Ring { header, bytes, .. } => {
                *header = [&MAGIC, frame].concat();
                *bytes = header.len();
            }
            Self::Writer { .. } => {
                self.write(&MAGIC);
                self.write(frame);
            }
        }
    }

    /// Takes a frame of records.
    pub(super) fn frame(&mut self, frame: &[u8]) {
        let Self::Ring { frames, bytes, capacity, .. } = self else { return self.write(frame) };
        *bytes += frame.len();
        frames.push_back(frame.into());
        while *bytes > *capacity
            && frames.len() > 1
            && let Some(oldest) = frames.pop_front()
        {
            *bytes -= oldest.len();
        }
    }

    fn write(&mut self, data: &[u8]) {
        if let Self::Writer { writer, bytes, error: error @ None } = self {
            match writer.write_all(data) {
                Ok(()) => *bytes += data.len() as u64,
                Err(failed) => *error = Some(failed.to_string()),
            }
        }
    }

    pub(super) fn flush(&mut self) {
        if let Self::Writer { writer, error: error @ None, .. } = self
            && let Err(failed) = writer.flush()
        {
            *error = Some(failed.to_string());
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Ring { bytes, .. } => *bytes as u64,
            Self::Writer { bytes, .. } => *bytes,
        }
    }

    pub(super) fn error(&self) -> Option<&str> {
        match self {
            Self::Ring { .. } => None,
            Self::Writer { error, .. } => error.as_deref(),
        }
    }

    pub(super) fn image(&self) -> Option<Vec<u8>> {
        let Self::Ring { header, frames, bytes, .. } = self else { return None };
        let mut image = Vec::with_capacity(*bytes);
        image.extend_from_slice(header);
        frames.iter().for_each(|frame| image.extend_from_slice(frame));
        Some(image)
    }
}
