//! [`kvpool_fuzz::index`] for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvpool_fuzz::index(data));
