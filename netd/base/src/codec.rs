//! The stream's records and the values in them.
//!
//! ```text
//! stream:  "podvirt-netd" NUL version(u8) 0 0 | record…
//! record:  tag u16 | flags u16 (bit 0: mandatory) | length u32 | body        all little-endian
//! body:    the fields of a struct, one behind the other
//! struct in a body:  length u32 | fields
//! ```
//!
//! How it grows: a field is appended to a struct, never taken out and never changed. A reader that knows fewer fields
//! ignores the rest, one that knows more finds the struct at its end and gives the missing ones their empty value.
//! What cannot be understood without being known gets a record of its own with a new tag, which is mandatory.
//!
//! Decoding is total: whatever the bytes are, there is a value or an error, and nothing is allocated that is not
//! there as bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::time::Time;

/// What a stream begins with; the last number is the version.
pub const MAGIC: [u8; 16] = *b"podvirt-netd\0\x01\0\0";
/// The record must be understood.
const MANDATORY: u16 = 1;

/// Why a stream is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It does not begin as a stream does.
    #[error("not a stream of netd's state, or one of another version than 1")]
    Magic,
    /// A record or a value goes beyond the end of what contains it.
    #[error("cut off at byte {0}")]
    Truncated(usize),
    /// A record that must be understood and is not.
    #[error("record {0:#06x} is mandatory and not known to this version")]
    Unknown(u16),
    /// A record where it has no place.
    #[error("record {0:#06x} comes twice or has no place where it is")]
    Misplaced(u16),
    /// A value that cannot be.
    #[error("{what} is {value}; {allowed}")]
    Value {
        /// What it is.
        what: &'static str,
        /// What it says.
        value: u64,
        /// What is allowed.
        allowed: &'static str,
    },
}

/// Appends a record.
pub fn record<T: Field>(out: &mut Vec<u8>, tag: u16, mandatory: bool, body: &T) {
    out.extend(tag.to_le_bytes());
    out.extend(if mandatory { MANDATORY } else { 0 }.to_le_bytes());
    body.put(out);
}

/// The next record: its tag, whether it is mandatory, and a reader of its body as [`Field::take`] wants it.
///
/// # Errors
/// The stream ends inside the record.
pub fn next_record<'a>(r: &mut Reader<'a>) -> Result<Option<(u16, bool, Reader<'a>)>, DecodeError> {
    if r.is_empty() {
        return Ok(None);
    }
    let tag = u16::take(r)?;
    let flags = u16::take(r)?;
    let body = r.clone();
    r.nested()?;
    Ok(Some((tag, flags & MANDATORY != 0, body)))
}

/// A place in the stream.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader of all of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Whether there is no byte left.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What is left of it.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    fn bytes(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.bytes.split_at_checked(n).ok_or(DecodeError::Truncated(self.at))?;
        self.bytes = rest;
        self.at += n;
        Ok(head)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// There are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let at = self.at;
        self.bytes(N)?.first_chunk().copied().ok_or(DecodeError::Truncated(at))
    }

    /// The inside of a struct.
    ///
    /// # Errors
    /// The stream ends before the struct does.
    pub fn nested(&mut self) -> Result<Reader<'a>, DecodeError> {
        let len = usize::try_from(u32::take(self)?).unwrap_or(usize::MAX);
        let at = self.at;
        Ok(Reader { bytes: self.bytes(len)?, at })
    }

    /// The next field; at the end of the struct its empty value.
    ///
    /// # Errors
    /// It is cut short, its value is not allowed, or it is not there and has no empty value.
    pub fn field<T: Field>(&mut self) -> Result<T, DecodeError> {
        if self.is_empty() { T::missing().ok_or(DecodeError::Truncated(self.at)) } else { T::take(self) }
    }
}

/// A value in the stream.
pub trait Field: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads it.
    ///
    /// # Errors
    /// It is cut short, or its value is not allowed.
    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError>;
    /// What it is where an older version did not write it; none: it was always written.
    fn missing() -> Option<Self> {
        None
    }
}

/// Appends a struct's inside with its length in front.
pub fn nested(out: &mut Vec<u8>, inside: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; 4]);
    inside(out);
    let len = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(start..start + 4) {
        place.copy_from_slice(&len.to_le_bytes());
    }
}

