//! See `netd::fuzzing::vhost`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netd::fuzzing::vhost(data));
