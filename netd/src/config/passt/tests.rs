use clap::Parser;

use super::*;
use crate::config::ports::{PortSpec, Reserved};
use crate::net::Mode;
use crate::port::PortRange;

/// The words behind `passt --vhost-user --socket /run/p`.
fn parse(words: &str) -> Result<Passt, String> {
    let fixed = ["passt", "--vhost-user", "--socket", "/run/p"];
    Passt::try_parse_from(fixed.into_iter().chain(words.split_whitespace())).map_err(|e| e.to_string())
}

fn config(words: &str) -> Result<Config, String> {
    parse(words)?.config().map_err(|e| e.to_string())
}

fn spec(words: &str) -> PortSpec {
    config(&format!("--tcp-ports {words}")).unwrap().ports.tcp
}

#[test]
fn it_is_called_by_its_name() {
    for path in ["passt", "/usr/bin/passt", "./passt"] {
        assert!(is_meant(OsStr::new(path)), "{path}");
    }
    for path in ["netd", "/usr/passt/netd", "passt.avx2", "passt-repair", ""] {
        assert!(!is_meant(OsStr::new(path)), "{path}");
    }
}

#[test]
fn libvirts_words_are_understood() {
    let words = "--one-off --pid /run/pid --mtu 1400 --interface eth0 --log-file /log \
                 --tcp-ports 2222:22,8000-8009:9000-9009,~8004 --udp-ports all";
    let passt = parse(words).unwrap();
    assert!(passt.one_off && !passt.foreground);
    assert_eq!(passt.pid.as_deref(), Some(Path::new("/run/pid")));
    assert_eq!(passt.log_file.as_deref(), Some(Path::new("/log")));
    let config = passt.config().unwrap();
    assert_eq!(config.vhost_user.socket, Path::new("/run/p"));
    assert_eq!((config.mtu, config.interface.as_deref()), (Some(1400), Some("eth0")));
    assert_eq!(config.mode, Mode::Passthrough);
    let maps: Vec<String> = config.ports.tcp.maps.iter().map(ToString::to_string).collect();
    assert_eq!(maps, ["2222:22", "8000-8009:9000-9009"]);
    assert_eq!(config.ports.tcp.except, [PortRange::new(8004, 8004).unwrap()]);
    assert!(!config.ports.tcp.all);
    assert_eq!(config.ports.udp, PortSpec::all());
    assert_eq!(config.ports.reserved, Reserved::default());
}

#[test]
fn no_port_leads_to_the_guest_unless_it_is_said() {
    let config = config("").unwrap();
    assert_eq!((config.ports.tcp, config.ports.udp), (PortSpec::default(), PortSpec::default()));
    assert_eq!(spec("none"), PortSpec::default());
}

#[test]
fn several_lists_of_ports_are_one() {
    let spec = self::spec("80 --tcp-ports 8080:81");
    let maps: Vec<String> = spec.maps.iter().map(ToString::to_string).collect();
    assert_eq!(maps, ["80", "8080:81"]);
    let spec = self::spec("80 --tcp-ports ~22,~15000-15001");
    assert!(spec.all, "a list of exceptions is of all ports, whatever the other lists have");
    assert_eq!((spec.maps.len(), spec.except.len()), (1, 2));
}

#[test]
fn an_address_of_its_own_hides_the_guest_behind_the_hosts() {
    for (words, v4, v6) in [
        ("--address 172.17.2.4 --netmask 24", "172.17.2.4/24", None),
        ("--address 172.17.2.4 --netmask 255.255.252.0", "172.17.2.4/22", None),
        ("--address 172.17.2.4", "172.17.2.4/16", None),
        ("--address 10.1.2.3", "10.1.2.3/8", None),
        ("--address 192.168.1.2 --address 2001:db8::2", "192.168.1.2/24", Some("2001:db8::2")),
        ("--address 2001:db8::2 --address 192.168.1.2 --netmask 25", "192.168.1.2/25", Some("2001:db8::2")),
    ] {
        let config = config(words).unwrap();
        assert_eq!(config.mode, Mode::Masquerade, "{words}");
        let found = format!("{}/{}", config.masquerade.guest_v4, config.masquerade.prefix_v4);
        assert_eq!(found, v4, "{words}");
        if let Some(v6) = v6 {
            assert_eq!(config.masquerade.guest_v6.to_string(), v6);
            assert_eq!(config.masquerade.prefix_v6, 64);
        }
    }
}

#[test]
fn what_is_not_understood_is_told_by_its_option() {
    for (words, told) in [
        ("--pcap /tmp/p", "'--pcap'"),
        ("--repair-path none", "'--repair-path'"),
        ("--mtu 0", "--mtu: '0' is not allowed"),
        ("--mtu 70000", "--mtu: '70000'"),
        ("--interface a/b", "--interface: 'a/b'"),
        ("--address example", "--address: 'example'"),
        ("--address 10.0.0.2 --address 10.0.0.3", "--address: '10.0.0.3'"),
        ("--address 224.0.0.1", "--address: '224.0.0.1/24'"),
        ("--address 10.0.0.2 --netmask 33", "--netmask: '33'"),
        ("--address 10.0.0.2 --netmask 255.0.255.0", "--netmask: '255.0.255.0'"),
        ("--address fd00::2 --netmask 24", "--netmask: '24'"),
        ("--tcp-ports 10.0.0.1/80", "--tcp-ports: '10.0.0.1/80'"),
        ("--tcp-ports 10.0.0.1%eth0/80", "--tcp-ports: '10.0.0.1%eth0/80'"),
        ("--udp-ports %eth0/53", "--udp-ports: '%eth0/53'"),
        ("--tcp-ports auto", "--tcp-ports: 'auto'"),
        ("--tcp-ports 0", "--tcp-ports: '0'"),
        ("--tcp-ports 80,80", "--tcp-ports: '80'"),
        ("--udp-ports 1-2:3", "--udp-ports: '1-2:3'"),
        ("--tcp-ports ,", "--tcp-ports: ','"),
        ("--socket /other", "--socket"),
        ("more", "'more'"),
    ] {
        let error = config(words).unwrap_err();
        assert!(error.contains(told), "{words}: {error}");
    }
    let stream = Passt::try_parse_from(["passt", "--socket", "/run/p"]).unwrap();
    assert!(stream.config().unwrap_err().to_string().contains("--vhost-user: missing"));
    assert!(Passt::try_parse_from(["passt", "--vhost-user"]).unwrap_err().to_string().contains("--socket"));
}
