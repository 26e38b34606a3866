//! Facts about the DHCPv6 server, with dhcproto's codec as the client and as the witness.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::str::FromStr;

use dhcproto::v6::{
    DhcpOption, DhcpOptions, IAAddr, IANA, IAPD, IATA, Message, MessageType, ORO, OptionCode, Status,
    StatusCode, UnknownOption,
};
use dhcproto::{Decodable, Decoder, Encodable, Name};
use etherparse::{PacketHeaders, TransportHeader};
use proptest::prelude::*;

use crate::counters::Reason;
use crate::guest::frame::{self, MacPair};
use crate::guest::{Handled, Services};
use crate::net::{Link, test_link};
use crate::time::Time;
use crate::wire::MacAddr;

const GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const CLIENT: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe11, 0x2233);
const XID: [u8; 3] = [7, 8, 9];
const DUID: [u8; 10] = [0, 3, 0, 1, 2, 0, 0x5e, 0x10, 0, 1];
const CLIENT_DUID: [u8; 6] = [0, 2, 0xaa, 0xbb, 0xcc, 0xdd];

fn guest() -> Ipv6Addr {
    "fd00:9::2".parse().unwrap()
}

fn other() -> Ipv6Addr {
    "fd00:9::3".parse().unwrap()
}

fn message(kind: MessageType, options: Vec<DhcpOption>) -> Message {
    let mut m = Message::new_with_id(kind, XID);
    m.opts_mut().insert(DhcpOption::ClientId(CLIENT_DUID.to_vec()));
    for option in options {
        m.opts_mut().insert(option);
    }
    m
}

fn ia_na(id: u32, addresses: &[Ipv6Addr]) -> DhcpOption {
    let one = |a: &Ipv6Addr| {
        DhcpOption::IAAddr(IAAddr { addr: *a, preferred_life: 0, valid_life: 0, opts: DhcpOptions::new() })
    };
    DhcpOption::IANA(IANA { id, t1: 0, t2: 0, opts: addresses.iter().map(one).collect() })
}

fn server() -> DhcpOption {
    DhcpOption::ServerId(DUID.to_vec())
}

fn send_to(link: &Link, to: Ipv6Addr, raw: &[u8]) -> (Handled, Vec<Vec<u8>>) {
    let ends = MacPair { from: test_link().guest_mac.unwrap(), to: frame::multicast_mac(GROUP) };
    let (from, to) = (SocketAddrV6::new(CLIENT, 546, 0, 0), SocketAddrV6::new(to, 547, 0, 0));
    let mut out = vec![];
    let frame = frame::udp6(ends, from, to, raw).unwrap();
    let handled = Services::new().handle(&frame, link, Time::ZERO, &mut out);
    (handled, out)
}

fn send_raw(raw: &[u8]) -> (Handled, Vec<Vec<u8>>) {
    send_to(&test_link(), GROUP, raw)
}

fn open(frame: &[u8]) -> Message {
    let link = test_link();
    let packet = PacketHeaders::from_ethernet_slice(frame).unwrap();
    assert_eq!(packet.link.unwrap().ethernet2().unwrap().destination, link.guest_mac.unwrap().0);
    let ip = packet.net.unwrap().ipv6_ref().unwrap().0.clone();
    let Some(TransportHeader::Udp(udp)) = packet.transport else { panic!("not UDP") };
    let payload = packet.payload.slice();
    assert_eq!(udp.checksum, udp.calc_checksum_ipv6(&ip, payload).unwrap());
    assert_eq!((udp.source_port, udp.destination_port), (547, 546));
    assert_eq!((ip.source_addr(), ip.destination_addr()), (link.v6.unwrap().gateway, CLIENT));
    let m = Message::decode(&mut Decoder::new(payload)).unwrap();
    assert_eq!(m.xid(), XID);
    assert_eq!(m.opts().get(OptionCode::ServerId), Some(&server()));
    m
}

fn send_with(link: &Link, m: &Message) -> Option<Message> {
    let (handled, out) = send_to(link, GROUP, &m.to_vec().unwrap());
    assert_eq!(handled, Handled::Consumed);
    assert!(out.len() <= 1);
    let answer = open(out.first()?);
    assert_eq!(answer.opts().get(OptionCode::ClientId), m.opts().get(OptionCode::ClientId));
    Some(answer)
}

fn send(m: &Message) -> Option<Message> {
    send_with(&test_link(), m)
}

