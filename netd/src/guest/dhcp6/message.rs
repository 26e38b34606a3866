//! DHCPv6 messages on the wire (RFC 8415 sections 8 and 21).

use std::net::Ipv6Addr;

/// Bytes in front of the options: message type and transaction id.
const HEADER: usize = 4;
/// The longest DUID: two bytes of type and 128 of content (RFC 8415 section 11.1).
const MAX_DUID: usize = 130;
/// How many identity associations of one message are answered. A client has one for each kind.
const MAX_IAS: usize = 8;
/// How many addresses of one association are looked at.
const MAX_ADDRESSES: usize = 8;

/// Option codes (RFC 8415 section 21, and the RFC named where another one defines it).
pub(super) mod code {
    pub(in super::super) const CLIENT_ID: u16 = 1;
    pub(in super::super) const SERVER_ID: u16 = 2;
    pub(in super::super) const IA_NA: u16 = 3;
    pub(in super::super) const IA_TA: u16 = 4;
    pub(in super::super) const IA_ADDRESS: u16 = 5;
    pub(in super::super) const OPTION_REQUEST: u16 = 6;
    pub(in super::super) const PREFERENCE: u16 = 7;
    pub(in super::super) const STATUS: u16 = 13;
    pub(in super::super) const RAPID_COMMIT: u16 = 14;
    /// RFC 3646.
    pub(in super::super) const DNS: u16 = 23;
    /// RFC 3646.
    pub(in super::super) const SEARCH: u16 = 24;
    pub(in super::super) const IA_PD: u16 = 25;
    pub(in super::super) const REFRESH_TIME: u16 = 32;
    /// RFC 4704.
    pub(in super::super) const FQDN: u16 = 39;
}

/// What a client may send (RFC 8415 section 7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Solicit = 1,
    Request = 3,
    Confirm = 4,
    Renew = 5,
    Rebind = 6,
    Release = 8,
    Decline = 9,
    InformationRequest = 11,
}

impl Kind {
    fn from_wire(n: u8) -> Option<Kind> {
        use Kind::{Confirm, Decline, InformationRequest, Rebind, Release, Renew, Request, Solicit};
        [Solicit, Request, Confirm, Renew, Rebind, Release, Decline, InformationRequest]
            .into_iter()
            .find(|k| *k as u8 == n)
    }
}

/// The kinds of identity association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IaKind {
    /// Non-temporary addresses.
    Na,
    /// Temporary addresses.
    Ta,
    /// Delegated prefixes.
    Pd,
}

impl IaKind {
    fn from_code(code: u16) -> Option<IaKind> {
        match code {
            code::IA_NA => Some(IaKind::Na),
            code::IA_TA => Some(IaKind::Ta),
            code::IA_PD => Some(IaKind::Pd),
            _ => None,
        }
    }

    fn code(self) -> u16 {
        match self {
            IaKind::Na => code::IA_NA,
            IaKind::Ta => code::IA_TA,
            IaKind::Pd => code::IA_PD,
        }
    }

    /// Bytes in front of its options: the IAID, and T1 and T2 where it has them.
    fn header(self) -> usize {
        if self == IaKind::Ta { 4 } else { 12 }
    }
}

/// An identity association of a client.
#[derive(Debug)]
pub(super) struct Ia {
    pub(super) kind: IaKind,
    id: [u8; 4],
    /// The addresses it has or would like.
    pub(super) addresses: Vec<Ipv6Addr>,
}

impl Ia {
    fn parse(kind: IaKind, value: &[u8]) -> Option<Ia> {
        let (header, rest) = value.split_at_checked(kind.header())?;
        let mut addresses = vec![];
        each_option(rest, |code, value| {
            if let (code::IA_ADDRESS, Some(a), true) = (code, value.first_chunk::<16>(), value.len() >= 24)
                && addresses.len() < MAX_ADDRESSES
            {
                addresses.push(Ipv6Addr::from(*a));
            }
        })?;
        Some(Ia { kind, id: *header.first_chunk()?, addresses })
    }

