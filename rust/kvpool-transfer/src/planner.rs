//! Chooses the method of a copy.
//!
//! Four methods copy blocks between a device and the host, and each is the best for some copies:
//!
//! - *batch*: the copy engine, with one driver call for thousands of descriptors (a descriptor
//!   describes one contiguous piece). If the pieces are large enough, it uses the full speed of the
//!   link. It uses no multiprocessor.
//! - *kernel*: a kernel that reads or writes host memory. One launch copies any number of pieces of any
//!   size.
//! - *staged*: a kernel gathers small pieces into whole blocks in device memory, and the copy engine
//!   moves these blocks.
//! - *memcpy*: a loop of single copies, which every driver supports.
//!
//! The sizes at which one method becomes faster than another depend on the card and the link (vLLM
//! #57555: thresholds tuned on one card are wrong on the next). Therefore the thresholds are data. The
//! defaults were measured on a Hopper card over PCIe, and `calibrate` measures other cards.
//!
//! The functions in this module are pure. They depend only on properties that are known before a copy,
//! make no driver call, and access no memory of a copy.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::TransferError;
use crate::words::Method;

impl FromStr for Method {
    type Err = TransferError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|method| method.name() == name).ok_or_else(|| TransferError::Argument {
            name: "method",
            value: format!("{name:?}"),
            expected: format!("one of {}", Self::ALL.map(Self::name).join(", ")),
        })
    }
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Within one device.
    OnDevice,
    /// From the host to the device.
    ToDevice,
    /// From the device to the host.
    ToHost,
}

/// A rule of the planner: in transfers of at least `descriptors` descriptors, the copy engine is used
/// for descriptors of at least `bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Threshold {
    /// Smallest number of descriptors in a transfer to which the rule applies.
    pub descriptors: u64,
    /// Smallest number of bytes per descriptor for which the copy engine is used.
    pub bytes: u64,
}

/// The thresholds that the planner uses on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Thresholds from host to device, in ascending order of descriptors.
    pub to_device: Vec<Threshold>,
    /// Thresholds from device to host, in ascending order of descriptors.
    pub to_host: Vec<Threshold>,
    /// Number of thread blocks of a kernel that crosses the link. The number is small, because the
    /// model runs at the same time as the kernel.
    pub link_ctas: u32,
}

impl Default for Thresholds {
    /// Returns the best thresholds of an H200 over PCIe 5 (`benches/results/gpu.md`). The copy engine
    /// needs 1 us or more per descriptor, so it uses the full link only from 1 MiB per descriptor on.
    /// For fewer than 16 descriptors, this cost does not matter.
    ///
    /// A kernel with 4 thread blocks already uses the full link. With 16 thread blocks, it slows down a
    /// concurrent model twice as much.
    fn default() -> Self {
        let rows =
            || [(0, 0), (16, 1 << 20)].map(|(descriptors, bytes)| Threshold { descriptors, bytes }).to_vec();
        Self { to_device: rows(), to_host: rows(), link_ctas: 4 }
    }
}

impl Thresholds {
    /// Returns the thresholds of a coherent link (NVLink-C2C), which is several times as fast as PCIe.
    #[must_use]
    pub fn coherent() -> Self {
        Self { link_ctas: 16, ..Self::default() }
    }

    /// Returns the smallest number of bytes per descriptor for which the copy engine is the better
    /// choice.
    #[must_use]
    pub fn batch_from(&self, direction: Direction, descriptors: u64) -> u64 {
        let table = match direction {
            Direction::OnDevice => return u64::MAX,
            Direction::ToDevice => &self.to_device,
            Direction::ToHost => &self.to_host,
        };
        table.iter().rev().find(|row| row.descriptors <= descriptors).map_or(0, |row| row.bytes)
    }
}

/// Smallest number of bytes for which a staged copy to the device is faster than a kernel that reads
/// host memory. From this size on, staging fills one buffer while it empties the other. It also leaves
/// the multiprocessors to the model.
const STAGED_FROM: u64 = 64 << 20;

