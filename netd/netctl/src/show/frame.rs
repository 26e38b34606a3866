//! One captured frame as a line.

use std::fmt::Write;

use netd_capture::{Direction, Headers, Packet};
use netd_wire::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, protocol};

/// Letters of TCP's control bits, lowest first, as tcpdump has them.
const FLAGS: &str = "FSRP.U";

/// Time of the day in UTC, direction as the guest has it, source and destination, what the frame is and how long.
pub fn frame(packet: &Packet, headers: &Headers) -> String {
    let seconds = packet.at.as_secs() % 86_400;
    let way = match packet.direction {
        Direction::Inbound => "in ",
        Direction::Outbound => "out",
    };
    let mut line = format!(
        "{:02}:{:02}:{:02}.{:06} {way} ",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        packet.at.subsec_micros()
    );
    match (headers.ip, headers.ports, headers.mac) {
        (Some(ip), Some(ports), _) => {
            let (src, dst) = ((ip.src, ports.src), (ip.dst, ports.dst));
            let _ = write!(line, "{} > {}", std::net::SocketAddr::from(src), std::net::SocketAddr::from(dst));
        }
        (Some(ip), None, _) => {
            let _ = write!(line, "{} > {}", ip.src, ip.dst);
        }
        (None, _, Some(mac)) => {
            let _ = write!(line, "{} > {}", mac.src, mac.dst);
        }
        (None, _, None) => line.push('?'),
    }
    let _ = match (headers.ethertype, headers.protocol) {
        (ETHERTYPE_ARP, _) => write!(line, " arp"),
        (ETHERTYPE_IPV4 | ETHERTYPE_IPV6, Some(protocol::TCP)) => {
            let flags = headers.tcp_flags.unwrap_or(0);
            let letters: String =
                FLAGS.chars().enumerate().filter(|(i, _)| flags >> i & 1 == 1).map(|f| f.1).collect();
            write!(line, " tcp [{letters}]")
        }
        (ETHERTYPE_IPV4 | ETHERTYPE_IPV6, Some(protocol::UDP)) => write!(line, " udp"),
        (ETHERTYPE_IPV4, Some(protocol::ICMP)) => write!(line, " icmp"),
        (ETHERTYPE_IPV6, Some(protocol::ICMPV6)) => write!(line, " icmp6"),
        (ETHERTYPE_IPV4 | ETHERTYPE_IPV6, Some(p)) => write!(line, " protocol {p}"),
        (t, _) => write!(line, " ethertype {t:#06x}"),
    };
    let _ = write!(line, " {} bytes", packet.len);
    if packet.gso_size > 0 {
        let _ = write!(line, " in segments of {}", packet.gso_size);
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_frame_is_one_line() {
        let mut data = Vec::new();
        etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
            .ipv6([0xfd; 16], [0xfe; 16], 64)
            .tcp(40_000, 443, 1, 1000)
            .syn()
            .ack(1)
            .write(&mut data, &[])
            .unwrap();
        let at = Duration::new(86_400 + 3723, 4_005_000);
        let len = data.len() as u32;
        let p = Packet { at, direction: Direction::Outbound, len, gso_size: 0, data };
        let six = |b: &str| [b; 8].join(":");
        assert_eq!(
            frame(&p, &Headers::parse(&p.data, p.data.len())),
            format!(
                "01:02:03.004005 out [{}]:40000 > [{}]:443 tcp [S.] 74 bytes\n",
                six("fdfd"),
                six("fefe")
            )
        );
        let short = Packet { data: vec![], len: 3, direction: Direction::Inbound, gso_size: 1400, ..p };
        let line = frame(&short, &Headers::parse(&short.data, 3));
        assert_eq!(line, "01:02:03.004005 in  ? ethertype 0x0000 3 bytes in segments of 1400\n");
    }
}
