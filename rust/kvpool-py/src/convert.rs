//! Converts Python data to Rust data, once per call.
//!
//! Tokens are read through the buffer protocol (int32, uint32, int64, any strides), from an exact `list`, or
//! from any other sequence of ints. A CPU torch tensor is read without a copy, through `.numpy()`. Block ids
//! are returned as a list, or written to the caller's own int32 buffer.

use std::borrow::Cow;
use std::ffi::CStr;

use kvpool::{BlockId, NewBlock, Ticket, Until, shorten};
use pyo3::buffer::{Element, ElementType, PyUntypedBuffer};
use pyo3::exceptions::{PyMemoryError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFrozenSet, PyInt, PyList, PySet, PySlice, PyString, PyTuple};

use crate::errors::raise;
use crate::gather::{drain, list_of, no_room, with_room};
use crate::python::prelude::*;

/// A kind of integers, such as tokens or block ids, with the texts of its errors.
#[derive(Clone, Copy)]
struct Kind {
    what: &'static str,
    /// Names in `kvpool.errors` of the exceptions for a value that is out of range (`error`), and for a value
    /// of another type (`type_error`).
    error: &'static str,
    type_error: &'static str,
    max: u64,
}

const TOKENS: Kind =
    Kind { what: "token", error: "TokenError", type_error: "TokenTypeError", max: u32::MAX as u64 };
const BLOCKS: Kind = Kind {
    what: "block id",
    error: "InvalidBlockError",
    type_error: "ArgumentTypeError",
    max: u32::MAX as u64,
};
const COUNTS: Kind = Kind {
    what: "count",
    error: "InvalidArgumentError",
    type_error: "ArgumentTypeError",
    max: u32::MAX as u64,
};

/// Returns the items `start..end` of a list as 32-bit numbers, if every one is an exact `int` in range.
///
/// In the limited API, a safe access to an item increments and decrements its reference count, in two
/// calls. Prompts are lists of tens of thousands of items, so this function reads borrowed items.
pub(crate) fn exact_ints(list: &Bound<'_, PyList>, start: usize, end: usize) -> Option<Vec<u32>> {
    let mut out = Vec::new();
    out.try_reserve_exact(end.checked_sub(start)?).ok()?;
    // In a free-threaded interpreter, the critical section keeps other threads from changing the list. In an
    // interpreter with a global lock, it costs nothing.
    with_critical_section(list, || {
        if end > list.len() {
            return None;
        }
        for at in start..end {
            let mut overflow = 0;
            // SAFETY: `list` is a list and `at` is within it, so the call returns a borrowed item. The code
            // below neither runs Python code nor releases the list, so the item remains alive. The conversion
            // of an exact int does not raise.
            let value = unsafe {
                let item = ffi::PyList_GetItem(list.as_ptr(), at as ffi::Py_ssize_t);
                if item.is_null() || ffi::PyLong_CheckExact(item) == 0 {
                    return None;
                }
                ffi::PyLong_AsLongAndOverflow(item, &raw mut overflow)
            };
            out.push(u32::try_from(value).ok().filter(|_| overflow == 0)?);
        }
        Some(out)
    })
}

impl Kind {
    fn out_of_range(self, py: Python<'_>, position: usize, value: impl std::fmt::Display) -> PyErr {
        let Self { what, error, max, .. } = self;
        raise(py, error, format!("{what} {value} at position {position} is out of range: from 0 to {max}"))
    }

    fn wrong_type(self, py: Python<'_>, found: &str) -> PyErr {
        let what = self.what;
        let message = format!(
            "{found}: {what}s are a list of ints, or a one-dimensional buffer of int32, uint32 or int64 \
                (array, numpy, CPU torch tensor)"
        );
        raise(py, self.type_error, message)
    }

    fn item(self, position: usize, item: &Bound<'_, PyAny>) -> PyResult<u32> {
        let py = item.py();
        if !item.is_instance_of::<PyInt>() && !item.hasattr(intern!(py, "__index__"))?
            || item.is_instance_of::<PyBool>()
        {
            let found = format!("{} at position {position} is a {}", self.what, item.get_type().name()?);
            return Err(self.wrong_type(py, &found));
        }
        item.extract::<u32>().map_err(|error| {
            if error.is_instance_of::<PyOverflowError>(py) || error.is_instance_of::<PyValueError>(py) {
                self.out_of_range(py, position, shown(item))
            } else if error.is_instance_of::<PyTypeError>(py) {
                let name = item.get_type().name();
                let name = name.map_or_else(|_| "?".into(), |name| name.to_string());
                self.wrong_type(py, &format!("{} at position {position} is a {name}", self.what))
            } else {
                error
            }
        })
    }

