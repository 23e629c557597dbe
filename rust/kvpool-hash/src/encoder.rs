//! `Encoder`: how a value of Python's becomes bytes, by pickle or CBOR.

/// The identity of a Python object: equal ids, same object. Any numbering will do, such as the object's
/// address.
///
/// The id decides a pickle's bytes: a string or bytes object that occurs a second time is written as a
/// reference to the first. Equal text in distinct objects is not. CBOR takes no notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

/// What both serializers can write.
pub(crate) trait Encoder {
    /// Announces a tuple of `len` members, which follow.
    fn begin_tuple(&mut self, len: usize);
    /// Ends it.
    fn end_tuple(&mut self, len: usize);
    fn none(&mut self);
    fn int(&mut self, value: i64);
    /// `object` is `None` for an object that surely occurs once.
    fn bytes(&mut self, bytes: &[u8], object: Option<ObjectId>);
    fn str(&mut self, text: &str, object: Option<ObjectId>);
}
