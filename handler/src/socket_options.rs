//! Socket options that nix has no name for.

use nix::libc::{self, c_int};
use nix::sys::socket::sockopt::{GetStruct, SetStruct};

/// `SO_ATTACH_BPF` of socket(7): the descriptor of a filter that is loaded already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachBpf;
nix::setsockopt_impl!(AttachBpf, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, c_int, SetStruct<'_, c_int>);

/// `SO_BINDTOIFINDEX` of socket(7): the interface that a socket is bound to; 0 when it is bound to none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindToIfindex;
nix::getsockopt_impl!(BindToIfindex, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, c_int, GetStruct<c_int>);

/// `SO_NETNS_COOKIE` of socket(7), since Linux 5.14: a number for each network namespace, never used again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetnsCookie;
nix::getsockopt_impl!(NetnsCookie, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, u64, GetStruct<u64>);
