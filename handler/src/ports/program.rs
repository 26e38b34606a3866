//! The program at the socket lookup, in the machine's own instructions (RFC 9669).
//!
//! ```text
//! if the packet came by another interface than netd's, where netd has one: pass
//! word = closed[port / 64 + (protocol is UDP ? 1024 : 0)]
//! if word has bit port % 64: pass                 // the lookup goes on as without the program
//! socket = sockets[protocol is UDP ? 1 : 0]
//! if there is none: pass
//! assign the socket; pass
//! ```

use std::os::fd::{AsRawFd, BorrowedFd};

use super::closed::UDP_WORDS;

/// Key of the TCP socket in the socket map.
pub(super) const TCP_SOCKET: u32 = 0;
/// Key of the UDP socket in the socket map.
pub(super) const UDP_SOCKET: u32 = 1;

/// IPPROTO_UDP.
const UDP: i32 = 17;
/// `protocol` of struct bpf_sk_lookup, bytes.
const CTX_PROTOCOL: i16 = 12;
/// `local_port` of struct bpf_sk_lookup, in the host's byte order, bytes.
const CTX_LOCAL_PORT: i16 = 60;
/// `ingress_ifindex` of struct bpf_sk_lookup, bytes (since Linux 5.17).
const CTX_INGRESS_IFINDEX: i16 = 64;
/// Helper functions by number (linux/bpf.h).
const MAP_LOOKUP_ELEM: i32 = 1;
const SK_RELEASE: i32 = 86;
const SK_ASSIGN: i32 = 124;
/// `SK_PASS`.
const PASS: i32 = 1;

/// Where the key of a map lookup stands on the stack.
const KEY: i16 = -4;

const fn instruction(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    let registers = (src << 4) | dst;
    let off = off.cast_unsigned().to_ne_bytes();
    let imm = imm.to_ne_bytes();
    u64::from_ne_bytes([code, registers, off[0], off[1], imm[0], imm[1], imm[2], imm[3]])
}

/// Instructions, and the jumps to the end that are not known yet.
#[derive(Default)]
struct Code {
    out: Vec<u64>,
    passes: Vec<Pass>,
}

/// A jump to the end: its place, and the comparison of a register with a value.
struct Pass {
    at: usize,
    code: u8,
    register: u8,
    value: i32,
}

impl Code {
    fn emit(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.out.push(instruction(code, dst, src, off, imm));
    }

    fn move_register(&mut self, dst: u8, src: u8) {
        self.emit(0xbf, dst, src, 0, 0);
    }

    fn move_value(&mut self, dst: u8, value: i32) {
        self.emit(0xb7, dst, 0, 0, value);
    }

    fn call(&mut self, helper: i32) {
        self.emit(0x85, 0, 0, 0, helper);
    }

    /// Looks the key in `register` up in `map`: r0 is the entry or null.
    fn lookup(&mut self, map: BorrowedFd<'_>, register: u8) {
        self.emit(0x63, 10, register, KEY, 0);
        self.emit(0x18, 1, 1, 0, map.as_raw_fd());
        self.emit(0, 0, 0, 0, 0);
        self.move_register(2, 10);
        self.emit(0x07, 2, 0, 0, i32::from(KEY));
        self.call(MAP_LOOKUP_ELEM);
    }

    /// Goes to the end if the register does not have this value.
    fn pass_unless(&mut self, register: u8, value: i32) {
        self.passes.push(Pass { at: self.out.len(), code: 0x55, register, value });
        self.out.push(0);
    }

    /// Goes to the end if the register is zero.
    fn pass_if_zero(&mut self, register: u8) {
        self.passes.push(Pass { at: self.out.len(), code: 0x15, register, value: 0 });
        self.out.push(0);
    }

    /// Goes to the end if the register is not zero.
    fn pass_if_set(&mut self, register: u8) {
        self.passes.push(Pass { at: self.out.len(), code: 0x55, register, value: 0 });
        self.out.push(0);
    }

    fn end(mut self) -> Vec<u64> {
        for Pass { at, code, register, value } in self.passes {
            // The program is a few dozen instructions long.
            let off = i16::try_from(self.out.len() - at - 1).unwrap_or(i16::MAX);
            self.out[at] = instruction(code, register, 0, off, value);
        }
        self.out.push(instruction(0xb7, 0, 0, 0, PASS));
        self.out.push(instruction(0x95, 0, 0, 0, 0));
        self.out
    }
}

/// The program over the two maps, for what comes by `interface`, or by any.
pub(super) fn program(sockets: BorrowedFd<'_>, closed: BorrowedFd<'_>, interface: Option<i32>) -> Vec<u64> {
    let mut c = Code::default();
    c.move_register(6, 1);
    if let Some(interface) = interface {
        c.emit(0x61, 2, 6, CTX_INGRESS_IFINDEX, 0);
        c.pass_unless(2, interface);
    }
    c.emit(0x61, 7, 6, CTX_PROTOCOL, 0);
    c.emit(0x61, 8, 6, CTX_LOCAL_PORT, 0);
    // r9 = the word's index
    c.move_register(9, 8);
    c.emit(0x77, 9, 0, 0, 6);
    c.emit(0x55, 7, 0, 1, UDP);
    c.emit(0x07, 9, 0, 0, UDP_WORDS.cast_signed());
    c.lookup(closed, 9);
    c.pass_if_zero(0);
    // r1 = the port's bit
    c.emit(0x79, 1, 0, 0, 0);
    c.emit(0x57, 8, 0, 0, 63);
    c.emit(0x7f, 1, 8, 0, 0);
    c.emit(0x57, 1, 0, 0, 1);
    c.pass_if_set(1);
    // r0 = the socket
    c.move_value(9, TCP_SOCKET.cast_signed());
    c.emit(0x55, 7, 0, 1, UDP);
    c.move_value(9, UDP_SOCKET.cast_signed());
    c.lookup(sockets, 9);
    c.pass_if_zero(0);
    c.move_register(7, 0);
    c.move_register(1, 6);
    c.move_register(2, 7);
    c.move_value(3, 0);
    c.call(SK_ASSIGN);
    c.move_register(1, 7);
    c.call(SK_RELEASE);
    c.end()
}
