//! Facts about the DHCPv4 server, with dhcproto's codec as the client and as the witness.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::str::FromStr;

use dhcproto::v4::{self, DhcpOption, Flags, Message, OptionCode, UnknownOption};
use dhcproto::{Decodable, Decoder, Encodable, Name};
use etherparse::{PacketHeaders, TransportHeader};

use crate::counters::Reason;
use crate::guest::frame::{self, MacPair};
use crate::guest::{Handled, Services};
use crate::net::{DhcpOption as Configured, Link, LinkV4, Route, test_link};
use crate::time::Time;
use crate::wire::MacAddr;

const ALL: &[u8] = &[1, 3, 6, 12, 15, 26, 28, 42, 51, 54, 58, 59, 66, 67, 81, 119, 121, 224, 249];

fn guest(link: &Link) -> MacAddr {
    link.guest_mac.unwrap()
}

fn message(link: &Link, kind: v4::MessageType) -> Message {
    let any = Ipv4Addr::UNSPECIFIED;
    let mut m = Message::new_with_id(0x1234_5678, any, any, any, any, &guest(link).0);
    m.opts_mut().insert(DhcpOption::MessageType(kind));
    m
}

/// As [`message`], asking for `codes`.
fn asking(link: &Link, kind: v4::MessageType, codes: &[u8]) -> Message {
    let mut m = message(link, kind);
    let list = codes.iter().map(|c| OptionCode::from(*c)).collect();
    m.opts_mut().insert(DhcpOption::ParameterRequestList(list));
    m
}

fn frame_of(link: &Link, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let ends = MacPair { from: guest(link), to: MacAddr::BROADCAST };
    let from = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
    frame::udp4(ends, from, SocketAddrV4::new(to, 67), payload).unwrap()
}

fn send_raw(link: &Link, payload: &[u8]) -> (Handled, Vec<Vec<u8>>) {
    let mut out = vec![];
    let frame = frame_of(link, Ipv4Addr::BROADCAST, payload);
    let handled = Services::new().handle(&frame, link, Time::ZERO, &mut out);
    (handled, out)
}

struct Answer {
    to_mac: [u8; 6],
    to: Ipv4Addr,
    message: Message,
    len: usize,
}

fn send(link: &Link, m: &Message) -> Option<Answer> {
    let (handled, mut out) = send_raw(link, &m.to_vec().unwrap());
    assert_eq!(handled, Handled::Consumed);
    let frame = out.pop()?;
    assert!(out.is_empty());
    let packet = PacketHeaders::from_ethernet_slice(&frame).unwrap();
    let (ip, _) = packet.net.unwrap().ipv4_ref().map(|(h, e)| (h.clone(), e.clone())).unwrap();
    let Some(TransportHeader::Udp(udp)) = packet.transport else { panic!("not UDP") };
    let payload = packet.payload.slice();
    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
    assert_eq!(udp.checksum, udp.calc_checksum_ipv4(&ip, payload).unwrap());
    assert_eq!((udp.source_port, udp.destination_port), (67, 68));
    assert_eq!(Ipv4Addr::from(ip.source), link.v4.as_ref().unwrap().gateway);
    let message = Message::decode(&mut Decoder::new(payload)).unwrap();
    assert_eq!(message.xid(), 0x1234_5678);
    assert_eq!(message.chaddr(), guest(link).0);
    Some(Answer {
        to_mac: packet.link.unwrap().ethernet2().unwrap().destination,
        to: ip.destination.into(),
        message,
        len: payload.len(),
    })
}

fn kind(a: &Answer) -> Option<v4::MessageType> {
    a.message.opts().msg_type()
}

fn name(s: &str) -> Name {
    Name::from_str(s).unwrap()
}

/// The options of an answer without those of the protocol itself.
fn codes(a: &Answer) -> Vec<u8> {
    a.message.opts().iter().map(|(c, _)| u8::from(*c)).collect()
}

