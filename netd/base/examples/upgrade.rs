//! A session that an older version of a program wrote, read by a newer one that counts packets as well.
//!
//! Run it by `cargo run -p netd-base --example upgrade`.

use std::time::Duration;

use netd_base::codec::{DecodeError, Field, Reader, fields};
use netd_base::time::Time;

mod older {
    use super::*;

    pub(crate) struct Session {
        pub(crate) opened: Time,
        pub(crate) bytes: u64,
    }

    fields!(Session { opened, bytes });
}

mod newer {
    use super::*;

    #[derive(Debug)]
    pub(crate) struct Session {
        pub(crate) opened: Time,
        pub(crate) bytes: u64,
        pub(crate) packets: u64,
        pub(crate) cache: Vec<u8>,
    }

    // A new field is appended; a cache is not worth a place in the stream.
    fields!(Session { opened, bytes, packets } except { cache: Vec::new() });
}

fn main() -> Result<(), DecodeError> {
    let now = Time::from_millis(5000);
    let mut stream = Vec::new();
    older::Session { opened: now, bytes: 4096 }.put(&mut stream);

    let session = newer::Session::take(&mut Reader::new(&stream))?;
    let later = now + Duration::from_secs(3);
    println!(
        "{} bytes in {:?}, packets {}, cache {:?}",
        session.bytes,
        later.since(session.opened),
        session.packets,
        session.cache
    );
    Ok(())
}