/// Makes a struct a [`Field`]: every field that moves in the order of the stream, new ones at the end; then those
/// that do not move, with what they are in the successor. A field that is in neither list does not compile.
#[macro_export]
macro_rules! fields {
    ($name:ty { $($field:ident),* $(,)? } $(except { $($own:ident: $value:expr),* $(,)? })?) => {
        impl $crate::codec::Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $crate::codec::nested(out, |out| {
                    $($crate::codec::Field::put(&self.$field, out);)*
                });
            }

            fn take(
                r: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                let mut r = r.nested()?;
                Ok(Self { $($field: r.field()?,)* $($($own: $value,)*)? })
            }
        }
    };
}
pub use fields;

/// Makes an enum without values a [`Field`] of one byte.
#[macro_export]
macro_rules! variants {
    ($name:ident as $what:literal { $($variant:ident = $number:literal),* $(,)? }) => {
        impl $crate::codec::Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(match self { $($name::$variant => $number,)* });
            }

            fn take(
                r: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                match <u8 as $crate::codec::Field>::take(r)? {
                    $($number => Ok($name::$variant),)*
                    other => Err($crate::codec::DecodeError::Value {
                        what: $what,
                        value: other.into(),
                        allowed: "the numbers of its variants are allowed",
                    }),
                }
            }
        }
    };
}
pub use variants;

macro_rules! numbers {
    ($($t:ty)*) => {$(
        impl Field for $t {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(<$t>::from_le_bytes(r.array()?))
            }

            fn missing() -> Option<Self> {
                Some(0)
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64);

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(u8::take(r)? != 0)
    }

    fn missing() -> Option<Self> {
        Some(false)
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(if bool::take(r)? { Some(T::take(r)?) } else { None })
    }

    fn missing() -> Option<Self> {
        Some(None)
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok((A::take(r)?, B::take(r)?))
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        u32::try_from(self.len()).unwrap_or(u32::MAX).put(out);
        self.iter().for_each(|v| v.put(out));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let n = u32::take(r)?;
        // Every value has a byte at least, so more than there are bytes cannot be: no allocation by the number alone.
        if n as usize > r.bytes.len() {
            return Err(DecodeError::Truncated(r.at));
        }
        let mut values = Vec::new();
        for _ in 0..n {
            values.push(T::take(r)?);
        }
        Ok(values)
    }

    fn missing() -> Option<Self> {
        Some(Vec::new())
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        nested(out, |out| out.extend(self.as_bytes()));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        // What is no UTF-8 is a path or a name that another netd wrote: it will not be found equal to anything.
        Ok(String::from_utf8_lossy(r.nested()?.bytes).into_owned())
    }

    fn missing() -> Option<Self> {
        Some(String::new())
    }
}

impl Field for IpAddr {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            IpAddr::V4(a) => {
                out.push(4);
                out.extend(a.octets());
            }
            IpAddr::V6(a) => {
                out.push(6);
                out.extend(a.octets());
            }
        }
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::take(r)? {
            4 => Ok(Ipv4Addr::from(r.array::<4>()?).into()),
            6 => Ok(Ipv6Addr::from(r.array::<16>()?).into()),
            other => Err(DecodeError::Value {
                what: "an address' family",
                value: other.into(),
                allowed: "4 and 6 are allowed",
            }),
        }
    }
}

impl Field for SocketAddr {
    fn put(&self, out: &mut Vec<u8>) {
        self.ip().put(out);
        self.port().put(out);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(SocketAddr::new(IpAddr::take(r)?, u16::take(r)?))
    }
}

impl Field for Time {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_micros().put(out);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Time::from_micros(u64::take(r)?))
    }

    fn missing() -> Option<Self> {
        Some(Time::ZERO)
    }
}

impl Field for Duration {
    fn put(&self, out: &mut Vec<u8>) {
        u64::try_from(self.as_micros()).unwrap_or(u64::MAX).put(out);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Duration::from_micros(u64::take(r)?))
    }

    fn missing() -> Option<Self> {
        Some(Duration::ZERO)
    }
}
