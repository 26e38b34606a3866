//! bpf(2), as far as steering and repair need it: two kinds of map, two program types, one kind of link.
//!
//! The calls are made by hand: a loader library would bring an ELF reader and a compiler's output for forty
//! instructions. Every call of bpf(2) passes one zeroed attribute block, and what it points to lives through the call.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_CREATE: u32 = 0;
const MAP_LOOKUP: u32 = 1;
const MAP_UPDATE: u32 = 2;
const PROG_LOAD: u32 = 5;
const LINK_CREATE: u32 = 28;

/// `BPF_MAP_TYPE_ARRAY`.
const ARRAY: u32 = 2;
/// `BPF_MAP_TYPE_SOCKMAP`.
const SOCKMAP: u32 = 15;
/// Bytes of a map's key and value.
const SIZES: (u32, u32) = (4, 8);
/// `BPF_PROG_TYPE_SOCKET_FILTER`.
const SOCKET_FILTER: u32 = 1;
/// `BPF_PROG_TYPE_SK_LOOKUP`.
const SK_LOOKUP: u32 = 30;
/// `BPF_SK_LOOKUP`, the attach type.
const ATTACH_SK_LOOKUP: u32 = 36;
/// What the verifier may say.
const LOG_BYTES: usize = 65_536;

/// `union bpf_attr` of linux/bpf.h as words; its fields are laid out by the functions below.
#[repr(C, align(8))]
struct Attr([u32; 36]);

impl Attr {
    fn new() -> Attr {
        Attr([0; 36])
    }

    /// Sets the 32-bit field at byte `4 * word`.
    fn word(mut self, word: usize, value: u32) -> Attr {
        self.0[word] = value;
        self
    }

    /// Sets the 64-bit field at byte `4 * word`.
    fn pointer<T>(mut self, word: usize, value: *const T) -> Attr {
        let bytes = (value as u64).to_ne_bytes();
        self.0[word] = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        self.0[word + 1] = u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        self
    }

    fn call(&self, command: u32) -> io::Result<libc::c_long> {
        // SAFETY: the attribute block is of the stated size; the pointers in it were set by the caller to memory
        // that lives until the call returns and is as large as the command reads or writes.
        let rc = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_ptr(), size_of::<Attr>()) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
    }

    fn open(&self, command: u32) -> io::Result<OwnedFd> {
        let fd = i32::try_from(self.call(command)?).map_err(io::Error::other)?;
        // SAFETY: the command returned a descriptor that has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn map(kind: u32, entries: u32) -> io::Result<OwnedFd> {
    // map_type, key_size, value_size, max_entries
    Attr::new().word(0, kind).word(1, SIZES.0).word(2, SIZES.1).word(3, entries).open(MAP_CREATE)
}

/// The form of a map.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    kind: u32,
    entries: u32,
}

/// The form of what [`word_map`] makes.
pub(super) const WORD_MAP: Form = Form { kind: ARRAY, entries: 0 };
/// The form of what [`socket_map`] makes.
pub(super) const SOCKET_MAP: Form = Form { kind: SOCKMAP, entries: 0 };

impl Form {
    /// With so many entries.
    pub(super) const fn entries(self, entries: u32) -> Form {
        Form { entries, ..self }
    }

    /// Whether a descriptor is a map of this form. [`get`] and [`set`] may be called with those only: how many bytes
    /// the kernel reads and writes depends on it.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(super) fn is(self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        Ok(self.told_by(&std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?))
    }

    /// Whether fdinfo (proc_pid_fdinfo(5)) tells of a map of this form.
    fn told_by(self, fdinfo: &str) -> bool {
        let has = |name: &str, value: u32| {
            let mut lines = fdinfo.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            lines.next().is_some_and(|told| told.trim().parse() == Ok(value))
        };
        has("map_type", self.kind)
            && has("key_size", SIZES.0)
            && has("value_size", SIZES.1)
            && has("max_entries", self.entries)
    }
}

/// Makes a map of `entries` sockets.
///
/// # Errors
/// As bpf(2); `PermissionDenied` without CAP_BPF and CAP_NET_ADMIN.
pub(super) fn socket_map(entries: u32) -> io::Result<OwnedFd> {
    map(SOCKMAP, entries)
}

