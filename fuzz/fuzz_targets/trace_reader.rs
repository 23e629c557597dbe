//! [`kvpool_fuzz::trace_reader`] for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvpool_fuzz::trace_reader(data));
