//! The values of other modules, as they stand in the stream. The lists only ever grow, at their ends.

use netd_base::codec::fields;

use crate::udp::SendOptions;

fields!(SendOptions { ttl, dont_fragment });
