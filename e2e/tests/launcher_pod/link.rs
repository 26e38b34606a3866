//! The guest's link as the handler hears of it, when netd ends and comes again.

use nix::sys::signal::Signal;

use crate::launched::{Heard, Launched, vmi};

/// Gives the pod another address in place of `old`; the handler hears of it.
fn moves(launched: &Launched, heard: &Heard, [old, new]: [&str; 2]) {
    let pod = &launched.pod.net.pod;
    // The kernel takes a second address of the subnet along with the first.
    pod.ip(&format!("addr del {old}/24 dev eth0")).unwrap();
    pod.ip(&format!("addr add {new}/24 dev eth0")).unwrap();
    pod.ip("route replace default via 10.9.0.1 dev eth0").unwrap();
    heard.wait(new, |report| report.interfaces.first().is_some_and(|interface| interface.ip == new));
}

#[test]
fn a_netd_that_comes_again_is_heard_of_its_link() {
    let mut launched = Launched::new("--allow-emulation");
    let (heard, _handler) = launched.handler();
    let mut client = launched.client();
    let answer = launched.sync(&mut client, &vmi());
    assert!(answer.success, "{answer:?}\n{}", launched.compute.log());
    heard.wait("the first address", |report| report.interfaces.first().is_some_and(|i| i.ip == "10.9.0.2"));
    moves(&launched, &heard, ["10.9.0.2", "10.9.0.3"]);
    // A crash, and an end at which everything is handed over.
    launched.restart_netd("netd-1", &vmi(), Signal::SIGKILL);
    moves(&launched, &heard, ["10.9.0.3", "10.9.0.4"]);
    moves(&launched, &heard, ["10.9.0.4", "10.9.0.5"]);
    launched.restart_netd("netd-2", &vmi(), Signal::SIGTERM);
    moves(&launched, &heard, ["10.9.0.5", "10.9.0.6"]);
    moves(&launched, &heard, ["10.9.0.6", "10.9.0.7"]);
}