/// The guest's address as every client must be given it.
fn granted(id: u32) -> DhcpOption {
    let addr = IAAddr { addr: guest(), preferred_life: 3600, valid_life: 3600, opts: DhcpOptions::new() };
    let opts = [DhcpOption::IAAddr(addr)].into_iter().collect();
    DhcpOption::IANA(IANA { id, t1: 1800, t2: 2880, opts })
}

fn status(options: &DhcpOptions) -> Option<Status> {
    match options.get(OptionCode::StatusCode) {
        Some(DhcpOption::StatusCode(StatusCode { status, .. })) => Some(*status),
        _ => None,
    }
}

fn codes(m: &Message) -> Vec<u16> {
    m.opts().iter().map(|o| u16::from(OptionCode::from(o))).collect()
}

#[test]
fn a_solicit_is_advertised_the_pods_address_with_the_highest_preference() {
    let m = send(&message(MessageType::Solicit, vec![ia_na(0xfeed, &[])])).unwrap();
    assert_eq!(m.msg_type(), MessageType::Advertise);
    assert_eq!(m.opts().get(OptionCode::IANA), Some(&granted(0xfeed)));
    assert_eq!(m.opts().get(OptionCode::Preference), Some(&DhcpOption::Preference(255)));
}

#[test]
fn rapid_commit_saves_the_advertisement() {
    let m =
        send(&message(MessageType::Solicit, vec![ia_na(1, &[other()]), DhcpOption::RapidCommit])).unwrap();
    assert_eq!(m.msg_type(), MessageType::Reply);
    assert_eq!(
        m.opts().get(OptionCode::IANA),
        Some(&granted(1)),
        "the wish for another address is not heeded"
    );
    assert!(m.opts().get(OptionCode::RapidCommit).is_some());
}

#[test]
fn request_renew_and_rebind_get_the_address() {
    for (kind, ids) in [
        (MessageType::Request, vec![server()]),
        (MessageType::Renew, vec![server()]),
        (MessageType::Rebind, vec![]),
    ] {
        let mut options = ids;
        options.push(ia_na(3, &[guest()]));
        let m = send(&message(kind, options)).unwrap();
        assert_eq!(m.msg_type(), MessageType::Reply);
        assert_eq!(m.opts().get(OptionCode::IANA), Some(&granted(3)), "{kind:?}");
    }
}

#[test]
fn another_address_is_refused_on_request_and_taken_away_on_renewal() {
    let m = send(&message(MessageType::Request, vec![server(), ia_na(3, &[other()])])).unwrap();
    let Some(DhcpOption::IANA(ia)) = m.opts().get(OptionCode::IANA) else { panic!("{m:?}") };
    assert_eq!(status(&ia.opts), Some(Status::NotOnLink));
    assert!(ia.opts.get(OptionCode::IAAddr).is_none());
    let m = send(&message(MessageType::Renew, vec![server(), ia_na(3, &[other()])])).unwrap();
    let Some(DhcpOption::IANA(ia)) = m.opts().get(OptionCode::IANA) else { panic!("{m:?}") };
    let lifetimes: Vec<_> =
        ia.opts
            .iter()
            .map(|o| {
                if let DhcpOption::IAAddr(a) = o {
                    (a.addr, a.preferred_life, a.valid_life)
                } else {
                    panic!()
                }
            })
            .collect();
    assert_eq!(lifetimes, [(guest(), 3600, 3600), (other(), 0, 0)]);
}

#[test]
fn confirm_says_whether_the_address_is_still_right() {
    for (addresses, expected) in [
        (vec![guest()], Some(Status::Success)),
        (vec![other()], Some(Status::NotOnLink)),
        (vec![guest(), other()], Some(Status::NotOnLink)),
        (vec![], None),
    ] {
        let m = send(&message(MessageType::Confirm, vec![ia_na(1, &addresses)]));
        assert_eq!(m.and_then(|m| status(m.opts())), expected, "{addresses:?}");
    }
}

#[test]
fn release_and_decline_succeed_and_name_what_was_never_given() {
    for kind in [MessageType::Release, MessageType::Decline] {
        let m = send(&message(kind, vec![server(), ia_na(1, &[guest()]), ia_na(2, &[other()])])).unwrap();
        assert_eq!(m.msg_type(), MessageType::Reply);
        assert_eq!(status(m.opts()), Some(Status::Success));
        let Some([DhcpOption::IANA(ia)]) = m.opts().get_all(OptionCode::IANA) else { panic!("{m:?}") };
        assert_eq!((ia.id, status(&ia.opts)), (2, Some(Status::NoBinding)));
    }
}

