//! [`kvpool_fuzz::free_list`] for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvpool_fuzz::free_list(data));