    /// This association as an option of the answer, with these options inside.
    pub(super) fn answer(&self, times: [u32; 2], inner: &[u8]) -> (u16, Vec<u8>) {
        let mut value = self.id.to_vec();
        if self.kind != IaKind::Ta {
            value.extend(times.iter().flat_map(|t| t.to_be_bytes()));
        }
        value.extend_from_slice(inner);
        (self.kind.code(), value)
    }
}

/// A message of a client.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) kind: Kind,
    xid: [u8; 3],
    pub(super) client_id: Option<&'a [u8]>,
    pub(super) server_id: Option<&'a [u8]>,
    pub(super) rapid_commit: bool,
    /// The option codes the client asks for; none if it does not say.
    wanted: Option<&'a [u8]>,
    /// The client's own name option.
    pub(super) fqdn: Option<&'a [u8]>,
    pub(super) ias: Vec<Ia>,
}

impl<'a> Request<'a> {
    /// Parses a message; none if it is malformed or none of a client.
    pub(super) fn parse(message: &'a [u8]) -> Option<Request<'a>> {
        let (header, rest) = message.split_at_checked(HEADER)?;
        let (&kind, xid) = header.split_first()?;
        let mut r = Request {
            kind: Kind::from_wire(kind)?,
            xid: *xid.first_chunk()?,
            client_id: None,
            server_id: None,
            rapid_commit: false,
            wanted: None,
            fqdn: None,
            ias: vec![],
        };
        let mut sound = true;
        each_option(rest, |code, value| match code {
            code::CLIENT_ID => r.client_id = r.client_id.or(Some(value)),
            code::SERVER_ID => r.server_id = r.server_id.or(Some(value)),
            code::OPTION_REQUEST => r.wanted = r.wanted.or(Some(value)),
            code::FQDN => r.fqdn = r.fqdn.or(Some(value)),
            code::RAPID_COMMIT => r.rapid_commit = true,
            _ => {
                let Some(kind) = IaKind::from_code(code) else { return };
                match Ia::parse(kind, value) {
                    Some(ia) if r.ias.len() < MAX_IAS => r.ias.push(ia),
                    Some(_) => {}
                    None => sound = false,
                }
            }
        })?;
        let duid_fits = r.client_id.is_none_or(|id| !id.is_empty() && id.len() <= MAX_DUID);
        (sound && duid_fits).then_some(r)
    }

    /// Whether the client asks for this option; a client that names no options gets resolvers and search domains.
    pub(super) fn wants(&self, code: u16) -> bool {
        match self.wanted {
            Some(list) => list.as_chunks::<2>().0.iter().any(|c| u16::from_be_bytes(*c) == code),
            None => matches!(code, code::DNS | code::SEARCH),
        }
    }

    /// An answer of the given type, with as many of `options` as fit into `max` bytes, in their order.
    pub(super) fn reply(&self, kind: u8, options: &[(u16, Vec<u8>)], max: usize) -> Vec<u8> {
        let mut m = vec![kind];
        m.extend_from_slice(&self.xid);
        for (code, value) in options {
            if m.len() + 4 + value.len() <= max {
                push_option(&mut m, *code, value);
            }
        }
        m
    }
}

/// Appends an option; one that is too long for its length field is left out.
pub(super) fn push_option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    if let Ok(len) = u16::try_from(value.len()) {
        to.extend_from_slice(&code.to_be_bytes());
        to.extend_from_slice(&len.to_be_bytes());
        to.extend_from_slice(value);
    }
}

/// Calls `f` with every option of a field; none if one overruns it. It does not descend: nothing netd answers
/// lies deeper than an address in an association.
fn each_option<'a>(mut field: &'a [u8], mut f: impl FnMut(u16, &'a [u8])) -> Option<()> {
    while !field.is_empty() {
        let (header, rest) = field.split_first_chunk::<4>()?;
        let [c0, c1, l0, l1] = *header;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([l0, l1])))?;
        f(u16::from_be_bytes([c0, c1]), value);
        field = rest;
    }
    Some(())
}