    fn list(self, list: &Bound<'_, PyList>) -> PyResult<Vec<u32>> {
        // The fast path accepts only lists of exact ints in range. For other lists, `item` converts or
        // refuses each item.
        if let Some(out) = exact_ints(list, 0, list.len()) {
            return Ok(out);
        }
        drain(self.what, list.try_iter()?, |position, item| self.item(position, &item))
    }

    fn buffer(self, buffer: &PyUntypedBuffer, object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let py = object.py();
        if buffer.dimensions() != 1 {
            let found = format!("a buffer of {} dimensions", buffer.dimensions());
            return Err(self.wrong_type(py, &found));
        }
        match native(buffer.format()) {
            Some(ElementType::SignedInteger { bytes: 4 }) => {
                self.narrow_i32(py, &items(buffer, object, i32::from_ne_bytes)?)
            }
            Some(ElementType::SignedInteger { bytes: 8 }) => {
                self.narrow_i64(py, &items(buffer, object, i64::from_ne_bytes)?)
            }
            Some(ElementType::UnsignedInteger { bytes: 4 }) => items(buffer, object, u32::from_ne_bytes),
            _ => {
                let found = format!("a buffer of format {:?}", buffer.format());
                Err(self.wrong_type(py, &found))
            }
        }
    }

    /// Converts 32-bit values, of which none may be negative. Checking and converting are two passes, so that
    /// the compiler vectorises both.
    fn narrow_i32(self, py: Python<'_>, values: &[i32]) -> PyResult<Vec<u32>> {
        if values.iter().fold(0, |all, &value| all | value) < 0 {
            return Err(self.first_out_of_range(py, values));
        }
        list_of(py, self.what, values.iter().map(|&value| value.cast_unsigned()))
    }

    /// Like [`Self::narrow_i32`], for 64-bit values. A value fits 32 bits if no bit of its upper half is set.
    fn narrow_i64(self, py: Python<'_>, values: &[i64]) -> PyResult<Vec<u32>> {
        if values.iter().fold(0, |all, &value| all | (value >> 32)) != 0 {
            return Err(self.first_out_of_range(py, values));
        }
        list_of(py, self.what, values.iter().map(|&value| value as u32))
    }

    fn first_out_of_range<T: Copy + std::fmt::Display>(self, py: Python<'_>, values: &[T]) -> PyErr
    where
        u32: TryFrom<T>,
    {
        let wrong = values.iter().enumerate().find(|&(_, &value)| u32::try_from(value).is_err());
        let (position, value) = wrong.map_or((0, String::new()), |(at, value)| (at, value.to_string()));
        self.out_of_range(py, position, value)
    }

    fn any(self, object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let py = object.py();
        if let Ok(list) = object.cast_exact::<PyList>() {
            return self.list(list);
        }
        if let Ok(tuple) = object.cast_exact::<PyTuple>() {
            return self.list(&tuple.to_list());
        }
        let unordered = object.is_instance_of::<PySet>()
            || object.is_instance_of::<PyFrozenSet>()
            || object.is_instance_of::<PyDict>();
        if unordered || object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
            return Err(self.wrong_type(py, &format!("a {}", object.get_type().name()?)));
        }
        if let Some(buffer) = untyped(object) {
            return self.buffer(&buffer, object);
        }
        // A tensor does not have a buffer, but `numpy()` returns an object that has one.
        if object.hasattr(intern!(py, "data_ptr"))? {
            let array = object.call_method0(intern!(py, "numpy"))?;
            return self.buffer(&crate::python::untyped_buffer(&array)?, &array);
        }
        match object.try_iter() {
            Err(_) => Err(self.wrong_type(py, &format!("a {}", object.get_type().name()?))),
            Ok(items) => drain(self.what, items, |position, item| self.item(position, &item)),
        }
    }
}

/// Returns the type of a buffer's items. `None` if their byte order is not that of this machine.
pub(crate) fn native(format: &CStr) -> Option<ElementType> {
    let foreign: &[u8] = if cfg!(target_endian = "little") { b">!" } else { b"<" };
    let first = format.to_bytes().first()?;
    (!foreign.contains(first)).then(|| ElementType::from_format(format))
}

/// Returns the buffer of an object, if it has one. If the object leaves out fields of the buffer protocol,
/// such as strides, the buffer of a memoryview of it is returned.
pub(crate) fn untyped(object: &Bound<'_, PyAny>) -> Option<PyUntypedBuffer> {
    crate::python::untyped_buffer(object)
        .or_else(|_| crate::python::memory_view(object).and_then(|view| crate::python::untyped_buffer(&view)))
        .ok()
}

