use std::path::Path;

use rtnetlink::{Handle, RouteMessageBuilder};

use super::*;
use crate::config::file::File;
use crate::pod::testns::{add_address, add_interface, add_route, in_netns};
use crate::pod::{netlink, read};

const MAC: [u8; 6] = [0x0a, 0x58, 10, 9, 0, 2];

async fn default_v4(handle: &Handle, index: u32, gateway: &str, onlink: bool, metric: u32) {
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .gateway(gateway.parse().unwrap())
        .output_interface(index)
        .priority(metric);
    add_route(handle, if onlink { route.onlink().build() } else { route.build() }).await;
}

#[test]
fn a_dual_stack_pod_is_read() {
    in_netns(async |handle| {
        let index = add_interface(&handle, "eth0", MAC, 1450).await;
        add_address(&handle, index, "10.9.0.2/24").await;
        add_address(&handle, index, "fd00:9::2/64").await;
        default_v4(&handle, index, "10.9.0.1", false, 0).await;
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new().gateway("fd00:9::1".parse().unwrap());
        add_route(&handle, v6.output_interface(index).build()).await;
        let further = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix("172.30.0.0".parse().unwrap(), 16)
            .gateway("10.9.0.7".parse().unwrap());
        add_route(&handle, further.output_interface(index).build()).await;

        let facts = netlink::read(&handle, None, &[]).await.unwrap();
        assert_eq!((facts.interface.as_str(), facts.mtu, facts.mac), ("eth0", 1450, Some(MacAddr(MAC))));
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(facts.hostname.as_deref(), Some(hostname.trim()));
        let v4 = facts.v4.unwrap();
        assert_eq!((v4.address.to_string().as_str(), v4.prefix_len), ("10.9.0.2", 24));
        assert_eq!(v4.gateway, Some(Ipv4Addr::new(10, 9, 0, 1)));
        let via = Some(Ipv4Addr::new(10, 9, 0, 7));
        assert_eq!(v4.routes, [Route { to: "172.30.0.0/16".parse().unwrap(), via }]);
        let v6 = facts.v6.unwrap();
        assert_eq!((v6.address.to_string().as_str(), v6.prefix_len), ("fd00:9::2", 64));
        assert_eq!(v6.gateway, Some("fd00:9::1".parse().unwrap()));
        assert_eq!(v6.routes, []);
    });
}

#[test]
fn an_off_link_gateway_is_read_and_not_repeated_as_a_route() {
    in_netns(async |handle| {
        let index = add_interface(&handle, "eth0", MAC, 1500).await;
        add_address(&handle, index, "10.9.0.2/32").await;
        let to_gateway =
            RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(Ipv4Addr::new(169, 254, 1, 1), 32);
        let scope = netlink_packet_route::route::RouteScope::Link;
        add_route(&handle, to_gateway.output_interface(index).scope(scope).build()).await;
        default_v4(&handle, index, "169.254.1.1", true, 0).await;
        let facts = netlink::read(&handle, Some("eth0"), &[]).await.unwrap();
        let v4 = facts.v4.unwrap();
        assert_eq!((v4.prefix_len, v4.gateway), (32, Some(Ipv4Addr::new(169, 254, 1, 1))));
        assert_eq!(v4.routes, []);
        assert_eq!(facts.v6, None);
    });
}

#[test]
fn the_interface_is_the_one_of_the_best_default_route() {
    in_netns(async |handle| {
        assert!(matches!(netlink::read(&handle, None, &[]).await, Err(PodError::NoDefault)));
        let first = add_interface(&handle, "net0", MAC, 1500).await;
        add_address(&handle, first, "10.1.0.2/24").await;
        assert_eq!(netlink::read(&handle, None, &[]).await.unwrap().interface, "net0");
        let second = add_interface(&handle, "net1", MAC, 1500).await;
        add_address(&handle, second, "10.2.0.2/24").await;
        default_v4(&handle, first, "10.1.0.1", false, 200).await;
        default_v4(&handle, second, "10.2.0.1", false, 100).await;
        let facts = netlink::read(&handle, None, &[]).await.unwrap();
        assert_eq!(facts.interface, "net1");
        assert_eq!(facts.v4.unwrap().gateway, Some(Ipv4Addr::new(10, 2, 0, 1)));
        let wanted = netlink::read(&handle, Some("net0"), &[]).await.unwrap();
        assert_eq!(wanted.v4.unwrap().gateway, Some(Ipv4Addr::new(10, 1, 0, 1)));
        let none = netlink::read(&handle, Some("net9"), &[]).await;
        assert!(matches!(none, Err(PodError::NoInterface(name)) if name == "net9"));
    });
}

#[test]
fn the_first_address_that_is_not_deprecated_is_the_pods() {
    in_netns(async |handle| {
        let index = add_interface(&handle, "eth0", MAC, 1500).await;
        let mut old = handle.address().add(index, "fd00:9::1".parse().unwrap(), 64);
        old.message_mut().header.flags = netlink_packet_route::address::AddressHeaderFlags::Nodad;
        // A preferred lifetime of nothing makes an address deprecated (RFC 4862, section 5.5.4).
        let mut life = netlink_packet_route::address::CacheInfo::default();
        life.ifa_valid = u32::MAX;
        old.message_mut().attributes.push(AddressAttribute::CacheInfo(life));
        old.execute().await.unwrap();
        let facts = netlink::read(&handle, Some("eth0"), &[]).await.unwrap();
        assert_eq!(facts.v6.unwrap().address.to_string(), "fd00:9::1", "the only one is better than none");
        add_address(&handle, index, "fd00:9::2/64").await;
        add_address(&handle, index, "10.9.0.2/24").await;
        add_address(&handle, index, "10.9.0.3/24").await;
        let facts = netlink::read(&handle, Some("eth0"), &[]).await.unwrap();
        assert_eq!(facts.v6.unwrap().address.to_string(), "fd00:9::2");
        assert_eq!(facts.v4.unwrap().address.to_string(), "10.9.0.2");
    });
}

#[test]
fn a_link_is_built_of_what_is_read() {
    in_netns(async |handle| {
        let index = add_interface(&handle, "eth0", MAC, 1450).await;
        add_address(&handle, index, "10.9.0.2/24").await;
        let config = File::parse("vhost_user: { socket: /run/vm.sock }").unwrap().check().unwrap();
        let link = read(&config, Path::new("/nonexistent/resolv.conf")).await.unwrap();
        assert_eq!((link.mtu, link.dns.len()), (1450, 0));
        assert_eq!(link.v4.unwrap().gateway, Ipv4Addr::new(10, 9, 0, 1));
    });
}