#[test]
fn the_guest_is_told_the_pods_network() {
    let link = test_link();
    let a = send(&link, &asking(&link, v4::MessageType::Discover, ALL)).unwrap();
    assert_eq!(kind(&a), Some(v4::MessageType::Offer));
    assert_eq!(a.message.yiaddr(), Ipv4Addr::new(10, 9, 0, 2));
    assert_eq!((a.to_mac, a.to), (guest(&link).0, Ipv4Addr::new(10, 9, 0, 2)));
    let gateway = Ipv4Addr::new(10, 9, 0, 1);
    let mut fqdn = v4::fqdn::ClientFQDN::new(v4::fqdn::FqdnFlags::new(0x0c), name("vm1.example.org."));
    fqdn.set_r1(255).set_r2(255);
    for expected in [
        DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
        DhcpOption::Router(vec![gateway]),
        DhcpOption::DomainNameServer(vec![Ipv4Addr::new(10, 96, 0, 10)]),
        DhcpOption::Hostname("vm1".into()),
        DhcpOption::DomainName("example.org".into()),
        DhcpOption::InterfaceMtu(1500),
        DhcpOption::BroadcastAddr(Ipv4Addr::new(10, 9, 0, 255)),
        DhcpOption::AddressLeaseTime(3600),
        DhcpOption::Renewal(1800),
        DhcpOption::Rebinding(3150),
        DhcpOption::ServerIdentifier(gateway),
        DhcpOption::ClientFQDN(fqdn),
        DhcpOption::DomainSearch(vec![name("default.svc.cluster.local."), name("svc.cluster.local.")]),
    ] {
        let code = OptionCode::from(&expected);
        assert_eq!(a.message.opts().get(code), Some(&expected));
    }
    assert_eq!(codes(&a).len(), 14, "nothing else, the message type counted");
}

#[test]
fn a_link_without_a_default_route_has_no_router() {
    let mut link = test_link();
    link.v4.as_mut().unwrap().default_route = false;
    let a = send(&link, &asking(&link, v4::MessageType::Discover, &[1, 3, 121])).unwrap();
    assert_eq!((a.message.opts().get(OptionCode::Router), codes(&a).contains(&121)), (None, false));
    let route = crate::net::Route { to: "10.20.0.0/16".parse().unwrap(), via: Some([10, 9, 0, 7].into()) };
    link.v4.as_mut().unwrap().routes.push(route);
    let a = send(&link, &asking(&link, v4::MessageType::Discover, &[1, 3, 121])).unwrap();
    let only =
        DhcpOption::ClasslessStaticRoute(vec![("10.20.0.0/16".parse().unwrap(), [10, 9, 0, 7].into())]);
    assert_eq!(a.message.opts().get(OptionCode::ClasslessStaticRoute), Some(&only));
}

#[test]
fn a_gateway_outside_the_prefix_comes_with_routes() {
    let mut link = test_link();
    let gateway = Ipv4Addr::new(169, 254, 1, 1);
    let v4 = link.v4.as_mut().unwrap();
    *v4 = LinkV4 { prefix_len: 32, gateway, ..v4.clone() };
    let a = send(&link, &asking(&link, v4::MessageType::Discover, &[1, 3, 28, 121])).unwrap();
    let opts = a.message.opts();
    assert_eq!(opts.get(OptionCode::SubnetMask), Some(&DhcpOption::SubnetMask(Ipv4Addr::BROADCAST)));
    assert_eq!(opts.get(OptionCode::Router), Some(&DhcpOption::Router(vec![gateway])));
    assert_eq!(opts.get(OptionCode::BroadcastAddr), None);
    let routes = vec![
        ("169.254.1.1/32".parse().unwrap(), Ipv4Addr::UNSPECIFIED),
        ("0.0.0.0/0".parse().unwrap(), gateway),
    ];
    let expected = DhcpOption::ClasslessStaticRoute(routes);
    assert_eq!(opts.get(OptionCode::ClasslessStaticRoute), Some(&expected));
}

#[test]
fn further_routes_stand_between_next_hops_and_the_default() {
    let mut link = test_link();
    link.v4.as_mut().unwrap().routes = vec![
        Route { to: "10.128.0.0/9".parse().unwrap(), via: Some(Ipv4Addr::new(10, 9, 0, 1)) },
        Route { to: "192.0.2.0/26".parse().unwrap(), via: Some(Ipv4Addr::new(169, 254, 7, 7)) },
        Route { to: "198.51.100.0/24".parse().unwrap(), via: None },
    ];
    let a = send(&link, &asking(&link, v4::MessageType::Discover, &[249])).unwrap();
    let raw = a.message.opts().iter().find(|(c, _)| u8::from(**c) == 249).unwrap().1.clone();
    let DhcpOption::Unknown(raw) = raw else { panic!("{raw:?}") };
    #[rustfmt::skip]
    assert_eq!(raw.data(), [
        32, 169, 254, 7, 7, 0, 0, 0, 0,
        9, 10, 128, 10, 9, 0, 1,
        26, 192, 0, 2, 0, 169, 254, 7, 7,
        24, 198, 51, 100, 0, 0, 0, 0,
        0, 10, 9, 0, 1,
    ]);
}