/// Returns the method for copies whose pieces are too small for the copy engine. To the host it is
/// always `Staged`, because a kernel that writes to the host slows down a concurrent model. To the
/// device it is a kernel for small copies, because a kernel starts immediately.
pub(crate) const fn around_copy_engine(direction: Direction, bytes: u64) -> Method {
    match direction {
        Direction::ToHost => Method::Staged,
        Direction::ToDevice if bytes >= STAGED_FROM => Method::Staged,
        Direction::ToDevice | Direction::OnDevice => Method::Kernel,
    }
}

/// Properties of a copy that are known before it is made.
///
/// ```
/// use kvpool_transfer::{Direction, Method, Question, Thresholds};
/// let question = Question {
///     direction: Direction::ToDevice,
///     descriptors: 100,
///     bytes: 100 << 21,
///     pinned: true,
///     packed: true,
///     has_batch: true,
///     capturing: false,
///     legacy_stream: false,
///     coherent: false,
///     inline: false,
/// };
/// // Pieces of 2 MiB are large enough for the copy engine.
/// assert_eq!(question.answer(&Thresholds::default())?, Method::Batch);
/// # Ok::<(), kvpool_transfer::TransferError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Direction of the copy.
    pub direction: Direction,
    /// Number of descriptors after neighbouring pieces were merged.
    pub descriptors: u64,
    /// Total number of bytes.
    pub bytes: u64,
    /// Whether the host memory is page-locked.
    pub pinned: bool,
    /// Whether each block on the host is contiguous, so that it can be moved as one piece.
    pub packed: bool,
    /// Whether the driver has the batched call (`cuMemcpyBatchAsync`).
    pub has_batch: bool,
    /// Whether the stream is being captured into a graph.
    pub capturing: bool,
    /// Whether the stream is the legacy default stream, which does not support batched calls.
    pub legacy_stream: bool,
    /// Whether the device accesses host memory coherently (NVLink-C2C).
    pub coherent: bool,
    /// Whether the copy is enqueued on the caller's stream instead of a stream of the engine.
    pub inline: bool,
}

impl Question {
    /// Returns the reason why a method cannot do this copy. `None` if it can.
    #[must_use]
    pub fn obstacle(&self, method: Method) -> Option<TransferError> {
        let refuse = |reason| Some(TransferError::Method { method, reason });
        let on_device = self.direction == Direction::OnDevice;
        match method {
            Method::Cpu => refuse("a store is on a device"),
            Method::Kernel if !on_device && !self.pinned => refuse("the host store is not pinned"),
            Method::Batch if !self.has_batch => refuse("the driver is older than 12.8"),
            Method::Batch if self.capturing => Some(TransferError::Capturing(
                "the driver cannot capture batched copies; use method kernel or memcpy",
            )),
            Method::Batch if self.legacy_stream => {
                refuse("the legacy default stream does not support batched copies")
            }
            Method::Batch if !on_device && !self.pinned => refuse("the host store is not pinned"),
            Method::Staged if on_device => refuse("the copy is within a device"),
            Method::Staged if self.capturing => {
                Some(TransferError::Capturing("staging buffers are shared; use method kernel or memcpy"))
            }
            Method::Staged if self.pinned && !self.packed => {
                refuse("the blocks of the host store are scattered; those of BlockStore.host are contiguous")
            }
            Method::Staged if !self.pinned && self.inline => {
                refuse("a pageable host store is staged by submit only")
            }
            Method::Memcpy if self.capturing && !on_device && !self.pinned => {
                Some(TransferError::Capturing("the host store is not pinned"))
            }
            _ => None,
        }
    }

    /// Returns the method that the caller requested, if it can do this copy. For `Auto`, returns the
    /// planner's choice.
    ///
    /// # Errors
    /// Like [`Self::answer`] and [`Self::obstacle`].
    pub fn choose(&self, method: Method, thresholds: &Thresholds) -> Result<Method, TransferError> {
        match method {
            Method::Auto => self.answer(thresholds),
            forced => self.obstacle(forced).map_or(Ok(forced), Err),
        }
    }

