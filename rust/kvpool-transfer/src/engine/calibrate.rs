//! Measures the sizes from which on the copy engine is faster than kernels and staging, on this device
//! and link.
//!
//! Thresholds that were tuned on one card are wrong on the next. They also depend on the number of
//! pieces (vLLM #57555: on an A30 the faster method changes between 32 and 64 pieces of 8 KiB). A
//! calibration takes some seconds. It needs 256 MiB of memory on the device, and 512 MiB on the host.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use std::{fmt, fs};

use serde::{Deserialize, Serialize};

use super::{Options, TransferEngine};
use crate::driver::DeviceMemory;
use crate::error::TransferError;
use crate::planner::{Direction, Threshold, Thresholds, around_copy_engine};
use crate::region::Region;
use crate::store::{HostOptions, Store};
use crate::words::Method;

/// One measured copy: its method, the number and size of its pieces, and its duration in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// `to_device` or `to_host`.
    pub direction: String,
    /// Name of the method of copying that was measured.
    pub method: String,
    /// Number of pieces.
    pub pieces: u64,
    /// Number of bytes in each copied piece.
    pub bytes: u64,
    /// Number of thread blocks that a kernel may use to cross the link.
    pub ctas: u32,
    /// Seconds from the call to the end of the copy.
    pub seconds: f64,
}

/// The measurements of one device, and the thresholds that follow from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The device, address, and driver for which the calibration is valid.
    pub card: Card,
    /// The thresholds that the planner uses.
    pub thresholds: Thresholds,
    /// All measurements.
    pub measurements: Vec<Measurement>,
}

/// Identifies a device, its address and its driver. A calibration is valid only for these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// The device's name.
    pub name: String,
    /// Address of the device on the bus.
    pub pci: String,
    /// The driver's version: 1000 * major + 10 * minor.
    pub driver: i32,
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}, driver {}", self.name, self.pci, self.driver)
    }
}

/// The content of a calibration file: calibrations by card. One file can contain the cards of many
/// machines.
type File = BTreeMap<String, Calibration>;

impl Calibration {
    /// Adds this calibration to a file. Creates the file if it does not exist.
    ///
    /// # Errors
    /// [`TransferError::Calibration`].
    pub fn save(&self, path: &Path) -> Result<(), TransferError> {
        let mut file = if path.exists() { Self::read(path)? } else { File::new() };
        file.insert(self.card.to_string(), self.clone());
        let text = serde_json::to_string_pretty(&file).map_err(|error| Self::refuse(path, error))?;
        fs::write(path, text + "\n").map_err(|error| Self::refuse(path, error))
    }

    /// Reads the calibration of a card from a file.
    ///
    /// # Errors
    /// [`TransferError::Calibration`] if the file cannot be read, has another format, or has no
    /// calibration for this card.
    pub fn load(path: &Path, card: &Card) -> Result<Self, TransferError> {
        let known = Self::read(path)?.remove(&card.to_string());
        let known = known.ok_or_else(|| {
            Self::refuse(path, format!("the file has no calibration of {card}: run calibrate(save=...)"))
        })?;
        let Thresholds { to_device, to_host, link_ctas } = &known.thresholds;
        if !(1..=65_535).contains(link_ctas) {
            return Err(Self::refuse(path, format!("link_ctas is {link_ctas}: it is 1 to 65535")));
        }
        if ![to_device, to_host].iter().all(|rows| rows.is_sorted_by_key(|row| row.descriptors)) {
            return Err(Self::refuse(path, "thresholds do not ascend by descriptors"));
        }
        Ok(known)
    }

    fn read(path: &Path) -> Result<File, TransferError> {
        let text = fs::read_to_string(path).map_err(|error| Self::refuse(path, error))?;
        serde_json::from_str(&text).map_err(|error| Self::refuse(path, error))
    }

    fn refuse(path: &Path, reason: impl fmt::Display) -> TransferError {
        TransferError::Calibration { path: path.display().to_string(), reason: reason.to_string() }
    }
}

/// Number of regions of the measured store. This is the number of pieces per block.
const REGIONS: u64 = 8;
const PIECES: [u64; 2] = [64, 1024];
const BYTES: [u64; 7] = [4 << 10, 8 << 10, 16 << 10, 28 << 10, 64 << 10, 128 << 10, 256 << 10];
const CTAS: [u32; 4] = [4, 8, 16, 32];
const ROUNDS: usize = 3;

impl TransferEngine {
    /// Measures this device. The engine uses the resulting thresholds from now on.
    ///
    /// # Errors
    /// [`TransferError::Argument`] for an engine of the CPU, [`TransferError::Cuda`],
    /// [`TransferError::Pinning`].
    pub fn calibrate(self: &Arc<Self>) -> Result<Calibration, TransferError> {
        let Some(card) = self.card() else {
            return Err(TransferError::Argument {
                name: "device",
                value: self.device.to_string(),
                expected: "only links to CUDA devices are calibrated".into(),
            });
        };
        self.check_open()?;
        let before = self.thresholds();
        let result = self.measure_all(card);
        let after = result.as_ref().map_or(before, |calibration| calibration.thresholds.clone());
        self.set_thresholds(after);
        result
    }

    /// Replaces the thresholds of the planner.
    pub fn set_thresholds(&self, thresholds: Thresholds) {
        *self.thresholds.write().unwrap_or_else(std::sync::PoisonError::into_inner) = thresholds;
    }

