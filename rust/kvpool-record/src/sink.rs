//! Where frames go: a ring in memory, or the thread that writes.

use std::collections::VecDeque;

use crate::writer::{Background, Flush};

/// The end of a journal that is written to.
pub(crate) enum Sink {
    /// The latest frames, and the header.
    Ring { header: Vec<u8>, frames: VecDeque<Box<[u8]>>, bytes: usize, capacity: usize },
    /// A file, or whatever else takes bytes.
    Writer(Background),
}

impl Sink {
    pub(crate) const fn ring(capacity: usize) -> Self {
        Self::Ring { header: Vec::new(), frames: VecDeque::new(), bytes: 0, capacity }
    }

    /// Takes magic number and header.
    pub(crate) fn header(&mut self, magic: [u8; 8], frame: &[u8]) {
        let first = [&magic, frame].concat();
        match self {
            Self::Ring { header, bytes, .. } => {
                *bytes = first.len();
                *header = first;
            }
            Self::Writer(writer) => writer.write(first),
        }
    }

    /// Takes a frame of records, and leaves nothing of it.
    pub(crate) fn frame(&mut self, frame: &mut Vec<u8>) {
        match self {
            Self::Ring { frames, bytes, capacity, .. } => {
                *bytes += frame.len();
                frames.push_back(frame.as_slice().into());
                frame.clear();
                while *bytes > *capacity
                    && frames.len() > 1
                    && let Some(oldest) = frames.pop_front()
                {
                    *bytes -= oldest.len();
                }
            }
            // The next frame will be as long.
            Self::Writer(writer) => {
                let next = Vec::with_capacity(frame.len());
                writer.write(std::mem::replace(frame, next));
            }
        }
    }

    /// Has all frames written.
    pub(crate) fn flush(&mut self) -> Flush {
        match self {
            Self::Ring { .. } => Flush::DONE,
            Self::Writer(writer) => writer.flush(),
        }
    }

    /// Waits for a writer that is behind, instead of stopping.
    pub(crate) const fn wait(&mut self) {
        if let Self::Writer(writer) = self {
            writer.waits = true;
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Ring { bytes, .. } => *bytes as u64,
            Self::Writer(writer) => writer.bytes(),
        }
    }

    pub(crate) fn error(&self) -> Option<&str> {
        match self {
            Self::Ring { .. } => None,
            Self::Writer(writer) => writer.error(),
        }
    }

    pub(crate) fn image(&self) -> Option<Vec<u8>> {
        let Self::Ring { header, frames, bytes, .. } = self else { return None };
        let mut image = Vec::with_capacity(*bytes);
        image.extend_from_slice(header);
        frames.iter().for_each(|frame| image.extend_from_slice(frame));
        Some(image)
    }
}
