//! See `netd::fuzzing::neighbours`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netd::fuzzing::neighbours(data));