#[test]
fn an_ordinary_network_needs_no_classless_routes() {
    let link = test_link();
    let a = send(&link, &asking(&link, v4::MessageType::Discover, &[3, 121, 249])).unwrap();
    assert_eq!(codes(&a), [1, 3, 51, 53, 54]);
}

/// Whether server id, requested address and ciaddr are given, and what the answer is (RFC 2131 section
/// 4.3.2).
#[test]
fn each_state_of_a_client_gets_its_answer() {
    let link = test_link();
    let own = Some("10.9.0.2");
    let other = Some("10.9.0.3");
    let server = Some("10.9.0.1");
    let (ack, nak) = (Some(v4::MessageType::Ack), Some(v4::MessageType::Nak));
    for (state, server_id, requested, ciaddr, expected) in [
        ("selecting", server, own, None, ack),
        ("selecting another address", server, other, None, nak),
        ("selecting another server", other, own, None, None),
        ("init-reboot", None, own, None, ack),
        ("init-reboot from elsewhere", None, Some("192.168.1.7"), None, nak),
        ("renewing", None, None, own, ack),
        ("renewing a former address", None, None, other, nak),
    ] {
        let mut m = message(&link, v4::MessageType::Request);
        let parse = |s: &str| Ipv4Addr::from_str(s).unwrap();
        if let Some(s) = server_id {
            m.opts_mut().insert(DhcpOption::ServerIdentifier(parse(s)));
        }
        if let Some(r) = requested {
            m.opts_mut().insert(DhcpOption::RequestedIpAddress(parse(r)));
        }
        if let Some(c) = ciaddr {
            m.set_ciaddr(parse(c));
        }
        let a = send(&link, &m);
        assert_eq!(a.as_ref().and_then(kind), expected, "{state}");
        let Some(a) = a else { continue };
        if expected == ack {
            assert_eq!(a.message.yiaddr(), Ipv4Addr::new(10, 9, 0, 2), "{state}");
            assert_eq!(a.to_mac, guest(&link).0, "{state}");
        } else {
            assert_eq!((a.to, a.to_mac), (Ipv4Addr::BROADCAST, [0xff; 6]), "{state}");
            assert_eq!(a.message.yiaddr(), Ipv4Addr::UNSPECIFIED, "{state}");
            assert_eq!(codes(&a), [53, 54, 56], "{state}");
        }
    }
}

#[test]
fn a_request_without_an_address_is_malformed() {
    let link = test_link();
    let m = message(&link, v4::MessageType::Request);
    assert_eq!(send_raw(&link, &m.to_vec().unwrap()), (Handled::Dropped(Reason::Malformed), vec![]));
}

#[test]
fn rapid_commit_saves_the_offer() {
    let link = test_link();
    let mut m = message(&link, v4::MessageType::Discover);
    m.opts_mut().insert(DhcpOption::RapidCommit);
    let a = send(&link, &m).unwrap();
    assert_eq!(kind(&a), Some(v4::MessageType::Ack));
    assert!(a.message.opts().contains(OptionCode::RapidCommit));
}

#[test]
fn inform_gives_parameters_and_no_lease() {
    let link = test_link();
    let mut m = asking(&link, v4::MessageType::Inform, &[6, 51, 58, 59]);
    m.set_ciaddr(Ipv4Addr::new(10, 9, 0, 2));
    let a = send(&link, &m).unwrap();
    assert_eq!(kind(&a), Some(v4::MessageType::Ack));
    assert_eq!(a.message.yiaddr(), Ipv4Addr::UNSPECIFIED);
    assert_eq!(a.to, Ipv4Addr::new(10, 9, 0, 2));
    assert_eq!(codes(&a), [1, 6, 53, 54]);
}

#[test]
fn release_and_decline_need_no_answer() {
    let link = test_link();
    for kind in [v4::MessageType::Release, v4::MessageType::Decline] {
        assert!(send(&link, &message(&link, kind)).is_none());
    }
}

