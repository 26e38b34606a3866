//! Makes two frames and writes those that a filter lets through to a pcapng file.
//!
//! Run it by `cargo run -p netd-capture --example filter -- 'udp port 53'`.

use std::fs::File;
use std::net::Ipv4Addr;
use std::time::{SystemTime, UNIX_EPOCH};

use netd_capture::pcapng::{Interface, Statistics, Writer};
use netd_capture::{Direction, Filter, Headers, Packet};
use netd_wire::{EthIp, MAX_HEADERS, MacAddr, VNET_LEN, build_udp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let expression = std::env::args().nth(1).unwrap_or_default();
    let filter: Filter = expression.parse()?;
    let link = EthIp {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        src: Ipv4Addr::new(192, 0, 2, 1).into(),
        dst: Ipv4Addr::new(192, 0, 2, 2).into(),
        ttl: None,
        class: 0,
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let path = std::env::temp_dir().join("netd-capture.pcapng");
    let interface = Interface { name: "example".into(), filter: expression, ..Interface::default() };
    let mut writer = Writer::new(File::create(&path)?, &interface, now)?;
    for port in [53, 123] {
        let mut headers = [0; MAX_HEADERS];
        let len = build_udp(&mut headers, &link, port, 40_000, 0);
        let data = headers.get(VNET_LEN..len).unwrap_or_default().to_vec();
        let direction = Direction::Inbound;
        if filter.matches(&Headers::parse(&data, data.len()), direction) {
            writer.packet(&Packet { at: now, direction, len: data.len() as u32, gso_size: 0, data })?;
        }
    }
    let written = writer.written();
    writer.finish(Statistics { matched: written, dropped: 0 }, now)?;
    println!("{written} of 2 frames are in {}", path.display());
    Ok(())
}
