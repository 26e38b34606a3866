//! A guest that does not run: who connects to it has no answer at all, and is connected once it runs.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use frontend_double::Options;

use crate::bed::{Namespace, Pod, Raw, Setup, eventually, tcp, with_pod};
use crate::update::Process;

/// How long an answer is waited for that does not come.
const PATIENCE: Duration = Duration::from_millis(300);
/// More listeners than netd sets in one turn.
const FIRST: u16 = 20_000;
const LAST: u16 = 20_299;

fn many() -> Setup {
    Setup { ports: (FIRST..=LAST).map(|port| tcp(port, port)).collect(), ..Setup::default() }
}

/// A connection to `to` is neither accepted nor refused.
#[track_caller]
pub(crate) fn assert_no_answer(client: &Namespace, to: SocketAddr) {
    let e = client.tcp(to).connect_timeout(&to.into(), PATIENCE).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::TimedOut, "{to}: {e}");
}

/// No listener of the pod answers.
#[track_caller]
fn assert_silent(pod: &Pod) {
    for family in pod.families() {
        for port in [FIRST, LAST] {
            assert_no_answer(&pod.client, family.pod(port));
        }
    }
}

/// Every listener of the pod answers, sooner or later.
#[track_caller]
fn assert_answers(pod: &Pod) {
    for family in pod.families() {
        for port in [FIRST, LAST] {
            pod.client.connect(family.pod(port)).unwrap();
        }
    }
}

#[test]
fn who_connects_before_the_guest_runs_is_connected_when_it_does() {
    with_pod(many(), |pod| {
        assert_silent(pod);
        assert!(pod.netd.status().silent);
        let client = &pod.client;
        std::thread::scope(|scope| {
            let waiting = pod.families().map(|family| {
                let to = family.pod(LAST);
                scope.spawn(move || client.connect(to))
            });
            std::thread::sleep(PATIENCE);
            assert_eq!(pod.netd.status().flows, [0; 3]);
            let _raw = Raw::plug(&pod.netd);
            for connected in waiting {
                connected.join().unwrap().unwrap();
            }
            assert!(!pod.netd.status().silent);
        });
    });
}

#[test]
fn a_paused_guest_is_silent_after_a_while_and_answers_when_it_goes_on() {
    with_pod(many(), |pod| {
        let mut double = pod.netd.plug(&Options::default());
        assert_answers(pod);
        for _ in 0..2 {
            let positions = double.stop_rings().unwrap();
            // A short stop is not noticed.
            pod.client.connect(pod.families()[0].pod(FIRST)).unwrap();
            eventually("silence", || pod.netd.status().silent.then_some(()));
            // It comes to all of them in some turns.
            eventually("the last listener's silence", || {
                let to = pod.families()[1].pod(LAST);
                pod.client.tcp(to).connect_timeout(&to.into(), PATIENCE).is_err().then_some(())
            });
            assert_silent(pod);
            double.go_on(&positions).unwrap();
            assert_answers(pod);
            assert!(!pod.netd.status().silent);
        }
    });
}

#[test]
fn a_port_that_comes_while_the_guest_does_not_run_is_silent() {
    use netd::control::Control;
    with_pod(Setup::default(), |pod| {
        let [v4, v6] = pod.families();
        assert_eq!(pod.netd.control.add_ports(vec![tcp(7002, 7002)])[0].error, None);
        assert_no_answer(&pod.client, v4.pod(7002));
        let _raw = Raw::plug(&pod.netd);
        assert_eq!(pod.netd.control.add_ports(vec![tcp(7003, 7003)])[0].error, None);
        for to in [v4.pod(7002), v6.pod(7003)] {
            pod.client.connect(to).unwrap();
        }
    });
}

#[test]
fn silence_outlives_an_update_and_so_does_its_end() {
    with_pod(Setup { ports: Vec::new(), ..Setup::default() }, |pod| {
        let mut process = Process::start(pod, "{tcp: '20000-20299', udp: none}");
        assert_silent(pod);
        process.update(pod);
        // The heir does not know yet whether the guest runs, and changes nothing.
        assert_silent(pod);
        eventually("silence", || process.status().silent.then_some(()));
        assert_silent(pod);
        let _double = process.plug();
        assert_answers(pod);
        process.update(pod);
        assert_answers(pod);
    });
}
