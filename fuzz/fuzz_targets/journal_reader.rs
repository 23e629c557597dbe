//! [`kvpool_fuzz::journal_reader`] for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvpool_fuzz::journal_reader(data));
