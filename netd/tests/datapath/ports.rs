//! Forwarded ports: taken ones, and changes while netd runs.

use std::io::ErrorKind;

use netd::control::Control;

use crate::bed::{Setup, exchange, tcp, udp, with_bed};

#[test]
fn a_taken_port_is_reported_and_the_others_work() {
    with_bed(Setup { ports: vec![], ..Setup::default() }, |bed| {
        for family in bed.families() {
            let _taken = bed.pod.listen(family.any(7000));
            let _taken_too = bed.pod.udp(family.any(7000));
            let control = &bed.netd.control;
            let rules = vec![tcp(7000, 7000), udp(7000, 7000), tcp(7001, 7001), udp(7001, 7001)];
            let infos = control.add_ports(rules.clone());
            let errors: Vec<_> = infos.iter().map(|i| i.error.is_some()).collect();
            assert_eq!(errors, [true, true, false, false], "{infos:?}");
            assert!(infos[0].error.as_ref().unwrap().contains("in use"), "{infos:?}");
            assert_eq!(control.ports(), infos);
            assert_eq!(bed.netd.status().listeners, 2);
            let listener = bed.guest.listen(family.any(7001));
            let client = bed.client.connect(family.pod(7001)).unwrap();
            exchange(&client, &listener.accept().0, 5000);
            control.remove_ports(rules);
            assert_eq!(control.ports(), []);
        }
    });
}

#[test]
fn a_port_that_was_taken_can_be_had_later() {
    with_bed(Setup { ports: vec![], ..Setup::default() }, |bed| {
        let [v4, _] = bed.families();
        let taken = bed.pod.listen(v4.any(7000));
        let control = &bed.netd.control;
        assert!(control.add_ports(vec![tcp(7000, 7000)])[0].error.is_some());
        drop(taken);
        assert_eq!(control.add_ports(vec![tcp(7000, 7000)])[0].error, None);
        assert_eq!(control.ports().len(), 1);
        let again = control.add_ports(vec![tcp(7000, 7000)]);
        assert!(again[0].error.is_some(), "{again:?}");
    });
}

#[test]
fn ports_come_and_go_while_connections_stay() {
    with_bed(Setup { ports: vec![], ..Setup::default() }, |bed| {
        for family in bed.families() {
            let refused = bed.client.connect(family.pod(7000)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            let control = &bed.netd.control;
            let rule = tcp(7000, 7777);
            assert_eq!(control.add_ports(vec![rule])[0].error, None);
            let listener = bed.guest.listen(family.any(7777));
            let client = bed.client.connect(family.pod(7000)).unwrap();
            let (guest, _) = listener.accept();
            let removed = control.remove_ports(vec![rule, tcp(1, 1)]);
            assert_eq!(removed.iter().map(|i| i.rule).collect::<Vec<_>>(), [rule]);
            let refused = bed.client.connect(family.pod(7000)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            exchange(&client, &guest, 100_000);

            let rule = udp(7000, 7777);
            assert_eq!(control.add_ports(vec![rule])[0].error, None);
            let server = bed.guest.udp(family.any(7777));
            let client = bed.client.udp(family.client(5000));
            let mut buffer = [0; 16];
            let mut round_trip = || {
                client.send_to(b"question", family.pod(7000)).unwrap();
                let (n, from) = server.recv_from(&mut buffer).unwrap();
                server.send_to(&buffer[..n], from).unwrap();
                assert_eq!(client.recv_from(&mut buffer).unwrap(), (n, family.pod(7000)));
            };
            round_trip();
            assert_eq!(control.remove_ports(vec![rule]).len(), 1);
            // The flow has a socket of its own.
            round_trip();
        }
    });
}
