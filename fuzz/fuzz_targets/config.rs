//! See `netd::fuzzing::config`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netd::fuzzing::config(data));
