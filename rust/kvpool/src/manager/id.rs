//! Defines the ids and the states of requests.

use std::fmt;

use hashbrown::Equivalent;

use crate::shorten::shorten;

/// The id of a request: a number or a string, as the engine prefers. Every `i64` and every `u64` is a
/// distinct id. Equal numbers of different integer types are the same id, because the conversions
/// choose the same variant for them.
///
/// An engine with ids of another type can give each request a number, such as its index in the engine's
/// own slab or arena. Numbers have 8 bytes and are compared in one instruction. A UUID, or any other
/// type that can be formatted as text, is a string. The manager copies a string once, at the admission,
/// and later calls borrow it.
///
/// The manager is not generic over the type of ids, because journals, explanations and events contain
/// ids, too, and each of their types would need the type parameter.
///
/// ```
/// use kvpool::RequestId;
/// assert_eq!(RequestId::from(7u64), RequestId::from(7i32));
/// assert_ne!(RequestId::from(u64::MAX), RequestId::from(-1i64));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Id<S> {
    /// A number that an `i64` can represent.
    Int(i64),
    /// A string.
    Str(S),
    /// A number above [`i64::MAX`]. Do not use this variant for smaller numbers: they would not equal
    /// the same numbers in `Int`.
    Uint(u64),
}

/// The engine's id of a request.
pub type RequestId = Id<Box<str>>;

/// A borrowed [`RequestId`]. Lookups take this type, so that a string is not copied.
pub type RequestRef<'a> = Id<&'a str>;

impl RequestId {
    /// Returns the id in its borrowed form, without copying a string.
    #[must_use]
    pub fn as_ref(&self) -> RequestRef<'_> {
        match self {
            Self::Int(id) => Id::Int(*id),
            Self::Str(id) => Id::Str(id),
            Self::Uint(id) => Id::Uint(*id),
        }
    }
}

impl RequestRef<'_> {
    /// Copies the id to an owned form.
    #[must_use]
    pub fn to_owned(self) -> RequestId {
        match self {
            Self::Int(id) => Id::Int(id),
            Self::Str(id) => Id::Str(id.into()),
            Self::Uint(id) => Id::Uint(id),
        }
    }
}

impl Equivalent<RequestId> for RequestRef<'_> {
    fn equivalent(&self, id: &RequestId) -> bool {
        *self == id.as_ref()
    }
}

impl<S> From<i64> for Id<S> {
    fn from(id: i64) -> Self {
        Self::Int(id)
    }
}

impl<S> From<u64> for Id<S> {
    fn from(id: u64) -> Self {
        i64::try_from(id).map_or(Self::Uint(id), Self::Int)
    }
}

impl<S> From<i32> for Id<S> {
    fn from(id: i32) -> Self {
        Self::Int(id.into())
    }
}

impl<S> From<u32> for Id<S> {
    fn from(id: u32) -> Self {
        Self::Int(id.into())
    }
}

impl<S> From<usize> for Id<S> {
    fn from(id: usize) -> Self {
        Self::from(id as u64)
    }
}

impl From<&str> for RequestId {
    fn from(id: &str) -> Self {
        Self::Str(id.into())
    }
}

impl From<String> for RequestId {
    fn from(id: String) -> Self {
        Self::Str(id.into())
    }
}

impl<'a> From<&'a str> for RequestRef<'a> {
    fn from(id: &'a str) -> Self {
        Self::Str(id)
    }
}

impl<'a> From<&'a RequestId> for RequestRef<'a> {
    fn from(id: &'a RequestId) -> Self {
        id.as_ref()
    }
}

/// Formats the id for messages, and shortens a long string. `Debug` shows the whole string.
impl<S: AsRef<str>> fmt::Display for Id<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(id) => id.fmt(f),
            Self::Str(id) => write!(f, "{:?}", shorten(id.as_ref())),
            Self::Uint(id) => id.fmt(f),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Id<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(id) => id.fmt(f),
            Self::Str(id) => write!(f, "{id:?}"),
            Self::Uint(id) => id.fmt(f),
        }
    }
}

/// The state of a request: whether and where it holds blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestState {
    /// The request holds blocks of the device, and can get tokens and further blocks.
    Running,
    /// The request was preempted: it holds no blocks, and its tokens have to be computed again.
    Preempted,
    /// The request was preempted by swap: its blocks are in the host tier.
    Swapped,
    /// A swap is moving the request's blocks between the tiers.
    Moving,
    /// A connector is loading external tokens into the request's blocks. The request runs after
    /// [`crate::CacheManager::external_done`].
    Loading,
    /// The request was released while it was moving or loading. It releases its blocks when the move or
    /// the load ends.
    Releasing,
}

impl RequestState {
    /// Returns the name of the state, for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Preempted => "preempted",
            Self::Swapped => "swapped",
            Self::Moving => "moving",
            Self::Loading => "loading",
            Self::Releasing => "releasing",
        }
    }
}
