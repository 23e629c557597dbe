//! `Ring`: several transfers of one worker on their way at once, by `io_uring`.
//!
//! Owns: the memory of transfers that the kernel has, from [`Lane::start`] to the end that
//! [`Lane::next`] tells. What ends short, or is to be tried again, is done once more by a call that
//! waits.
//!
//! Invariants: a transfer's buffers stay where they are, and its guards are held, for as long as the
//! kernel may touch them. Dropping the ring waits for that; where it cannot be known, the memory is
//! leaked and its slots stay taken.

#![expect(unsafe_code, reason = "hands addresses to the kernel: of memory that stays until it has ended")]

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::DiskBackend;
use crate::backend::{Lane, perform};
use crate::error::BackendError;
use crate::object::{PAGE, Page};
use crate::transfer::Transfer;

/// Transfers of one worker on their way.
const ROOM: usize = 8;
/// Bytes from which on one is told to the kernel at once, not with those after it: a call of the system
/// is little beside its checksum.
const AT_ONCE: usize = 32 << 10;

/// Whether the kernel lets this process have one.
pub(super) fn try_one() -> io::Result<()> {
    IoUring::new(1).map(drop)
}

/// What the kernel has.
struct Flight {
    transfer: Transfer,
    /// The header's page, and the payload's pages.
    buffers: [libc::iovec; 2],
}

struct Ring<'a> {
    disk: &'a DiskBackend,
    ring: IoUring,
    /// By number; as many as there is room for, and never moved.
    flights: Box<[Option<Flight>]>,
    /// What the kernel was not told of yet.
    unsent: usize,
    broken: bool,
    /// What the kernel never had.
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

    /// Waits for an end: the number of the flight, and what the kernel says.
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

    /// Once more, by a call that waits.
    fn again(&self, transfer: &mut Transfer) -> Result<(), BackendError> {
        perform(transfer, self.disk)
    }
}

impl DiskBackend {
    /// A ring for a worker, if the kernel lets it have one.
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
        // The addresses are taken where it stays: it is not moved again before it has ended.
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
        // of a slot, whose guard it has, so that nothing else touches them; of a transfer that is
        // written the kernel only reads. The transfer, and with it the two `iovec`s, stays where it is
        // in `flights` until the kernel has told its end, or for ever. The file is open as long as the
        // disk, which this borrows.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(number as u64)) };
        if pushed.is_err()
            && let Some(flight) = self.flights[number].take()
        {
            return self.refused.push((flight.transfer, full()));
        }
        self.unsent += 1;
        // A disk is not to wait while the worker checks the next one. What the kernel does not take now
        // it takes in `wait`.
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
            // Less than all of it: of a file that was cut, for one.
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

/// Not seen: a worker starts no more than there is room for, and the ring has as many entries.
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
        // What the kernel may still have: for good.
        self.flights.iter_mut().filter_map(Option::take).for_each(std::mem::forget);
    }
}
