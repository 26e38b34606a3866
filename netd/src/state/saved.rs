//! The values of other modules, as they stand in the stream. The lists only ever grow, at their ends.

use netd_base::codec::fields;

use crate::udp::SendOptions;

// What a flow goes on with is set anew with the guest's next datagram, so the class need not be there.
fields!(SendOptions { ttl, dont_fragment } except { class: 0 });