#[test]
fn the_broadcast_flag_is_obeyed() {
    let link = test_link();
    let mut m = message(&link, v4::MessageType::Discover);
    m.set_flags(Flags::default().set_broadcast());
    let a = send(&link, &m).unwrap();
    assert_eq!((a.to, a.to_mac), (Ipv4Addr::BROADCAST, [0xff; 6]));
    assert!(a.message.flags().broadcast());
}

#[test]
fn only_the_guest_itself_is_served() {
    let link = test_link();
    let mut m = message(&link, v4::MessageType::Discover);
    m.set_chaddr(&[2, 0, 0, 0, 0, 9]);
    let raw = m.to_vec().unwrap();
    assert_eq!(send_raw(&link, &raw), (Handled::Dropped(Reason::Spoofed), vec![]));
    let mut out = vec![];
    let frame = frame_of(&link, Ipv4Addr::BROADCAST, &raw);
    let any_station = Link { guest_mac: None, ..link.clone() };
    assert_eq!(Services::new().handle(&frame, &any_station, Time::ZERO, &mut out), Handled::Consumed);
    assert_eq!(out.len(), 1);
    let mut m = message(&link, v4::MessageType::Discover);
    m.set_giaddr(Ipv4Addr::new(10, 0, 0, 1));
    assert_eq!(send_raw(&link, &m.to_vec().unwrap()), (Handled::Dropped(Reason::Denied), vec![]));
}

#[test]
fn a_server_elsewhere_is_the_translators_business() {
    let link = test_link();
    let raw = message(&link, v4::MessageType::Request).to_vec().unwrap();
    let mut out = vec![];
    let mut to = |a| Services::new().handle(&frame_of(&link, a, &raw), &link, Time::ZERO, &mut out);
    assert_eq!(to(Ipv4Addr::new(192, 0, 2, 7)), Handled::NotMine);
    assert_ne!(to(Ipv4Addr::new(10, 9, 0, 1)), Handled::NotMine);
}

#[test]
fn only_what_was_asked_for_is_told() {
    let link = test_link();
    let a = send(&link, &asking(&link, v4::MessageType::Discover, &[6])).unwrap();
    assert_eq!(codes(&a), [1, 6, 51, 53, 54]);
    let a = send(&link, &message(&link, v4::MessageType::Discover)).unwrap();
    assert_eq!(codes(&a), [1, 3, 6, 12, 15, 26, 28, 51, 53, 54, 58, 59, 81, 119]);
}

#[test]
fn configured_options_join_and_override_but_cannot_break_the_protocol() {
    let mut link = test_link();
    let option = |code, value: &[u8]| Configured { code, value: value.to_vec() };
    link.dhcp_options = vec![
        option(66, b"tftp.example"),
        option(67, b"pxe.0"),
        option(42, &[192, 0, 2, 123]),
        option(224, b"private"),
        option(12, b"other"),
        option(53, &[9]),
        option(54, &[1, 1, 1, 1]),
    ];
    let a = send(&link, &asking(&link, v4::MessageType::Discover, &[66, 67, 42, 224, 12, 53, 54])).unwrap();
    let opts = a.message.opts();
    assert_eq!(kind(&a), Some(v4::MessageType::Offer));
    assert_eq!(
        opts.get(OptionCode::TFTPServerName).unwrap(),
        &DhcpOption::TFTPServerName(b"tftp.example".into())
    );
    assert_eq!(opts.get(OptionCode::BootfileName).unwrap(), &DhcpOption::BootfileName(b"pxe.0".into()));
    assert_eq!(
        opts.get(OptionCode::NtpServers).unwrap(),
        &DhcpOption::NtpServers(vec![Ipv4Addr::new(192, 0, 2, 123)])
    );
    assert_eq!(opts.get(OptionCode::Hostname).unwrap(), &DhcpOption::Hostname("other".into()));
    assert_eq!(
        opts.get(OptionCode::Unknown(224)).unwrap(),
        &DhcpOption::Unknown(UnknownOption::new(OptionCode::Unknown(224), b"private".to_vec()))
    );
    assert_eq!(
        opts.get(OptionCode::ServerIdentifier).unwrap(),
        &DhcpOption::ServerIdentifier(Ipv4Addr::new(10, 9, 0, 1))
    );
}

#[test]
fn the_client_identifier_is_echoed() {
    let link = test_link();
    let id = DhcpOption::ClientIdentifier(vec![255, 1, 2, 3]);
    for kind in [v4::MessageType::Discover, v4::MessageType::Request] {
        let mut m = message(&link, kind);
        m.opts_mut().insert(id.clone());
        m.opts_mut().insert(DhcpOption::RequestedIpAddress(Ipv4Addr::new(10, 9, 0, 99)));
        let a = send(&link, &m).unwrap();
        assert_eq!(a.message.opts().get(OptionCode::ClientIdentifier), Some(&id), "{kind:?}");
    }
}