    /// Returns the planner's method for this copy.
    ///
    /// # Errors
    /// [`TransferError::Capturing`] for a capture with pageable memory, which no method can copy.
    pub fn answer(&self, thresholds: &Thresholds) -> Result<Method, TransferError> {
        let wanted = if self.direction == Direction::OnDevice {
            Method::Kernel
        } else if !self.pinned {
            if self.inline { Method::Memcpy } else { Method::Staged }
        } else if self.coherent {
            Method::Kernel
        } else {
            let each = self.bytes / self.descriptors.max(1);
            if each >= thresholds.batch_from(self.direction, self.descriptors) {
                Method::Batch
            } else {
                around_copy_engine(self.direction, self.bytes)
            }
        };
        // If the preferred method cannot do this copy, use `memcpy` (which every driver has) for few
        // descriptors, and a kernel for more.
        let fallback = if self.descriptors < 16 { Method::Memcpy } else { Method::Kernel };
        let chosen = [wanted, fallback, Method::Memcpy].into_iter().find(|&one| self.obstacle(one).is_none());
        chosen.ok_or(TransferError::Capturing("the host store is not pinned"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Question = Question {
        direction: Direction::ToHost,
        descriptors: 4096,
        bytes: 4096 * 8192,
        pinned: true,
        packed: true,
        has_batch: true,
        capturing: false,
        legacy_stream: false,
        coherent: false,
        inline: false,
    };

    #[test]
    fn each_situation_has_its_method() {
        let large = Question { bytes: 4096 << 20, ..SMALL };
        let into = Question { direction: Direction::ToDevice, ..SMALL };
        let cases = [
            (SMALL, Method::Staged),
            (into, Method::Kernel),
            (Question { bytes: STAGED_FROM, ..into }, Method::Staged),
            (Question { bytes: STAGED_FROM, packed: false, ..into }, Method::Kernel),
            (large, Method::Batch),
            (Question { direction: Direction::ToDevice, ..large }, Method::Batch),
            (Question { direction: Direction::OnDevice, ..large }, Method::Kernel),
            (Question { packed: false, ..SMALL }, Method::Kernel),
            (Question { capturing: true, ..SMALL }, Method::Kernel),
            (Question { capturing: true, ..large }, Method::Kernel),
            (Question { capturing: true, descriptors: 2, ..large }, Method::Memcpy),
            (Question { has_batch: false, ..large }, Method::Kernel),
            (Question { legacy_stream: true, descriptors: 3, ..large }, Method::Memcpy),
            (Question { coherent: true, ..large }, Method::Kernel),
            (Question { pinned: false, ..SMALL }, Method::Staged),
            (Question { pinned: false, inline: true, ..SMALL }, Method::Memcpy),
            (Question { descriptors: 3, bytes: 3 * 8192, ..SMALL }, Method::Batch),
        ];
        for (question, method) in cases {
            assert_eq!(question.answer(&Thresholds::default()), Ok(method), "{question:?}");
        }
        let captured = Question { capturing: true, pinned: false, ..SMALL };
        assert!(matches!(captured.answer(&Thresholds::default()), Err(TransferError::Capturing(_))));
    }

    #[test]
    fn an_answer_has_no_obstacle_and_forced_methods_say_why() {
        for bits in 0..1_u32 << 7 {
            for direction in [Direction::OnDevice, Direction::ToDevice, Direction::ToHost] {
                for descriptors in [0, 1, 16, 4096] {
                    let bit = |index: u32| bits >> index & 1 == 1;
                    let question = Question {
                        direction,
                        descriptors,
                        bytes: descriptors << 13,
                        pinned: bit(0),
                        packed: bit(1),
                        has_batch: bit(2),
                        capturing: bit(3),
                        legacy_stream: bit(4),
                        coherent: bit(5),
                        inline: bit(6),
                    };
                    match question.answer(&Thresholds::default()) {
                        Ok(method) => assert_eq!(question.obstacle(method), None, "{question:?} {method}"),
                        Err(_) => assert!(question.capturing && !question.pinned, "{question:?}"),
                    }
                }
            }
        }
    }
}
