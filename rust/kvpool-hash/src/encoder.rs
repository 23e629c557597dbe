//! `Encoder`: the interface for writing Python values as pickle or as CBOR.

/// The identity of a Python object: equal ids mean the same object. The caller may choose any numbers,
/// such as the addresses of the objects.
///
/// The id affects the bytes of a pickle: if a string or bytes object occurs again, pickle writes a
/// reference to the first occurrence. If a distinct object has equal text, pickle writes the text
/// again. CBOR ignores ids.
///
/// ```
/// use kvpool_hash::HashAlgorithm::VllmSha256;
/// use kvpool_hash::vllm::{self, Atom, ObjectId};
/// let hash = |second| {
///     let key = vec![Atom::str("x", ObjectId(1)), Atom::str("x", ObjectId(second))];
///     vllm::hash_block(VllmSha256, &[0; 32], &[1, 2], Some(&[key]))
/// };
/// // One object that occurs twice, and two equal objects.
/// assert_ne!(hash(1)?, hash(2)?);
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

/// A serializer for Python values. It has a method for each kind of value that both pickle and CBOR can
/// write.
pub(crate) trait Encoder {
    /// Begins a tuple of `len` members. The caller then writes the members.
    fn begin_tuple(&mut self, len: usize);
    /// Ends a tuple. The caller has written all of its `len` members.
    fn end_tuple(&mut self, len: usize);
    fn none(&mut self);
    fn int(&mut self, value: i64);
    /// Writes a bytes object. `object` is `None` if the object occurs only once.
    fn bytes(&mut self, bytes: &[u8], object: Option<ObjectId>);
    fn str(&mut self, text: &str, object: Option<ObjectId>);
}
