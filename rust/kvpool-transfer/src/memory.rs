//! Copies bytes of this process by address, and maps pools of host memory.
//!
//! The unsafe code of this module is sound because of `Store`: the code that creates a store guarantees
//! that its addresses are valid, and its regions end within the address space. Every copy was checked
//! against the number of blocks, and the store lives until the copy has finished.

#![expect(unsafe_code, reason = "copies raw memory of a store; a comment at each use states why it is sound")]

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::error::TransferError;

/// A piece of memory to copy: source, destination and length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) src: u64,
    pub(crate) dst: u64,
    pub(crate) nbytes: u64,
}

/// Copies pieces that do not overlap.
///
/// # Safety
/// During the whole call, every source is readable and every destination is writable memory of this
/// process. No destination overlaps another piece. No other code writes to the sources or accesses the
/// destinations meanwhile.
pub(crate) unsafe fn copy_spans(spans: impl Iterator<Item = Span>) {
    for span in spans {
        // SAFETY: the caller guarantees what `# Safety` requires.
        unsafe {
            std::ptr::copy_nonoverlapping(span.src as *const u8, span.dst as *mut u8, span.nbytes as usize);
        }
    }
}

/// Reads `nbytes` bytes at `address`.
///
/// # Safety
/// These bytes are readable, and no other code writes to them meanwhile.
pub(crate) unsafe fn read(address: u64, nbytes: u64) -> Vec<u8> {
    // SAFETY: the caller guarantees what `# Safety` requires; a u8 has no alignment and no invalid
    // values.
    unsafe { std::slice::from_raw_parts(address as *const u8, nbytes as usize) }.to_vec()
}

/// Writes `bytes` at `address`.
///
/// # Safety
/// This memory is writable, and no other code accesses it meanwhile.
pub(crate) unsafe fn write(address: u64, bytes: &[u8]) {
    // SAFETY: the caller guarantees what `# Safety` requires, and borrowed bytes never belong to a
    // store.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
}

/// Rows of two 64-bit numbers with any stride, as in tensors.
#[derive(Clone, Copy, Debug)]
pub struct RawPairs {
    address: u64,
    rows: usize,
    row_stride: i64,
    column_stride: i64,
}

impl RawPairs {
    /// Describes `rows` rows at `address`. Strides are numbers of elements.
    ///
    /// # Safety
    /// All of these elements are readable and unchanged while this value is used. The address may be
    /// unaligned.
    #[must_use]
    pub const unsafe fn new(address: u64, rows: usize, row_stride: i64, column_stride: i64) -> Self {
        Self { address, rows, row_stride, column_stride }
    }

    /// Iterates over the rows.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (i64, i64)> + '_ {
        (0..self.rows).map(|row| {
            let at = self.address as *const i64;
            let row = row as i64 * self.row_stride;
            let number = |element: i64| {
                // SAFETY: the caller of `new` has guaranteed that this element is readable. The read is
                // unaligned, because a tensor may begin at an odd address.
                unsafe { at.offset(element as isize).read_unaligned() }
            };
            (number(row), number(row + self.column_stride))
        })
    }
}

/// The kind of pages that a pool of host memory uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Pages of the default size.
    Small,
    /// Huge pages if the kernel has some (`madvise`).
    Transparent,
    /// Huge pages that the system has reserved (`MAP_HUGETLB`).
    Huge,
}

impl PageKind {
    /// Returns the name of the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Transparent => "transparent",
            Self::Huge => "huge",
        }
    }
}

/// Anonymous memory, mapped in whole pages and unmapped when dropped.
#[derive(Debug)]
pub(crate) struct HostMemory {
    map: MmapRaw,
    pub(crate) pages: PageKind,
}

/// Base-2 logarithm of the size of a huge page in bytes.
const HUGE_BITS: u8 = 21;

impl HostMemory {
    /// Maps `nbytes` bytes of zeros. At the first access to a page, the kernel allocates memory for it:
    /// from huge pages if `huge` is true and they are available, and on the NUMA node.
    ///
    /// # Errors
    /// [`TransferError::HostMemory`] if there is not enough memory, or no such node.
    pub(crate) fn new(nbytes: u64, huge: bool, numa_node: Option<u32>) -> Result<Self, TransferError> {
        let refuse = |reason: String| TransferError::HostMemory { bytes: nbytes, reason };
        let length = usize::try_from(nbytes).map_err(|error| refuse(error.to_string()))?;
        // The length of a mapping of huge pages has to be a multiple of their size.
        let whole = length.checked_next_multiple_of(1 << HUGE_BITS).unwrap_or(length);
        let reserved =
            if huge { MmapOptions::new().len(whole).huge(Some(HUGE_BITS)).map_anon().ok() } else { None };
        let (map, pages): (MmapRaw, _) = match reserved {
            Some(map) => (map.into(), PageKind::Huge),
            None => {
                let map =
                    MmapOptions::new().len(length).map_anon().map_err(|error| refuse(error.to_string()))?;
                let advised = huge && map.advise(Advice::HugePage).is_ok();
                (map.into(), if advised { PageKind::Transparent } else { PageKind::Small })
            }
        };
        let memory = Self { map, pages };
        if let Some(node) = numa_node {
            memory.bind(node).map_err(|error| refuse(format!("NUMA node {node}: {error}")))?;
        }
        Ok(memory)
    }

    pub(crate) fn address(&self) -> u64 {
        self.map.as_mut_ptr() as u64
    }

    /// Binds pages that were not accessed yet to a NUMA node.
    fn bind(&self, node: u32) -> std::io::Result<()> {
        const BITS: u32 = usize::BITS;
        const NODES: u32 = 1024;
        if node >= NODES {
            return Err(std::io::Error::other(format!("nodes are numbered 0 to {}", NODES - 1)));
        }
        let mut mask = [0_usize; (NODES / BITS) as usize];
        mask[(node / BITS) as usize] = 1 << (node % BITS);
        // SAFETY: the range is this mapping; the mask outlives the call and has the announced number of
        // bits.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.map.as_mut_ptr(),
                self.map.len(),
                libc::MPOL_BIND,
                mask.as_ptr(),
                libc::c_ulong::from(NODES),
                0,
            )
        };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}
