//! The values of other modules, as they stand in the stream. The lists only ever grow, at their ends.

use super::codec::{DecodeError, Field, Reader, fields, variants};
use crate::ctl::Proto;
use crate::tcp::Seq;
use crate::udp::SendOptions;

variants!(Proto as "a port's protocol" { Tcp = 6, Udp = 17 });
fields!(SendOptions { ttl, dont_fragment });

impl Field for Seq {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        u32::take(r).map(Seq)
    }

    fn missing() -> Option<Self> {
        Some(Seq(0))
    }
}
