//! The destination of frames: a ring in memory, or a thread that writes them.

use std::collections::VecDeque;

use super::writer::{Background, Flush};

/// The destination of a journal's frames.
pub(crate) enum Sink {
    /// A ring in memory, with the header and the latest frames.
    Ring { header: Vec<u8>, frames: VecDeque<Vec<u8>>, bytes: usize, capacity: usize },
    /// A thread that writes to a file or to another writer.
    Writer(Background),
}

impl Sink {
    pub(crate) const fn ring(capacity: usize) -> Self {
        Self::Ring { header: Vec::new(), frames: VecDeque::new(), bytes: 0, capacity }
    }

    /// Writes the frame of the header, after the magic number.
    pub(crate) fn header(&mut self, magic: [u8; 8], frame: &[u8]) {
        let mut first = [&magic, frame].concat();
        match self {
            Self::Ring { header, bytes, .. } => {
                *bytes = first.len();
                *header = first;
            }
            Self::Writer(writer) => writer.write(&mut first),
        }
    }

    /// Writes a frame of records, and empties the caller's buffer.
    pub(crate) fn frame(&mut self, frame: &mut Vec<u8>) {
        match self {
            Self::Ring { frames, bytes, capacity, .. } => {
                // The next frame reuses the memory of the last frame that is dropped here. Therefore a
                // full ring allocates no memory, and causes no page faults.
                let mut place = Vec::new();
                while bytes.saturating_add(frame.len()) > *capacity
                    && let Some(oldest) = frames.pop_front()
                {
                    *bytes -= oldest.len();
                    place = oldest;
                }
                place.clear();
                if frame.capacity() / 2 > frame.len() {
                    // The buffer has much more capacity than the frame needs, so copy the frame to save
                    // memory.
                    place = frame.clone();
                    frame.clear();
                } else {
                    std::mem::swap(frame, &mut place);
                }
                *bytes += place.len();
                frames.push_back(place);
            }
            Self::Writer(writer) => writer.write(frame),
        }
    }

    /// Starts to write all frames that wait in the queue.
    pub(crate) fn flush(&mut self) -> Flush {
        match self {
            Self::Ring { .. } => Flush::DONE,
            Self::Writer(writer) => writer.flush(),
        }
    }

    /// Makes the journal wait for a slow writer. By default it stops instead.
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

#[cfg(test)]
mod tests {
    use super::Sink;

    #[test]
    fn a_ring_keeps_the_latest_frames_in_bounded_memory() {
        const CAPACITY: usize = 1000;
        let mut ring = Sink::ring(CAPACITY);
        ring.header(*b"headings", b"frame");
        let (mut model, mut seed) = (Vec::<Vec<u8>>::new(), 1_u64);
        for _ in 0..3000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // A random frame size. In one case of sixteen, the frame alone fills the ring or is larger
            // than the ring.
            let len = match seed >> 60 {
                0 => 900 + (seed >> 40) as usize % 300,
                1..=7 => 1 + (seed >> 40) as usize % 20,
                _ => 100 + (seed >> 40) as usize % 60,
            };
            let mut frame = vec![(seed >> 32) as u8; len];
            model.push(frame.clone());
            ring.frame(&mut frame);
            assert!(frame.is_empty());
            while model.len() > 1 && 13 + model.iter().map(Vec::len).sum::<usize>() > CAPACITY {
                model.remove(0);
            }
            assert_eq!(ring.image().unwrap(), [b"headingsframe".as_slice(), &model.concat()].concat());
            let bytes = ring.bytes() as usize;
            assert_eq!(bytes, 13 + model.concat().len());
            let memory = match &ring {
                Sink::Ring { frames, .. } => frames.iter().map(Vec::capacity).sum(),
                Sink::Writer(_) => usize::MAX,
            };
            assert!(memory <= 2 * bytes.max(CAPACITY), "{memory} for {bytes}");
        }
    }
}
