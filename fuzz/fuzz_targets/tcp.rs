//! See `netd::fuzzing::tcp`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netd::fuzzing::tcp(data));