/// Returns the items of a one-dimensional buffer whose format was checked.
///
/// `PyBuffer` does not support memory that is not aligned for its items, an empty buffer without an
/// address, or an explicit byte order. For these, the function copies the bytes.
pub(crate) fn items<T: Element, const N: usize>(
    buffer: &PyUntypedBuffer,
    object: &Bound<'_, PyAny>,
    read: fn([u8; N]) -> T,
) -> PyResult<Vec<T>> {
    let (py, what) = (object.py(), "a buffer");
    if let Ok(typed) = buffer.as_typed::<T>() {
        // With a stride of 0, a buffer may report a terabyte of items that are all the same number, so
        // reserving memory may fail.
        let mut out = with_room(py, what, buffer.item_count())?;
        out.resize(buffer.item_count(), read([0; N]));
        typed.copy_to_slice(py, &mut out)?;
        return Ok(out);
    }
    let copied = crate::python::memory_view(object)?.call_method0(intern!(py, "tobytes"));
    let bytes = copied.map_err(|error| {
        let full = error.is_instance_of::<PyMemoryError>(py);
        if full { no_room(py, what, buffer.item_count()) } else { error }
    })?;
    list_of(py, what, bytes.cast::<PyBytes>()?.as_bytes().as_chunks::<N>().0.iter().copied().map(read))
}

/// An argument that is an int of up to 128 bits. If it has more bits, the error contains its value and the
/// name of the argument.
#[derive(Clone, Copy)]
pub(crate) struct Int(i128);

impl crate::python::Single for Int {}

impl FromPyObject<'_, '_> for Int {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match object.extract::<i64>() {
            Ok(value) => Ok(Self(value.into())),
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                let wide = object.extract().map_err(|_| {
                    let message =
                        format!("{} has more than 128 bits: must be at most {}", shown(&object), u64::MAX);
                    raise(object.py(), "InvalidArgumentError", message)
                })?;
                Ok(Self(wide))
            }
            Err(error) => Err(error),
        }
    }
}

impl From<i64> for Int {
    fn from(value: i64) -> Self {
        Self(value.into())
    }
}

impl From<Int> for i128 {
    fn from(int: Int) -> Self {
        int.0
    }
}

/// Returns a float from Python. The error for an int that is too large contains its value.
pub(crate) fn float(object: &Bound<'_, PyAny>) -> PyResult<f64> {
    object.extract::<f64>().map_err(|error| {
        if !error.is_instance_of::<PyOverflowError>(object.py()) {
            return error;
        }
        let message = format!("{} is more than a float holds: must be at most {:e}", shown(object), f64::MAX);
        raise(object.py(), "InvalidArgumentError", message)
    })
}

/// Returns an object as text for a message, shortened.
pub(crate) fn shown(object: &Bound<'_, PyAny>) -> String {
    let text = object.str().and_then(|text| Ok(text.to_str()?.to_owned()));
    // This fails for ints of more than 4,300 digits, because Python does not print them.
    text.map_or_else(|_| "a value that cannot be shown".into(), |text| shorten(&text).into_owned())
}

/// Returns text as UTF-8. A text with half of a surrogate pair has no UTF-8 form and is refused.
pub(crate) fn text<'a>(text: &'a Bound<'_, PyString>, what: &str) -> PyResult<&'a str> {
    text.to_str().map_err(|error| {
        let message =
            format!("{what} is no text, for it has no UTF-8 form: {}", shown(error.value(text.py())));
        raise(text.py(), "InvalidArgumentError", message)
    })
}

/// An argument that is any text, such as a path or a seed, and not one of a list of names.
pub(crate) struct Text(pub(crate) String);

impl crate::python::Single for Text {}

impl FromPyObject<'_, '_> for Text {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        Ok(Self(text(&object.cast::<PyString>()?.to_owned(), "an argument")?.to_owned()))
    }
}

pub(crate) fn tokens(object: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    TOKENS.any(object)
}

/// Counts of tokens.
pub(crate) fn counts(object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    Ok(COUNTS.any(object)?.into_iter().map(|count| count as usize).collect())
}

/// Block ids.
pub(crate) fn blocks(object: &Bound<'_, PyAny>) -> PyResult<Vec<BlockId>> {
    Ok(BLOCKS.any(object)?.into_iter().map(BlockId::new).collect())
}