#[test]
fn answers_fit_what_the_client_takes() {
    let mut link = test_link();
    link.search = (0..20).map(|i| format!("subdomain-number-{i:02}.example.org")).collect();
    for (told, fits) in [(None, false), (Some(300), false), (Some(1400), true), (Some(65535), true)] {
        let mut m = asking(&link, v4::MessageType::Discover, &[119, 3]);
        if let Some(told) = told {
            m.opts_mut().insert(DhcpOption::MaxMessageSize(told));
        }
        let a = send(&link, &m).unwrap();
        assert!(a.len + 28 <= usize::from(told.unwrap_or(576).clamp(576, 1500)));
        assert!(a.len >= 300, "BOOTP clients take no less");
        assert!(a.message.opts().contains(OptionCode::Router), "what follows still fits");
        let search = a.message.opts().get(OptionCode::DomainSearch);
        let expected = DhcpOption::DomainSearch(link.search.iter().map(|s| name(&format!("{s}."))).collect());
        assert_eq!(search, fits.then_some(&expected), "{told:?}");
    }
}

#[test]
fn the_name_comes_back_in_the_form_it_was_asked_in() {
    let link = test_link();
    for (sent, expected) in [(0x05, 0x0e), (0x04, 0x0c), (0x01, 0x0a), (0x00, 0x08)] {
        let mut raw = asking(&link, v4::MessageType::Discover, &[]).to_vec().unwrap();
        assert_eq!(raw.pop(), Some(255));
        raw.extend_from_slice(&[81, 3, sent, 0, 0, 255]);
        let (_, out) = send_raw(&link, &raw);
        let ascii = expected & 4 == 0;
        let text: &[u8] = if ascii { b"vm1.example.org" } else { b"\x03vm1\x07example\x03org\x00" };
        let option = [&[81, u8::try_from(text.len()).unwrap() + 3, expected, 255, 255], text].concat();
        assert!(out[0].windows(option.len()).any(|w| w == option), "flags {sent:#x}");
    }
}

#[test]
fn bootp_clients_get_their_fixed_address() {
    let link = test_link();
    let mut m = message(&link, v4::MessageType::Discover);
    m.opts_mut().remove(OptionCode::MessageType);
    let a = send(&link, &m).unwrap();
    assert_eq!(kind(&a), None);
    assert_eq!(a.message.yiaddr(), Ipv4Addr::new(10, 9, 0, 2));
    assert_eq!(codes(&a), [1, 3, 6, 12, 15, 26, 28, 81, 119]);
}

#[test]
fn options_may_overflow_into_the_name_fields() {
    let link = test_link();
    let mut raw = message(&link, v4::MessageType::Discover).to_vec().unwrap();
    raw.truncate(240);
    raw.extend_from_slice(&[52, 1, 3, 255]);
    raw[108..112].copy_from_slice(&[53, 1, 1, 255]);
    raw[44..48].copy_from_slice(&[55, 1, 26, 255]);
    let (handled, out) = send_raw(&link, &raw);
    assert_eq!((handled, out.len()), (Handled::Consumed, 1));
    let at = 14 + 20 + 8;
    let m = Message::decode(&mut Decoder::new(&out[0][at..])).unwrap();
    assert_eq!(m.opts().get(OptionCode::InterfaceMtu), Some(&DhcpOption::InterfaceMtu(1500)));
    assert_eq!(m.opts().len(), 5);
}

#[test]
fn without_ipv4_or_resolvers_nothing_is_made_up() {
    let link = Link { v4: None, ..test_link() };
    assert!(send_none(&link));
    let mut link = test_link();
    link.dns = vec!["127.0.0.53".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()];
    link.search = vec![];
    link.fqdn = None;
    link.hostname = None;
    let a = send(&link, &asking(&link, v4::MessageType::Discover, ALL)).unwrap();
    assert_eq!(codes(&a), [1, 3, 26, 28, 51, 53, 54, 58, 59]);
}

fn send_none(link: &Link) -> bool {
    let raw = message(link, v4::MessageType::Discover).to_vec().unwrap();
    send_raw(link, &raw) == (Handled::Consumed, vec![])
}
