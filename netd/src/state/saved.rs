//! The values of other modules, as they stand in the stream. The lists only ever grow, at their ends.

use crate::codec::{DecodeError, Field, Reader, fields, variants};
use crate::net::MacAddr;
use crate::port::Proto;
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

impl Field for MacAddr {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.0);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(MacAddr(r.array()?))
    }
}
