//! `Backend`: the interface to the medium that stores objects. It is small: a back end moves bytes, and
//! may fail, stall, lose objects or return wrong bytes.
//!
//! The [`Store`](crate::Store) does everything else in the same way for all back ends: checks, index,
//! bound, eviction, admission and deadlines.
//!
//! A back end has *places*, which are numbered from 0. The store never has more than one object at a
//! place, so `places * object_bytes` bounds the space of its objects. A back end on a disk writes an
//! object at its place. A key-value server uses only the names of objects. When the store replaces an
//! object, it passes the name of the old object, and the server deletes that object. Other engines may
//! also write to a server. The store then asks the server for objects that it does not know.

use std::fmt;

use crate::error::BackendError;
use crate::generation::Generation;
use crate::namespace::{Namespace, NamespaceDigest};
use crate::object::{Object, ObjectMut, ObjectName, Place};
use crate::transfer::{Moving, Transfer};

/// A medium that stores objects. Worker threads call it: several at a time, but never two at a time for
/// one place. Every call may block.
///
/// Payloads are whole pages of page-aligned memory. The bytes after the first `len` have no meaning and
/// need not be stored.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Name of the back end, as users write it.
    fn name(&self) -> &'static str;

    /// Largest number of objects that the back end can hold. It never changes.
    fn places(&self) -> u32;

    /// Largest number of bytes that one object takes, including all overhead.
    fn object_bytes(&self) -> u64;

    /// Largest number of bytes in a payload.
    fn max_payload(&self) -> u32;

    /// Whether other engines also write to the back end. The back end may then have objects that are
    /// unknown to this store.
    fn is_shared(&self) -> bool {
        false
    }

    /// Calls `found` for each place whose content may be a header, in the order of the places. The
    /// store calls this once, before the methods below. A shared back end may report nothing, or only
    /// the objects of `namespace`.
    ///
    /// # Errors
    /// [`BackendError`] if the objects cannot be listed.
    fn restore(
        &self,
        namespace: NamespaceDigest,
        found: &mut dyn FnMut(Place, &[u8]),
    ) -> Result<(), BackendError>;

    /// Reads the recorded generation of a namespace. Returns `None` if the record is missing or
    /// damaged.
    ///
    /// # Errors
    /// [`BackendError`] if the record cannot be read.
    fn generation(&self, of: NamespaceDigest) -> Result<Option<Generation>, BackendError>;

    /// Records the generation of a namespace. Once this returns, the record MUST survive a `kill -9` of
    /// this process. If `replaces` is false, an existing record remains.
    ///
    /// # Errors
    /// [`BackendError`] if the record cannot be written. The back end then has the old record or the
    /// new one.
    fn record_generation(
        &self,
        of: NamespaceDigest,
        generation: Generation,
        replaces: bool,
    ) -> Result<(), BackendError>;

    /// Stores the text of a namespace for tools that inspect the objects. The store calls this when it
    /// opens and at a renewal.
    ///
    /// # Errors
    /// [`BackendError`] if the text cannot be stored. Tools then know only the digest of the namespace,
    /// and the store continues.
    fn describe(&self, _namespace: &Namespace) -> Result<(), BackendError> {
        Ok(())
    }

    /// Writes an object to `place`. The objects in `replaces` may still be at this place. They MUST be
    /// gone before the new object exists. If the process ends during the write, the place MUST NOT
    /// contain a header with the payload of another object. Damage that the checksums find is allowed.
    ///
    /// # Errors
    /// [`BackendError`] if the write failed. The place may then contain anything, so the store clears
    /// it.
    fn write(
        &self,
        place: Place,
        name: &ObjectName,
        replaces: &[ObjectName],
        object: Object<'_>,
    ) -> Result<(), BackendError>;

    /// Returns a lane, which lets one worker have several transfers in flight at once. If the result is
    /// `None`, the worker makes one call at a time.
    fn lane(&self) -> Option<Box<dyn Lane + '_>> {
        None
    }

    /// Reads the object at `place`, or by its name if no place is known. Fills `into` with the header
    /// and with the pages of a payload of `len` bytes. The back end need not check them.
    ///
    /// # Errors
    /// [`BackendError::Absent`] if the back end knows that it does not have this object; otherwise
    /// another [`BackendError`].
    fn read(&self, place: Option<Place>, name: &ObjectName, into: ObjectMut<'_>) -> Result<(), BackendError>;

    /// Returns for each object whether the back end has it. The store calls this only for shared back
    /// ends.
    ///
    /// # Errors
    /// [`BackendError`] if the back end does not answer.
    fn exist(&self, names: &[ObjectName]) -> Result<Vec<bool>, BackendError> {
        Ok(vec![false; names.len()])
    }

    /// Removes the objects of `names` at `place`. They must not exist after a restart either. Without a
    /// place, removes the objects of these names from any place.
    ///
    /// # Errors
    /// [`BackendError`] if the removal failed. The objects may then still exist. The store tries again
    /// if it knows the place.
    fn clear(&self, place: Option<Place>, names: &[ObjectName]) -> Result<(), BackendError>;
}

/// Runs several transfers of one worker at the same time. Each transfer does what [`Backend::read`] or
/// [`Backend::write`] does.
///
/// Dropping a lane waits for the transfers in flight, and releases their memory only then.
pub trait Lane: fmt::Debug {
    /// Largest number of transfers that the lane has in flight at the same time.
    fn room(&self) -> usize;

    /// Starts a transfer. If it cannot be started, [`Self::next`] returns it with an error.
    fn start(&mut self, transfer: Transfer);

    /// Waits until a transfer ends, and returns it. Returns `None` if the lane is broken. A broken lane
    /// cannot be used any more, and the slots of its transfers remain in use.
    fn next(&mut self) -> Option<(Transfer, Result<(), BackendError>)>;
}

/// Moves the object of a transfer with one call of the back end.
pub(crate) fn perform(transfer: &mut Transfer, backend: &dyn Backend) -> Result<(), BackendError> {
    match transfer.moving() {
        Moving::Read(place, name, into) => backend.read(place, name, into),
        Moving::Write(place, name, replaces, object) => backend.write(place, name, replaces, object),
    }
}

/// Returns the namespace, with its generation, in which objects are stored now. Creates the record if
/// it is missing. Waits for the back end.
///
/// # Errors
/// [`BackendError`] if the record cannot be read, or a missing record cannot be written.
pub(crate) fn current_namespace(
    backend: &dyn Backend,
    namespace: &Namespace,
) -> Result<Namespace, BackendError> {
    let of = namespace.digest();
    if let Some(found) = backend.generation(of)? {
        return Ok(namespace.of_generation(found));
    }
    // Several engines may create the record at once. All of them use the record that exists afterwards.
    backend.record_generation(of, Generation::fresh(), false)?;
    if let Some(found) = backend.generation(of)? {
        return Ok(namespace.of_generation(found));
    }
    let fresh = Generation::fresh(); // the record is damaged
    backend.record_generation(of, fresh, true)?;
    Ok(namespace.of_generation(fresh))
}