#[test]
fn temporary_addresses_prefixes_and_second_addresses_do_not_exist() {
    // The codec puts what is inserted later in front of its equals.
    let ias = vec![
        ia_na(2, &[]),
        ia_na(1, &[]),
        DhcpOption::IATA(IATA { id: 3, opts: DhcpOptions::new() }),
        DhcpOption::IAPD(IAPD { id: 4, t1: 0, t2: 0, opts: DhcpOptions::new() }),
    ];
    let m = send(&message(MessageType::Solicit, ias)).unwrap();
    let Some([first, DhcpOption::IANA(second)]) = m.opts().get_all(OptionCode::IANA) else { panic!("{m:?}") };
    assert_eq!(*first, granted(1));
    assert_eq!((second.id, status(&second.opts)), (2, Some(Status::NoAddrsAvail)));
    let Some(DhcpOption::IATA(ta)) = m.opts().get(OptionCode::IATA) else { panic!("{m:?}") };
    assert_eq!((ta.id, status(&ta.opts)), (3, Some(Status::NoAddrsAvail)));
    let Some(DhcpOption::IAPD(pd)) = m.opts().get(OptionCode::IAPD) else { panic!("{m:?}") };
    assert_eq!((pd.id, status(&pd.opts)), (4, Some(Status::NoPrefixAvail)));
}

#[test]
fn the_client_is_told_what_it_asks_for() {
    let dns = DhcpOption::DomainNameServers(vec!["fd00:96::a".parse().unwrap()]);
    let name = |s| Name::from_str(s).unwrap();
    let search =
        DhcpOption::DomainSearchList(vec![name("default.svc.cluster.local."), name("svc.cluster.local.")]);
    let m = send(&message(MessageType::Solicit, vec![ia_na(1, &[])])).unwrap();
    assert_eq!(m.opts().get(OptionCode::DomainNameServers), Some(&dns));
    assert_eq!(m.opts().get(OptionCode::DomainSearchList), Some(&search));
    let oro = |codes: &[u16]| DhcpOption::ORO(ORO { opts: codes.iter().map(|c| (*c).into()).collect() });
    let m = send(&message(MessageType::Solicit, vec![ia_na(1, &[]), oro(&[82, 24])])).unwrap();
    assert_eq!(codes(&m), [1, 2, 3, 7, 24]);
    let info = message(MessageType::InformationRequest, vec![oro(&[23, 24, 32, 39])]);
    let m = send(&info).unwrap();
    assert_eq!(m.msg_type(), MessageType::Reply);
    assert_eq!(codes(&m), [1, 2, 23, 24, 32, 39]);
    let refresh = UnknownOption::new(OptionCode::InformationRefreshTime, vec![0, 0, 7, 8]);
    assert_eq!(m.opts().get(OptionCode::InformationRefreshTime), Some(&DhcpOption::Unknown(refresh)));
}

#[test]
fn the_clients_name_is_answered_with_the_guests() {
    for (sent, flags) in [(0x00, 0x04), (0x01, 0x06)] {
        let name = UnknownOption::new(OptionCode::ClientFqdn, vec![sent, 1, b'x', 0]);
        let m = send(&message(MessageType::Solicit, vec![ia_na(1, &[]), DhcpOption::Unknown(name)])).unwrap();
        let Some(DhcpOption::Unknown(answer)) = m.opts().get(OptionCode::ClientFqdn) else { panic!("{m:?}") };
        assert_eq!(answer.data(), [&[flags], &b"\x03vm1\x07example\x03org\x00"[..]].concat());
    }
}

#[test]
fn identifiers_decide_whether_a_message_counts() {
    let foreign = || DhcpOption::ServerId(vec![0, 3, 0, 1, 9, 9, 9, 9, 9, 9]);
    let ia = || ia_na(1, &[guest()]);
    let malformed = Handled::Dropped(Reason::Malformed);
    for (kind, options, expected) in [
        (MessageType::Solicit, vec![ia(), server()], malformed),
        (MessageType::Rebind, vec![ia(), server()], malformed),
        (MessageType::Confirm, vec![ia(), server()], malformed),
        (MessageType::Request, vec![ia()], malformed),
        (MessageType::Renew, vec![ia()], malformed),
        (MessageType::Release, vec![ia()], malformed),
        (MessageType::InformationRequest, vec![ia()], malformed),
        (MessageType::Request, vec![ia(), foreign()], Handled::Consumed),
        (MessageType::InformationRequest, vec![foreign()], Handled::Consumed),
        (MessageType::Advertise, vec![ia()], malformed),
        (MessageType::Reply, vec![ia()], malformed),
        (MessageType::Reconfigure, vec![], malformed),
    ] {
        let raw = message(kind, options).to_vec().unwrap();
        assert_eq!(send_raw(&raw), (expected, vec![]), "{kind:?}");
    }
    let mut anonymous = message(MessageType::Solicit, vec![ia()]);
    anonymous.opts_mut().remove(OptionCode::ClientId);
    assert_eq!(send_raw(&anonymous.to_vec().unwrap()), (malformed, vec![]));
    let mut relayed = vec![12; 34];
    relayed.extend_from_slice(&[0, 9, 0, 0]);
    assert_eq!(send_raw(&relayed), (Handled::Dropped(Reason::Denied), vec![]));
}

