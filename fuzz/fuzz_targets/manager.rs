//! [`kvpool_fuzz::manager`] for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvpool_fuzz::manager(data));
