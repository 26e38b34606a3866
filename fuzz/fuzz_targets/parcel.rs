//! See `netd::fuzzing::parcel`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netd::fuzzing::parcel(data));
