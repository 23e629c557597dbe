//! The fuzz targets that do not use the laboratory, one file each.

pub mod free_list;
pub mod index;
#[cfg(feature = "readers")]
pub mod journal_reader;
#[cfg(feature = "readers")]
pub mod trace_reader;
