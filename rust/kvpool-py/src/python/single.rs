//! Marks the types to which one Python object, and not a sequence of objects, is converted.

use std::path::PathBuf;

use pyo3::{Bound, PyRef};

/// A type whose conversion does not trust the length that an object reports. PyO3 reserves memory for a
/// `Vec<T>` by the length that a list reports, and the process aborts if there is too little. So
/// `gather.rs` converts lists.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not made of one object",
    note = "read a sequence with gather.rs, which trusts no length"
)]
pub(crate) trait Single {}

macro_rules! single {
    ($($type:ty),+) => {
        $(impl Single for $type {})+
    };
}

single!(bool, i64, i128, isize, u16, u32, u64, usize, i32, f64, String, &str, PathBuf);

impl<T> Single for Bound<'_, T> {}

impl<T: pyo3::PyClass> Single for PyRef<'_, T> {}

impl<T: Single> Single for Option<T> {}

macro_rules! tuples {
    ($(($($item:ident),+))+) => {
        $(impl<$($item: Single),+> Single for ($($item,)+) {})+
    };
}

tuples!((A, B)(A, B, C)(A, B, C, D)(A, B, C, D, E));
