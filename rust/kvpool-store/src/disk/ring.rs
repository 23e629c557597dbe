//! `Ring`: runs several transfers of one worker at the same time, with `io_uring`.
//!
//! Owns: the memory of the transfers that were submitted to the kernel, from [`Lane::start`] until
//! [`Lane::next`] returns them. If the kernel moves only a part of a transfer, or asks to try again, a
//! blocking call repeats the transfer.
//!
//! Invariants: as long as the kernel may access the buffers of a transfer, the buffers remain at their
//! addresses and their guards are held. Dropping the ring waits for the kernel. If the ring cannot
//! determine whether the kernel has finished, it leaks the memory, and the slots remain in use.

#![expect(unsafe_code, reason = "passes the kernel addresses of memory that outlives its work")]

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::DiskBackend;
use crate::backend::{Lane, perform};
use crate::error::BackendError;
use crate::object::{PAGE, Page};
use crate::transfer::Transfer;

/// Largest number of transfers that one worker has in flight at the same time.
const ROOM: usize = 8;
/// Smallest number of bytes of a transfer that is submitted to the kernel immediately. Smaller
/// transfers are submitted together, because the cost of a system call matters for them.
const AT_ONCE: usize = 32 << 10;

/// Checks whether the kernel allows this process to create a ring.
pub(super) fn try_one() -> io::Result<()> {
    IoUring::new(1).map(drop)
}

struct Flight {
    transfer: Transfer,
    /// The page of the header, and the pages of the payload.
    buffers: [libc::iovec; 2],
}

struct Ring<'a> {
    disk: &'a DiskBackend,
    ring: IoUring,
    /// Transfers in the kernel. The index is the number that the kernel returns. The list has a fixed
    /// length, so its items are never moved in memory.
    flights: Box<[Option<Flight>]>,
    /// Number of transfers in the ring that were not yet submitted to the kernel.
    unsent: usize,
    broken: bool,
    /// Transfers that could not be started, with their errors.
    refused: Vec<(Transfer, BackendError)>,
}

impl std::fmt::Debug for Ring<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({} on their way)", self.flights.iter().flatten().count())
    }
}

impl<'a> Ring<'a> {
    fn open(disk: &'a DiskBackend) -> io::Result<Self> {
        let ring = IoUring::new(ROOM as u32)?;
        let flights = (0..ROOM).map(|_| None).collect();
        Ok(Self { disk, ring, flights, unsent: 0, broken: false, refused: Vec::new() })
    }

    /// Waits until a transfer ends. Returns its number and the result from the kernel.
    fn wait(&mut self) -> Option<(usize, i32)> {
        loop {
            if self.unsent > 0 || self.ring.completion().is_empty() {
                let wanted = usize::from(self.ring.completion().is_empty());
                match self.ring.submit_and_wait(wanted) {
                    Ok(sent) => self.unsent = self.unsent.saturating_sub(sent),
                    Err(error) => match error.raw_os_error() {
                        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                        _ => {
                            self.broken = true;
                            return None;
                        }
                    },
                }
            }
            if let Some(end) = self.ring.completion().next() {
                return Some((end.user_data() as usize, end.result()));
            }
        }
    }

    /// Repeats a transfer with a blocking call, after the kernel moved only a part of it or asked to try
    /// again.
    fn again(&self, transfer: &mut Transfer) -> Result<(), BackendError> {
        perform(transfer, self.disk)
    }
}

impl DiskBackend {
    pub(super) fn ring(&self) -> Option<Box<dyn Lane + '_>> {
        Ring::open(self).ok().map(|ring| Box::new(ring) as _)
    }
}

