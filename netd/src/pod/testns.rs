//! A throwaway network namespace for tests: one thread, one runtime, interfaces made through netlink.

use std::future::Future;
use std::net::IpAddr;

use futures::TryStreamExt;
use netlink_packet_route::route::RouteMessage;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use rtnetlink::{Handle, LinkUnspec, LinkVeth};

/// Runs `test` in a network namespace of its own, on a thread that ends with it. Without the privilege to make
/// one the test fails for root and is passed over, loudly, for others.
pub(crate) fn in_netns<F: Future<Output = ()>>(test: impl FnOnce(Handle) -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            assert!(
                !geteuid().is_root(),
                "cannot make a network namespace: {error}; root needs it for this test"
            );
            eprintln!("SKIPPED: cannot make a network namespace: {error}");
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let (connection, handle, _) = rtnetlink::new_connection().unwrap();
            tokio::spawn(connection);
            test(handle).await;
        });
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Makes the interface `name`, one end of a veth pair whose ends are both up, and answers its index.
pub(crate) async fn add_interface(handle: &Handle, name: &str, mac: [u8; 6], mtu: u32) -> u32 {
    let peer = format!("{name}-peer");
    handle.link().add(LinkVeth::new(name, &peer).build()).execute().await.unwrap();
    let peer = LinkUnspec::new_with_index(index_of(handle, &peer).await).up().build();
    handle.link().set(peer).execute().await.unwrap();
    let index = index_of(handle, name).await;
    let link = LinkUnspec::new_with_index(index).address(mac.to_vec()).mtu(mtu).up().build();
    handle.link().set(link).execute().await.unwrap();
    index
}

/// Index of the interface `name`.
pub(crate) async fn index_of(handle: &Handle, name: &str) -> u32 {
    let mut links = handle.link().get().match_name(name.to_owned()).execute();
    links.try_next().await.unwrap().unwrap().header.index
}

/// Sets the MTU.
pub(crate) async fn set_mtu(handle: &Handle, index: u32, mtu: u32) {
    handle.link().set(LinkUnspec::new_with_index(index).mtu(mtu).build()).execute().await.unwrap();
}

/// Adds an address such as `10.9.0.2/24`; IPv6 without duplicate address detection.
pub(crate) async fn add_address(handle: &Handle, index: u32, text: &str) {
    let (address, prefix) = text.split_once('/').unwrap();
    let address: IpAddr = address.parse().unwrap();
    let mut request = handle.address().add(index, address, prefix.parse().unwrap());
    if address.is_ipv6() {
        use netlink_packet_route::address::AddressHeaderFlags;
        request.message_mut().header.flags = AddressHeaderFlags::Nodad;
    }
    request.execute().await.unwrap();
}

/// Removes every address of `address`.
pub(crate) async fn remove_address(handle: &Handle, index: u32, address: &str) {
    let address: IpAddr = address.parse().unwrap();
    let found = handle.address().get().set_address_filter(address).set_link_index_filter(index).execute();
    for message in found.try_collect::<Vec<_>>().await.unwrap() {
        handle.address().del(message).execute().await.unwrap();
    }
}

/// Adds a route.
pub(crate) async fn add_route(handle: &Handle, route: RouteMessage) {
    handle.route().add(route).execute().await.unwrap();
}
