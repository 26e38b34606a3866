use std::os::unix::fs::symlink;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::*;
use crate::config::file::File;
use crate::pod::read;
use crate::pod::testns::{add_address, add_interface, in_netns, remove_address, set_mtu};

/// Far below the polling interval, so that only an event can bring the link in time.
const LIMIT: Duration = Duration::from_secs(24);

const MAC: [u8; 6] = [0x0a, 0x58, 10, 9, 0, 2];

/// Starts a watcher; the links it pushes, and the task.
async fn start(resolv_conf: &Path) -> (UnboundedReceiver<Arc<Link>>, AbortOnDrop) {
    let config = File::parse("vhost_user: { socket: /run/vm.sock }").unwrap().check().unwrap();
    let link = read(&config, resolv_conf).await.unwrap();
    let (sender, receiver) = unbounded_channel();
    let task = watch(Arc::new(config), resolv_conf.to_owned(), Arc::new(link), async move |link| {
        sender.send(link).unwrap();
    });
    let local = tokio::spawn(async move {
        task.await.unwrap();
    });
    (receiver, AbortOnDrop(local))
}

/// The next link that `wanted` holds of; links on the way there are passed over.
async fn until(links: &mut UnboundedReceiver<Arc<Link>>, wanted: impl Fn(&Link) -> bool) {
    timeout(LIMIT, async { while !wanted(&links.recv().await.unwrap()) {} }).await.unwrap();
}

fn has_resolver(text: &str) -> impl Fn(&Link) -> bool {
    let address: IpAddr = text.parse().unwrap();
    move |link| link.dns == [address]
}

#[test]
fn changes_of_the_interface_are_pushed() {
    in_netns(async |handle| {
        let dir = tempfile::tempdir().unwrap();
        let index = add_interface(&handle, "eth0", MAC, 1450).await;
        add_address(&handle, index, "10.9.0.2/24").await;
        let (mut links, _task) = start(&dir.path().join("resolv.conf")).await;
        set_mtu(&handle, index, 1400).await;
        until(&mut links, |l| l.mtu == 1400).await;
        add_address(&handle, index, "fd00:9::2/64").await;
        until(&mut links, |l| l.v6.is_some()).await;
        // While the pod has no address at all the guest keeps what it has.
        remove_address(&handle, index, "fd00:9::2").await;
        remove_address(&handle, index, "10.9.0.2").await;
        add_address(&handle, index, "10.9.0.3/24").await;
        until(&mut links, |l| l.v6.is_none() && l.v4.as_ref().is_some_and(|v| v.pod.octets()[3] == 3)).await;
    });
}

#[test]
fn addresses_of_every_interface_are_pushed_as_they_come_and_go() {
    in_netns(async |handle| {
        let dir = tempfile::tempdir().unwrap();
        let eth0 = add_interface(&handle, "eth0", MAC, 1450).await;
        add_address(&handle, eth0, "10.9.0.2/24").await;
        let (mut links, _task) = start(&dir.path().join("resolv.conf")).await;
        let is_open = |link: &Link, to: &str| link.destination_for_pod(to.parse().unwrap()).is_some();
        let other = add_interface(&handle, "net1", [2, 0, 0, 0, 0, 7], 1450).await;
        add_address(&handle, other, "10.8.0.2/24").await;
        until(&mut links, |l| !is_open(l, "10.8.0.2") && !is_open(l, "10.9.0.2")).await;
        add_address(&handle, eth0, "fd00:9::2/64").await;
        add_address(&handle, other, "fd00:9::3/64").await;
        until(&mut links, |l| !is_open(l, "fd00:9::2") && !is_open(l, "fd00:9::3")).await;
        remove_address(&handle, other, "10.8.0.2").await;
        until(&mut links, |l| is_open(l, "10.8.0.2") && !is_open(l, "fd00:9::3")).await;
        // Further ones of the pod's own interface do not renumber the guest.
        add_address(&handle, eth0, "10.9.0.20/24").await;
        add_address(&handle, eth0, "fd00:9::20/64").await;
        let own = |l: &Link| (l.v4.as_ref().map(|l| l.pod), l.v6.as_ref().map(|l| l.pod));
        let before = (Some([10, 9, 0, 2].into()), Some("fd00:9::2".parse().unwrap()));
        until(&mut links, |l| !is_open(l, "10.9.0.20") && !is_open(l, "fd00:9::20") && own(l) == before)
            .await;
    });
}

#[test]
fn changes_of_resolv_conf_are_pushed() {
    in_netns(async |handle| {
        let index = add_interface(&handle, "eth0", MAC, 1450).await;
        add_address(&handle, index, "10.9.0.2/24").await;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        std::fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
        let (mut links, _task) = start(&path).await;
        // Rewritten in place.
        std::fs::write(&path, "nameserver 192.0.2.2\n").unwrap();
        until(&mut links, has_resolver("192.0.2.2")).await;
        // Replaced by renaming.
        let new = dir.path().join("new");
        std::fs::write(&new, "nameserver 192.0.2.3\n").unwrap();
        std::fs::rename(&new, &path).unwrap();
        until(&mut links, has_resolver("192.0.2.3")).await;
        // Replaced by a symbolic link to somewhere else, and rewritten there.
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("conf");
        std::fs::write(&target, "nameserver 192.0.2.4\n").unwrap();
        symlink(&target, &new).unwrap();
        std::fs::rename(&new, &path).unwrap();
        until(&mut links, has_resolver("192.0.2.4")).await;
        std::fs::write(&target, "nameserver 192.0.2.5\n").unwrap();
        until(&mut links, has_resolver("192.0.2.5")).await;
        // Where nothing can be read the guest keeps what it has; the MTU shows that the file was looked at.
        symlink(dir.path().join("nothing"), &new).unwrap();
        std::fs::rename(&new, &path).unwrap();
        set_mtu(&handle, index, 1400).await;
        until(&mut links, |l| l.mtu == 1400 && has_resolver("192.0.2.5")(l)).await;
        std::fs::write(dir.path().join("nothing"), "nameserver 192.0.2.6\n").unwrap();
        until(&mut links, has_resolver("192.0.2.6")).await;
    });
}
