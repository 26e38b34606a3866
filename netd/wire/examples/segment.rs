//! Builds the headers of a TCP segment in front of a payload and reads them back.
//!
//! Run it by `cargo run -p netd-wire --example segment`.

use std::net::Ipv4Addr;

use netd_wire::{
    ETH_LEN, Eth, EthIp, Ip, MAX_HEADERS, MacAddr, ParseError, TcpFlags, TcpHeader, TcpMeta, VNET_LEN,
    build_tcp,
};

fn main() -> Result<(), ParseError> {
    let payload = b"hello";
    let link = EthIp {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        src: Ipv4Addr::new(192, 0, 2, 1).into(),
        dst: Ipv4Addr::new(192, 0, 2, 2).into(),
        ttl: None,
        class: 0,
    };
    let meta = TcpMeta {
        src_port: 80,
        dst_port: 40_000,
        seq: 1,
        ack: 1,
        flags: TcpFlags::ACK,
        window: 60_000,
        mss: None,
        window_scale: None,
        payload_len: payload.len(),
        gso_size: None,
    };
    let mut headers = [0; MAX_HEADERS];
    let len = build_tcp(&mut headers, &link, &meta);
    let frame = [headers.get(VNET_LEN..len).unwrap_or_default(), payload].concat();

    let eth = Eth::parse(&frame)?;
    let packet = frame.get(ETH_LEN..).unwrap_or_default();
    let ip = Ip::parse(packet, packet.len())?;
    let segment = packet.get(ip.header_len..).unwrap_or_default();
    let tcp = TcpHeader::parse(segment)?;
    println!("{} -> {}: {}:{} -> {}:{} {:?}", eth.src, eth.dst, ip.src, tcp.src, ip.dst, tcp.dst, tcp.flags);
    Ok(())
}