/// Makes an array of `entries` words of 64 bits, all zero.
///
/// # Errors
/// As bpf(2).
pub(super) fn word_map(entries: u32) -> io::Result<OwnedFd> {
    map(ARRAY, entries)
}

/// Sets an entry of either map.
///
/// # Errors
/// As bpf(2).
pub(super) fn set(map: BorrowedFd<'_>, key: u32, value: u64) -> io::Result<()> {
    // map_fd, key, value, flags
    let attr = Attr::new().word(0, raw(map)).pointer(2, &raw const key).pointer(4, &raw const value);
    attr.call(MAP_UPDATE).map(|_| ())
}

/// Puts a socket into a socket map.
///
/// # Errors
/// As bpf(2).
pub(super) fn set_socket(map: BorrowedFd<'_>, key: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    set(map, key, u64::from(raw(socket)))
}

/// Reads an entry of an array.
///
/// # Errors
/// As bpf(2).
pub(super) fn get(map: BorrowedFd<'_>, key: u32) -> io::Result<u64> {
    let mut value = 0u64;
    let attr = Attr::new().word(0, raw(map)).pointer(2, &raw const key).pointer(4, &raw mut value);
    attr.call(MAP_LOOKUP)?;
    Ok(value)
}

/// Loads a program for the socket lookup.
///
/// # Errors
/// As bpf(2), with the verifier's words when it refuses.
pub(super) fn load(instructions: &[u64]) -> io::Result<OwnedFd> {
    load_as(SK_LOOKUP, ATTACH_SK_LOOKUP, b"podvirt_ports\0\0\0", instructions)
}

/// Loads a program for sockets' filters.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_filter(instructions: &[u64]) -> io::Result<OwnedFd> {
    load_as(SOCKET_FILTER, 0, b"podvirt_filter\0\0", instructions)
}

fn load_as(kind: u32, attach: u32, name: &[u8; 16], instructions: &[u64]) -> io::Result<OwnedFd> {
    const LICENSE: &std::ffi::CStr = c"GPL";
    let count = u32::try_from(instructions.len()).map_err(io::Error::other)?;
    let mut log = vec![0u8; LOG_BYTES];
    // prog_type, insn_cnt, insns, license, log_level, log_size, log_buf, kern_version, prog_flags, prog_name,
    // prog_ifindex, expected_attach_type
    let mut attr = Attr::new()
        .word(0, kind)
        .word(1, count)
        .pointer(2, instructions.as_ptr())
        .pointer(4, LICENSE.as_ptr())
        .word(6, 1)
        .word(7, LOG_BYTES as u32)
        .pointer(8, log.as_mut_ptr())
        .word(17, attach);
    for (word, bytes) in attr.0[12..16].iter_mut().zip(name.as_chunks::<4>().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    attr.open(PROG_LOAD).map_err(|error| {
        let end = log.iter().position(|b| *b == 0).unwrap_or(0);
        let said = String::from_utf8_lossy(&log[..end]);
        match said.trim() {
            "" => error,
            said => io::Error::new(error.kind(), format!("{error}: {said}")),
        }
    })
}

/// Attaches a program to a network namespace for as long as the link is held.
///
/// # Errors
/// As bpf(2).
pub(super) fn attach(program: BorrowedFd<'_>, netns: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // prog_fd, target_fd, attach_type, flags
    Attr::new().word(0, raw(program)).word(1, raw(netns)).word(2, ATTACH_SK_LOOKUP).open(LINK_CREATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_known_by_what_the_kernel_tells_of_it() {
        let told = |kind, value, entries| {
            format!(
                "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t2\nmap_type:\t{kind}\nkey_size:\t4\n\
                 value_size:\t{value}\nmax_entries:\t{entries}\nmap_flags:\t0x0\n"
            )
        };
        let form = WORD_MAP.entries(2048);
        assert!(form.told_by(&told(2, 8, 2048)));
        for other in [told(6, 8, 2048), told(2, 4096, 2048), told(2, 8, 1), "pos:\t0\n".to_owned()] {
            assert!(!form.told_by(&other), "{other}");
        }
        assert!(SOCKET_MAP.entries(2).told_by(&told(15, 8, 2)));
    }
}
