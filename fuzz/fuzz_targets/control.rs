//! See `netd::fuzzing::control`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netd::fuzzing::control(data));
