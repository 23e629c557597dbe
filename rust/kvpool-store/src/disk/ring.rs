//! `Ring`: several transfers of one worker in flight at once, by `io_uring`.
//!
//! Owns: the memory of the transfers that the kernel has, from [`Lane::start`] until [`Lane::next`]
//! returns them. A transfer that ends short, or that is to be tried again, is repeated by a blocking
//! call.
//!
//! Invariants: the buffers of a transfer stay at their addresses, and its guards are held, for as long
//! as the kernel may touch them. Dropping the ring waits for that. If the end cannot be determined, the
//! memory is leaked and its slots stay taken.

#![expect(unsafe_code, reason = "passes the kernel addresses of memory that outlives its work")]

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::DiskBackend;
use crate::backend::{Lane, perform};
use crate::error::BackendError;
use crate::object::{PAGE, Page};
use crate::transfer::Transfer;

/// Largest number of transfers of one worker in flight.
const ROOM: usize = 8;
/// Number of bytes from which on a transfer is submitted to the kernel at once, and not together with
/// the next ones: compared with its checksum, a system call costs little.
const AT_ONCE: usize = 32 << 10;

/// Whether the kernel allows this process a ring.
pub(super) fn try_one() -> io::Result<()> {
    IoUring::new(1).map(drop)
}

/// A transfer that the kernel has.
struct Flight {
    transfer: Transfer,
    /// The page of the header, and the pages of the payload.
    buffers: [libc::iovec; 2],
}

struct Ring<'a> {
    disk: &'a DiskBackend,
    ring: IoUring,
    /// Transfers by number. The list has a fixed length, and its items are never moved.
    flights: Box<[Option<Flight>]>,
    /// Number of transfers that were not submitted to the kernel yet.
    unsent: usize,
    broken: bool,
    /// Transfers that the kernel did not accept.
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

    /// Waits for the end of a transfer. Returns its number and the kernel's result.
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

    /// Repeats a transfer by a blocking call.
    fn again(&self, transfer: &mut Transfer) -> Result<(), BackendError> {
        perform(transfer, self.disk)
    }
}

impl DiskBackend {
    /// Creates a ring for a worker, if the kernel allows it.
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
        // Take the addresses at the final place: the transfer is not moved again before it has ended.
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
        // SAFETY: the buffers are the header's page, which the transfer has on the heap, and the pages
        // of a slot. The transfer holds the guard of the slot, so that nothing else touches these
        // pages. From a transfer that is written, the kernel only reads. The transfer, and with it the
        // two `iovec`s, stays at its place in `flights` until the kernel has reported its end, or for
        // ever. The file is open as long as the disk, which this ring borrows.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(number as u64)) };
        if pushed.is_err()
            && let Some(flight) = self.flights[number].take()
        {
            return self.refused.push((flight.transfer, full()));
        }
        self.unsent += 1;
        // Submit now, so that the disk does not idle while the worker checks the next transfer. `wait`
        // submits what the kernel does not accept here.
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
            // The file ended early, for example because it was cut.
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

/// The error of a full ring. It does not occur: a worker starts no more transfers than `ROOM`, and the
/// ring has that number of entries.
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