pub(crate) fn is_one_block(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if object.cast_exact::<PyInt>().is_ok() {
        return Ok(true);
    }
    if object.cast_exact::<PyList>().is_ok() {
        return Ok(false);
    }
    Ok(object.is_instance_of::<PyInt>() || !has_items(object)?)
}

#[cold]
pub(crate) fn has_items(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match object.try_iter() {
        Ok(_) => Ok(true),
        Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => Ok(false),
        Err(error) => Err(error),
    }
}

/// One block id.
pub(crate) fn block(object: &Bound<'_, PyAny>) -> PyResult<BlockId> {
    BLOCKS.item(0, object).map(BlockId::new)
}

/// Returns a number of blocks, tokens or bytes, or the number of a step. The error for a value out of
/// range contains the name of the argument.
pub(crate) fn count(py: Python<'_>, name: &str, value: impl Into<i128>) -> PyResult<usize> {
    let value = value.into();
    usize::try_from(value).map_err(|_| {
        let limit = if value < 0 { "not be negative".into() } else { format!("be at most {}", usize::MAX) };
        raise(py, "InvalidArgumentError", format!("{name} is {value}: must {limit}"))
    })
}

pub(crate) fn ids(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.get()).collect()
}

/// The argument `out`: a writable int32 buffer of the caller. The constructor makes all checks, so writing
/// fails only if memory runs out.
struct Int32Out<'py> {
    /// A one-dimensional view of the buffer. `None` for a buffer without items.
    flat: Option<Bound<'py, PyAny>>,
    len: usize,
}

impl<'py> Int32Out<'py> {
    /// Checks that the object is a contiguous, writable int32 buffer, and that its shape `fits`. Errors
    /// contain `expected`, a description of such a buffer.
    fn new(object: &Bound<'py, PyAny>, expected: &str, fits: impl Fn(&[usize]) -> bool) -> PyResult<Self> {
        let py = object.py();
        let wrong =
            |found: &str| raise(py, "ArgumentTypeError", format!("out is {found}: must be {expected}"));
        let view = crate::python::memory_view(object).map_err(|_| wrong("not a buffer"))?;
        // The call refuses a buffer without dimensions. Otherwise ids would be written to its one item.
        let buffer = crate::python::untyped_buffer(&view).map_err(|_| wrong("of no dimensions"))?;
        if !matches!(native(buffer.format()), Some(ElementType::SignedInteger { bytes: 4 })) {
            return Err(wrong(&format!("of format {:?}", buffer.format())));
        }
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(wrong("read-only or strided"));
        }
        if !fits(buffer.shape()) {
            return Err(wrong(&format!("of shape {:?}", buffer.shape())));
        }
        let len = buffer.item_count();
        if len == 0 {
            return Ok(Self { flat: None, len });
        }
        // `PyBuffer` accepts the machine's byte order only without a prefix ("i", not "<i").
        let flat =
            view.call_method1(intern!(py, "cast"), ("B",))?.call_method1(intern!(py, "cast"), ("i",))?;
        crate::python::buffer::<i32>(&flat).map_err(|_| wrong("not aligned"))?;
        Ok(Self { flat: Some(flat), len })
    }

    /// Writes values from item `at` on, and drops those that do not fit.
    fn fill(&self, at: usize, values: impl Iterator<Item = i32>) -> PyResult<()> {
        let values: Vec<_> = values.take(self.len.saturating_sub(at)).collect();
        let Some(flat) = self.flat.as_ref().filter(|_| !values.is_empty()) else { return Ok(()) };
        let (from, end) = (at.cast_signed(), (at + values.len()).cast_signed());
        let part = flat.get_item(PySlice::new(flat.py(), from, end, 1))?;
        crate::python::buffer(&part)?.copy_from_slice(flat.py(), &values)
    }
}

pub(crate) struct IdsOut<'py>(Int32Out<'py>);

impl<'py> IdsOut<'py> {
    /// Checks everything about the buffer except its length, which [`Self::room`] returns.
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let expected = "a writable, contiguous, one-dimensional int32 buffer";
        Int32Out::new(object, expected, |shape| shape.len() == 1).map(Self)
    }

    /// Checks the buffer, and that it has space for `needed` ids.
    pub(crate) fn of(object: &Bound<'py, PyAny>, needed: usize) -> PyResult<Self> {
        let out = Self::new(object)?;
        if needed > out.room() { Err(too_short(object.py(), out.room(), needed)) } else { Ok(out) }
    }

    pub(crate) const fn room(&self) -> usize {
        self.0.len
    }

    /// Writes ids and returns their number. The caller has compared the number with [`Self::room`]
    /// before it changed anything.
    pub(crate) fn write(&self, blocks: &[BlockId]) -> PyResult<usize> {
        self.0.fill(0, blocks.iter().map(|block| block.get().cast_signed()))?;
        Ok(blocks.len())
    }

    /// Writes counts, and returns how many. A count above the largest int32 is written as the largest int32.
    pub(crate) fn write_counts(&self, counts: &[u32]) -> PyResult<usize> {
        self.0.fill(0, counts.iter().map(|&count| i32::try_from(count).unwrap_or(i32::MAX)))?;
        Ok(counts.len())
    }
}