impl Lane for Ring<'_> {
    fn room(&self) -> usize {
        ROOM
    }

    fn start(&mut self, transfer: Transfer) {
        let place = transfer.place().ok_or(BackendError::Absent);
        let place = place.and_then(|place| {
            let unknown = if transfer.is_write() { self.disk.forget(place) } else { Ok(()) };
            unknown.map(|()| place)
        });
        let number = self.flights.iter().position(Option::is_none);
        let (place, number) = match (place, number) {
            (Ok(place), Some(number)) => (place, number),
            (Err(error), _) => return self.refused.push((transfer, error)),
            (Ok(_), None) => return self.refused.push((transfer, full())),
        };
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // Take the addresses only here, because the transfer is not moved in memory again before it has
        // finished.
        let Flight { transfer, buffers } =
            self.flights[number].insert(Flight { transfer, buffers: [none; 2] });
        let (page, payload, len) = transfer.memory();
        let page: *mut Page = &raw mut **page;
        buffers[0] = libc::iovec { iov_base: page.cast(), iov_len: PAGE };
        buffers[1] = libc::iovec { iov_base: payload.cast(), iov_len: len };
        let (first, count) = (buffers.as_ptr(), buffers.len() as u32);
        let (file, offset) = (types::Fd(self.disk.slab.file().as_raw_fd()), self.disk.slab.begin(place));
        let entry = if transfer.is_write() {
            opcode::Writev::new(file, first, count).offset(offset).build()
        } else {
            opcode::Readv::new(file, first, count).offset(offset).build()
        };
        // SAFETY: the buffers are the page of the header, which the transfer owns on the heap, and the
        // pages of a slot. The transfer holds the guard of the slot, so no other code accesses these
        // pages. If the transfer is a write, the kernel only reads them. The transfer and its two
        // `iovec`s remain in `flights` until the kernel has reported the end, or for ever. The file is
        // open as long as the disk, which this ring borrows.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(number as u64)) };
        if pushed.is_err()
            && let Some(flight) = self.flights[number].take()
        {
            return self.refused.push((flight.transfer, full()));
        }
        self.unsent += 1;
        // Submit a large transfer now, so that the disk is busy while the worker checks the next
        // transfer. If the kernel does not accept it here, `wait` submits it again.
        if len >= AT_ONCE
            && let Ok(sent) = self.ring.submit()
        {
            self.unsent = self.unsent.saturating_sub(sent);
        }
    }

    fn next(&mut self) -> Option<(Transfer, Result<(), BackendError>)> {
        if let Some((transfer, error)) = self.refused.pop() {
            return Some((transfer, Err(error)));
        }
        let (number, result) = self.wait()?;
        let mut transfer = self.flights.get_mut(number)?.take()?.transfer;
        let whole = PAGE + transfer.memory().2;
        let moved = match usize::try_from(result) {
            Ok(bytes) if bytes == whole => {
                if transfer.is_write()
                    && let Some(place) = transfer.place()
                {
                    let page: &Page = transfer.memory().0;
                    self.disk.note(place, page);
                }
                Ok(())
            }
            // The kernel moved fewer bytes than requested, for example because the file was truncated.
            Ok(_) => self.again(&mut transfer),
            Err(_) if matches!(-result, libc::EINTR | libc::EAGAIN) => self.again(&mut transfer),
            Err(_) => {
                let operation = if transfer.is_write() { "writing an object" } else { "reading an object" };
                Err(BackendError::io(operation)(io::Error::from_raw_os_error(-result)))
            }
        };
        Some((transfer, moved))
    }
}

/// Returns the error of a full ring. This error does not occur, because a worker starts at most `ROOM`
/// transfers, and the ring has `ROOM` entries.
fn full() -> BackendError {
    BackendError::io("starting a transfer")(io::Error::other("the ring is full"))
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        while !self.broken && self.flights.iter().any(Option::is_some) {
            if let Some((number, _)) = self.wait()
                && let Some(flight) = self.flights.get_mut(number)
            {
                *flight = None;
            }
        }
        // The kernel may still use this memory, so it is leaked.
        self.flights.iter_mut().filter_map(Option::take).for_each(std::mem::forget);
    }
}
