//! `Backend`: where objects are kept. As little as possible: a back end moves bytes, and may fail,
//! stall, forget or lie.
//!
//! Everything else is the [`Store`](crate::Store)'s, for all of them alike: checks, index, bound,
//! eviction, admission, deadlines.
//!
//! A back end has *places*, numbered from 0. The store never has more than one object at a place, so
//! `places * object_bytes` bounds what it takes. A slab writes objects where their places are; a server
//! of keys and values goes by their names alone, and deletes what the store says a new object replaces.
//! Others may write to a server, too: then it is asked for what this store does not know of.

use std::fmt;

use crate::error::BackendError;
use crate::generation::Generation;
use crate::namespace::{Namespace, NamespaceDigest};
use crate::object::{Object, ObjectMut, ObjectName, Place};
use crate::transfer::{Moving, Transfer};

/// A store of objects. Called by worker threads, several at once, never twice at once for one place;
/// every call may block.
///
/// Payloads come as whole pages of page-aligned memory. What stands behind the first `len` bytes has no
/// meaning and need not be kept.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Its name, as users write it.
    fn name(&self) -> &'static str;

    /// How many objects it may hold. Always the same.
    fn places(&self) -> u32;

    /// Bytes that one object takes at most, with all that hangs on it.
    fn object_bytes(&self) -> u64;

    /// The longest payload.
    fn max_payload(&self) -> u32;

    /// Whether others write to it as well: then an object may be there that this store does not know of.
    fn is_shared(&self) -> bool {
        false
    }

    /// Tells of everything at its places that may be a header, in the order of the places: called once,
    /// before what follows. A shared back end may tell of nothing, or of what `namespace` has there.
    ///
    /// # Errors
    /// [`BackendError`] if it cannot be told what is there.
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

    /// Records the generation of a namespace. The record MUST survive a `kill -9` of this process once this
    /// returns. Without `replaces` an existing record stays.
    ///
    /// # Errors
    /// [`BackendError`]. Then the record is the one of before, or the new one.
    fn record_generation(
        &self,
        of: NamespaceDigest,
        generation: Generation,
        replaces: bool,
    ) -> Result<(), BackendError>;

    /// Keeps the text of a namespace, for who looks at the objects from outside. Called at the start and by a
    /// renewal.
    ///
    /// # Errors
    /// [`BackendError`]: then objects have a digest alone. The store goes on.
    fn describe(&self, _namespace: &Namespace) -> Result<(), BackendError> {
        Ok(())
    }

    /// Writes an object to `place`, where those that are named `replaces` may be, which MUST be gone
    /// before it is there. If the process ends in the middle, what is at the place MUST NOT be a header
    /// with another payload, short of what checksums find.
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

    /// A way for one worker to have several transfers on their way at once. Without one it has one call
    /// after the other.
    fn lane(&self) -> Option<Box<dyn Lane + '_>> {
        None
    }

    /// Reads what is at `place`, or has the name where no place is known, into `header` and the pages
    /// of a payload of `len` bytes. It need not check anything.
    ///
    /// # Errors
    /// [`BackendError`]; [`BackendError::Absent`] if it knows that there is no such object.
    fn read(&self, place: Option<Place>, name: &ObjectName, into: ObjectMut<'_>) -> Result<(), BackendError>;

    /// Which objects are there. Asked of shared back ends alone.
    ///
    /// # Errors
    /// [`BackendError`].
    fn exist(&self, names: &[ObjectName]) -> Result<Vec<bool>, BackendError> {
        Ok(vec![false; names.len()])
    }

    /// Makes sure that no object is at `place`, where those of `names` may be: not after a restart
    /// either. Without a place those of the names go, wherever they are.
    ///
    /// # Errors
    /// [`BackendError`]: they may be there still. The store tries again where it knows the place.
    fn clear(&self, place: Option<Place>, names: &[ObjectName]) -> Result<(), BackendError>;
}

/// Several transfers of one worker at once. It does for each what [`Backend::read`] or
/// [`Backend::write`] does.
///
/// Dropping it waits for what is on its way: until then memory of transfers is not let go.
pub trait Lane: fmt::Debug {
    /// How many may be on their way.
    fn room(&self) -> usize;

    /// Begins one. What cannot be begun has ended at once.
    fn start(&mut self, transfer: Transfer);

    /// Waits for one to end. `None` if that cannot be had any more: the lane is of no use, and what it
    /// has stays taken.
    fn next(&mut self) -> Option<(Transfer, Result<(), BackendError>)>;
}

/// Moves what a transfer is of, in one call.
pub(crate) fn perform(transfer: &mut Transfer, backend: &dyn Backend) -> Result<(), BackendError> {
    match transfer.moving() {
        Moving::Read(place, name, into) => backend.read(place, name, into),
        Moving::Write(place, name, replaces, object) => backend.write(place, name, replaces, object),
    }
}

/// Returns the namespace that objects carry now. Creates a missing record. Waits for the back end.
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
    // Several engines may create it at once: the record that is there afterwards counts.
    backend.record_generation(of, Generation::fresh(), false)?;
    if let Some(found) = backend.generation(of)? {
        return Ok(namespace.of_generation(found));
    }
    let fresh = Generation::fresh(); // the record is damaged
    backend.record_generation(of, fresh, true)?;
    Ok(namespace.of_generation(fresh))
}