    /// Identifies the device. `None` for an engine of the CPU.
    #[must_use]
    pub fn card(&self) -> Option<Card> {
        let cuda = self.cuda().ok()?;
        let context = &cuda.context;
        Some(Card { name: context.name.clone(), pci: context.pci.clone(), driver: context.driver_version })
    }

    fn measure_all(self: &Arc<Self>, card: Card) -> Result<Calibration, TransferError> {
        let mut measurements = Vec::new();
        let mut thresholds =
            Thresholds { to_device: Vec::new(), to_host: Vec::new(), ..Thresholds::default() };
        let stores = self.stores(PIECES[1], BYTES[1])?;
        // A few thread blocks saturate a link. Use the smallest number that reaches 95 % of the best
        // throughput.
        let mut seconds = Vec::new();
        for ctas in CTAS {
            self.set_thresholds(Thresholds { link_ctas: ctas, ..thresholds.clone() });
            let one = self.measure(&stores, Direction::ToDevice, Method::Kernel)?;
            seconds.push(one.seconds);
            measurements.push(one);
        }
        let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let enough = seconds.iter().position(|&one| one <= best / 0.95).unwrap_or(0);
        thresholds.link_ctas = CTAS[enough];
        self.set_thresholds(thresholds.clone());
        let has_batch = self.cuda()?.context.has_batch();
        for pieces in PIECES {
            // Find the smallest size from which on the copy engine is at least as fast, within 2 %, at
            // all larger sizes.
            let mut from = [0_u64; 2];
            for bytes in BYTES {
                let stores = self.stores(pieces, bytes)?;
                for (slot, direction) in [Direction::ToDevice, Direction::ToHost].into_iter().enumerate() {
                    let engine = if has_batch { Method::Batch } else { Method::Memcpy };
                    let one = self.measure(&stores, direction, engine)?;
                    let other = around_copy_engine(direction, pieces * bytes);
                    let other = self.measure(&stores, direction, other)?;
                    if one.seconds > 1.02 * other.seconds {
                        // The copy engine was slower even at the largest size, so use the default
                        // threshold.
                        let beyond = || Thresholds::default().batch_from(direction, pieces);
                        from[slot] = if Some(&bytes) == BYTES.last() { beyond() } else { bytes + 1 };
                    }
                    measurements.extend([one, other]);
                }
            }
            let rows = [&mut thresholds.to_device, &mut thresholds.to_host];
            for (rows, bytes) in rows.into_iter().zip(from) {
                // The threshold for the smaller number of pieces also applies to all numbers below it.
                let descriptors = if pieces == PIECES[0] { 0 } else { pieces };
                rows.push(Threshold { descriptors, bytes });
            }
        }
        Ok(Calibration { card, thresholds, measurements })
    }

    /// Makes a store on the device whose regions are not adjacent, and a page-locked host store.
    #[expect(unsafe_code, reason = "makes a store of new memory, which the store owns")]
    fn stores(self: &Arc<Self>, pieces: u64, bytes: u64) -> Result<[Arc<Store>; 2], TransferError> {
        let context = self.cuda()?.context.clone();
        let num_blocks = pieces / REGIONS;
        let plane = num_blocks * bytes;
        let memory = DeviceMemory::new(&context, REGIONS * plane)?;
        let region = |index| Region { base: memory.address + index * plane, stride: bytes, nbytes: bytes };
        let regions = (0..REGIONS).map(region).collect();
        // SAFETY: the regions are within `memory`, which the store keeps alive.
        let device = unsafe {
            Store::new(regions, num_blocks, self.device, Vec::new(), false, Some(Box::new(memory)))?
        };
        let options = HostOptions { pinned: Some(true), ..HostOptions::default() };
        // The host store has twice as many blocks as the copies use, so that no two of the used blocks
        // are adjacent.
        let host = Store::host(2 * num_blocks, &device, &options)?;
        Ok([device, host])
    }

    fn measure(
        self: &Arc<Self>,
        [device, host]: &[Arc<Store>; 2],
        direction: Direction,
        method: Method,
    ) -> Result<Measurement, TransferError> {
        let to_host = direction == Direction::ToHost;
        let (src, dst) = if to_host { (device, host) } else { (host, device) };
        let num_blocks = device.num_blocks() as i64;
        // Scatter the blocks, as after hours of serving. A step of 37 visits every block, because it
        // has no common factor with 8 or 128.
        let pair = |block| {
            let other = 2 * (block * 37 % num_blocks);
            if to_host { (block, other) } else { (other, block) }
        };
        let pairs: Vec<_> = (0..num_blocks).map(pair).collect();
        let options = Options { method, ..Options::default() };
        let mut seconds = Vec::with_capacity(ROUNDS);
        for round in 0..=ROUNDS {
            let start = Instant::now();
            self.submit(src, dst, pairs.iter().copied(), &options)?.wait(None)?;
            // Ignore the first round, because it creates buffers and loads code.
            if round > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        seconds.sort_by(f64::total_cmp);
        Ok(Measurement {
            direction: if to_host { "to_host" } else { "to_device" }.into(),
            method: method.name().into(),
            pieces: device.num_blocks() * REGIONS,
            bytes: src.regions()[0].nbytes,
            ctas: self.thresholds().link_ctas,
            seconds: seconds[ROUNDS / 2],
        })
    }
}
