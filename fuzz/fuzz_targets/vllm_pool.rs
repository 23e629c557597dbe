//! [`kvpool_fuzz::vllm_pool`] for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvpool_fuzz::vllm_pool(data));