/// Returns ids as a list. With a buffer of the caller, writes the ids to the buffer and returns their number.
pub(crate) fn handed_out<'py>(
    py: Python<'py>,
    blocks: &[BlockId],
    out: Option<IdsOut<'py>>,
) -> PyResult<Bound<'py, PyAny>> {
    match out {
        None => Ok(PyList::new(py, ids(blocks))?.into_any()),
        Some(out) => Ok(out.write(blocks)?.into_pyobject(py)?.into_any()),
    }
}

pub(crate) fn too_short(py: Python<'_>, room: usize, needed: usize) -> PyErr {
    let message = format!("out holds {room} ids, {needed} are needed: give a longer buffer");
    raise(py, "InvalidArgumentError", message)
}

/// A caller's int32 buffer for changes of block tables. Its parts are the columns of the result: rows of the
/// batch, positions in the table, blocks, and KV-cache groups if there are several.
pub(crate) struct ChangesOut<'py> {
    columns: usize,
    out: Int32Out<'py>,
}

impl<'py> ChangesOut<'py> {
    pub(crate) fn new(object: &Bound<'py, PyAny>, grouped: bool) -> PyResult<Self> {
        let columns = if grouped { 4 } else { 3 };
        let expected =
            format!("a writable, contiguous int32 buffer of shape ({columns}, n), or of {columns} * n items");
        let fits = |shape: &[usize]| match *shape {
            [items] => items.is_multiple_of(columns),
            [rows, _] => rows == columns,
            _ => false,
        };
        Ok(Self { columns, out: Int32Out::new(object, &expected, fits)? })
    }

    /// The number of changes for which the buffer has space.
    pub(crate) const fn most(&self) -> usize {
        self.out.len / self.columns
    }

    /// Writes the changes of block tables and returns their number. The caller has already checked that there
    /// are at most [`Self::most`] changes.
    pub(crate) fn write(&self, changes: &[NewBlock]) -> PyResult<usize> {
        let columns: [fn(&NewBlock) -> i32; 4] = [
            |change| change.row as i32,
            |change| change.index as i32,
            |change| change.block.get().cast_signed(),
            |change| change.group.into(),
        ];
        for (part, column) in columns.into_iter().take(self.columns).enumerate() {
            self.out.fill(part * self.most(), changes.iter().map(column))?;
        }
        Ok(changes.len())
    }
}

/// Returns the bytes of a `bytes`, or of a `str` as UTF-8.
pub(crate) fn bytes<'a>(object: &'a Bound<'_, PyAny>, name: &str) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Cow::Borrowed(self::text(text, name)?.as_bytes()));
    }
    let found = object.get_type().name()?;
    Err(raise(object.py(), "ArgumentTypeError", format!("{name} is a str or bytes, not a {found}")))
}

/// Converts the arguments `after_step` and `until`, of which at most one is given. The result determines when
/// released blocks may be allocated again.
pub(crate) fn until_of(py: Python<'_>, after_step: Option<Int>, until: Option<Int>) -> PyResult<Until> {
    match (after_step, until) {
        (None, None) => Ok(Until::Now),
        (Some(step), None) => Ok(Until::Step(count(py, "after_step", step)? as u64)),
        (None, Some(ticket)) => Ok(Until::Ticket(Ticket::new(count(py, "until", ticket)? as u64))),
        (Some(_), Some(_)) => Err(both(py, "after_step", "until")),
    }
}

/// Returns the error for an argument that is allowed only in another form of the call, such as for one
/// request.
pub(crate) fn only_for(py: Python<'_>, argument: &str, call: &str) -> PyErr {
    raise(py, "InvalidArgumentError", format!("{argument} is only for {call}"))
}

pub(crate) fn both(py: Python<'_>, one: &str, other: &str) -> PyErr {
    raise(py, "InvalidArgumentError", format!("{one} and {other} are both given: give one of them"))
}
