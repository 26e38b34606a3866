//! See `netd::fuzzing::ring`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netd::fuzzing::ring(data));
