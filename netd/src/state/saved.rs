//! The values of other modules, as they stand in the stream. The lists only ever grow, at their ends.

use netd_base::codec::{fields, variants};

use crate::port::Proto;
use crate::udp::SendOptions;

variants!(Proto as "a port's protocol" { Tcp = 6, Udp = 17 });
fields!(SendOptions { ttl, dont_fragment });
