//! `Backend`: the interface to the place where objects are kept. It is small: a back end moves bytes,
//! and may fail, stall, lose objects or return wrong bytes.
//!
//! The [`Store`](crate::Store) does everything else, alike for all back ends: checks, index, bound,
//! eviction, admission, deadlines.
//!
//! A back end has *places*, numbered from 0. The store never has more than one object at a place, so
//! `places * object_bytes` bounds the space of its objects. A slab writes an object at its place. A
//! key-value server uses only the names of objects, and deletes the objects that the store names as
//! replaced by a new one. Other engines may write to a server, too; the store then asks the server for
//! objects that it does not know.

use std::fmt;

use crate::error::BackendError;
use crate::generation::Generation;
use crate::namespace::{Namespace, NamespaceDigest};
use crate::object::{Object, ObjectMut, ObjectName, Place};
use crate::transfer::{Moving, Transfer};

/// A container of objects. Worker threads call it, several at a time, but never two at a time for one
/// place. Every call may block.
///
/// Payloads are whole pages of page-aligned memory. The bytes after the first `len` have no meaning and
/// need not be kept.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Name of the back end, as users write it.
    fn name(&self) -> &'static str;

    /// Largest number of objects. It never changes.
    fn places(&self) -> u32;

    /// Largest number of bytes that one object takes, with all overhead.
    fn object_bytes(&self) -> u64;

    /// Largest number of bytes of a payload.
    fn max_payload(&self) -> u32;

    /// Whether other engines write to the back end, so that it may have objects that this store does
    /// not know.
    fn is_shared(&self) -> bool {
        false
    }

    /// Calls `found` for everything at its places that may be a header, in the order of the places. The
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

    /// Reads the recorded generation of a namespace; `None` if the record is missing or damaged.
    ///
    /// # Errors
    /// [`BackendError`] if the record cannot be read.
    fn generation(&self, of: NamespaceDigest) -> Result<Option<Generation>, BackendError>;

    /// Records the generation of a namespace. The record MUST survive a `kill -9` of this process once
    /// this returns. Without `replaces` an existing record stays.
    ///
    /// # Errors
    /// [`BackendError`]. Then the record is the old one or the new one.
    fn record_generation(
        &self,
        of: NamespaceDigest,
        generation: Generation,
        replaces: bool,
    ) -> Result<(), BackendError>;

    /// Keeps the text of a namespace for tools that inspect the objects. The store calls this at its
    /// start and at a renewal.
    ///
    /// # Errors
    /// [`BackendError`]. Then tools know only the digest of the namespace. The store continues.
    fn describe(&self, _namespace: &Namespace) -> Result<(), BackendError> {
        Ok(())
    }

    /// Writes an object to `place`. Objects that are named in `replaces` may be there. They MUST be
    /// gone before the new object is there. If the process ends halfway, the place MUST NOT contain a
    /// header with another payload, except for damage that checksums find.
    ///
    /// # Errors
    /// [`BackendError`]. Then anything may be at the place; the store clears it.
    fn write(
        &self,
        place: Place,
        name: &ObjectName,
        replaces: &[ObjectName],
        object: Object<'_>,
    ) -> Result<(), BackendError>;

    /// Returns a lane, with which one worker has several transfers in flight at once. Without a lane
    /// the worker makes one call at a time.
    fn lane(&self) -> Option<Box<dyn Lane + '_>> {
        None
    }

    /// Reads the object at `place`, or by its name if no place is known. `into` receives the header and
    /// the pages of a payload of `len` bytes. The back end need not check them.
    ///
    /// # Errors
    /// [`BackendError`]; [`BackendError::Absent`] if the back end knows that it does not have this
    /// object.
    fn read(&self, place: Option<Place>, name: &ObjectName, into: ObjectMut<'_>) -> Result<(), BackendError>;

    /// Returns for each object whether the back end has it. The store asks only shared back ends.
    ///
    /// # Errors
    /// [`BackendError`].
    fn exist(&self, names: &[ObjectName]) -> Result<Vec<bool>, BackendError> {
        Ok(vec![false; names.len()])
    }

    /// Removes the objects of `names` at `place`. They are gone after a restart, too. Without a place,
    /// removes the objects of these names, wherever they are.
    ///
    /// # Errors
    /// [`BackendError`]. Then the objects may still be there. The store tries again if it knows the
    /// place.
    fn clear(&self, place: Option<Place>, names: &[ObjectName]) -> Result<(), BackendError>;
}

/// Several transfers of one worker in flight at once. Each does what [`Backend::read`] or
/// [`Backend::write`] does.
///
/// Dropping a lane waits for the transfers in flight, and releases their memory only then.
pub trait Lane: fmt::Debug {
    /// Largest number of transfers in flight.
    fn room(&self) -> usize;

    /// Starts a transfer. A transfer that cannot be started ends at once.
    fn start(&mut self, transfer: Transfer);

    /// Waits for the end of a transfer. `None` if the lane is broken: it cannot be used any more, and
    /// the slots of its transfers stay taken.
    fn next(&mut self) -> Option<(Transfer, Result<(), BackendError>)>;
}

/// Moves the object of a transfer, in one call.
pub(crate) fn perform(transfer: &mut Transfer, backend: &dyn Backend) -> Result<(), BackendError> {
    match transfer.moving() {
        Moving::Read(place, name, into) => backend.read(place, name, into),
        Moving::Write(place, name, replaces, object) => backend.write(place, name, replaces, object),
    }
}

/// Returns the namespace in which objects are stored now. Creates a missing record. Waits for the back
/// end.
///
/// # Errors
/// [`BackendError`] if the record cannot be read, or a missing one cannot be written.
pub(crate) fn current_namespace(
    backend: &dyn Backend,
    namespace: &Namespace,
) -> Result<Namespace, BackendError> {
    let of = namespace.digest();
    if let Some(found) = backend.generation(of)? {
        return Ok(namespace.of_generation(found));
    }
    // Several engines may create the record at once. The record that exists afterwards is valid for
    // all.
    backend.record_generation(of, Generation::fresh(), false)?;
    if let Some(found) = backend.generation(of)? {
        return Ok(namespace.of_generation(found));
    }
    let fresh = Generation::fresh(); // the record is damaged
    backend.record_generation(of, fresh, true)?;
    Ok(namespace.of_generation(fresh))
}