#[test]
fn unicast_is_answered_with_a_request_for_multicast() {
    let link = test_link();
    let gateway = link.v6.as_ref().unwrap().gateway;
    let renew = message(MessageType::Renew, vec![server(), ia_na(1, &[guest()])]).to_vec().unwrap();
    let (_, out) = send_to(&link, gateway, &renew);
    assert_eq!(status(open(&out[0]).opts()), Some(Status::UseMulticast));
    let solicit = message(MessageType::Solicit, vec![ia_na(1, &[])]).to_vec().unwrap();
    assert_eq!(send_to(&link, gateway, &solicit), (Handled::Consumed, vec![]));
    let elsewhere = "2001:db8::547".parse().unwrap();
    assert_eq!(send_to(&link, elsewhere, &renew), (Handled::NotMine, vec![]));
}

#[test]
fn only_the_guest_itself_is_served() {
    let solicit = message(MessageType::Solicit, vec![ia_na(1, &[])]).to_vec().unwrap();
    let link = Link { guest_mac: Some(MacAddr([2, 0, 0, 0, 0, 9])), ..test_link() };
    assert_eq!(send_to(&link, GROUP, &solicit), (Handled::Dropped(Reason::Spoofed), vec![]));
    let link = Link { guest_mac: None, ..test_link() };
    assert_eq!(send_to(&link, GROUP, &solicit).1.len(), 1);
    let link = Link { v6: None, ..test_link() };
    assert_eq!(send_to(&link, GROUP, &solicit), (Handled::Consumed, vec![]));
}

#[test]
fn nesting_is_not_followed() {
    // An association inside an association, four thousand deep.
    let mut inner = vec![];
    for _ in 0..4000 {
        let mut outer = vec![0, 3];
        outer.extend_from_slice(&u16::try_from(inner.len() + 12).unwrap().to_be_bytes());
        outer.extend_from_slice(&[0; 12]);
        outer.append(&mut inner);
        inner = outer;
    }
    let mut raw = vec![1, 7, 8, 9, 0, 1, 0, 2, 0, 1];
    raw.append(&mut inner);
    let (handled, out) = send_raw(&raw);
    assert_eq!((handled, out.len()), (Handled::Consumed, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_message_whatsoever_panics(
        kind in 0..14u8,
        options in prop::collection::vec(
            (prop_oneof![0..8u16, Just(13u16), Just(14), Just(25), Just(39), any::<u16>()],
             prop::collection::vec(any::<u8>(), 0..60)),
            0..12,
        ),
        cut in 0..40usize,
        ours in any::<bool>(),
    ) {
        let mut raw = vec![kind, 1, 2, 3];
        if ours {
            raw.extend_from_slice(&[0, 2, 0, 10]);
            raw.extend_from_slice(&DUID);
        }
        for (code, value) in options {
            raw.extend_from_slice(&code.to_be_bytes());
            raw.extend_from_slice(&u16::try_from(value.len()).unwrap().to_be_bytes());
            raw.extend_from_slice(&value);
        }
        raw.truncate(raw.len().saturating_sub(cut / 4));
        let (_, out) = send_raw(&raw);
        for answer in out {
            prop_assert!(answer.len() <= 14 + 1500);
            prop_assert!(etherparse::SlicedPacket::from_ethernet(&answer).is_ok());
        }
    }

    #[test]
    fn mutated_messages_never_panic(at in 0..120usize, value in any::<u8>(), cut in 0..120usize) {
        let ias = vec![
            server(),
            ia_na(1, &[guest(), other()]),
            DhcpOption::IATA(IATA { id: 3, opts: DhcpOptions::new() }),
            DhcpOption::ORO(ORO { opts: vec![OptionCode::DomainNameServers] }),
        ];
        let mut raw = message(MessageType::Request, ias).to_vec().unwrap();
        if let Some(byte) = raw.get_mut(at) {
            *byte = value;
        }
        raw.truncate(raw.len().saturating_sub(cut));
        let (_, out) = send_raw(&raw);
        prop_assert!(out.len() <= 1);
    }
}
