//! What the link at the target closes to the guest.

use super::*;
use crate::control::Control;

#[test]
fn what_the_link_at_the_target_closes_does_not_go_on() {
    let open = |at: [u8; 4]| {
        let mut link = test_link();
        link.v4.as_mut().unwrap().loopback = Some(at.into());
        link
    };
    let bytes = source().0.save().unwrap();
    // 127.0.0.1 is not open, or another address stands for it: the flow of datagrams would be no other's here.
    let deny = Egress { default: Action::Deny, ..Egress::default() };
    let denies = Link { egress: Arc::new(deny), ..open([127, 0, 0, 1]) };
    let closed = [
        (test_link(), Reason::Denied),
        (open([192, 0, 2, 1]), Reason::Denied),
        (denies, Reason::EgressDenied),
    ];
    for (link, reason) in closed {
        let new = workers_at(link, 1, None);
        new.load(&bytes).unwrap();
        assert!(new.flows().iter().all(|f| f.0 == FlowKind::Tcp), "{reason:?}");
        assert_eq!(new.0.workers().counters().dropped(reason), 1);
    }
    let new = workers_at(open([127, 0, 0, 1]), 1, None);
    new.load(&bytes).unwrap();
    assert_eq!(new.flows().len(), 2);
}

#[test]
fn a_flow_to_the_pods_loopback_does_not_go_on_where_its_address_leads_elsewhere() {
    let open = || {
        let mut link = test_link();
        link.v4.as_mut().unwrap().loopback = Some([192, 0, 2, 1].into());
        link
    };
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    near.set_nonblocking(true).unwrap();
    let mut old = inherited(udp.local_addr().unwrap(), near);
    old.workers[0].udp[0].key.1.set_ip([192, 0, 2, 1].into());
    let source = workers_at(open(), 1, Some(old));
    source.0.workers().thaw();
    let bytes = source.save().unwrap();
    // There the address is that of a host of the world.
    for (link, goes_on) in [(open(), true), (test_link(), false)] {
        let new = workers_at(link, 1, None);
        new.load(&bytes).unwrap();
        assert_eq!(new.flows().iter().any(|f| f.0 == FlowKind::Udp), goes_on);
        assert_eq!(new.0.workers().counters().dropped(Reason::Denied), u64::from(!goes_on));
    }
}
