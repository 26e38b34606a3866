use super::*;

/// What libvirt 11.3 told of a machine with two disks and an interface that a netd serves, in the form of `virsh domstats`.
const ANSWER: &str = include_str!("usage_tests.txt");

fn read(text: &str) -> Answer {
    let told = |value: &str| value.parse().map_or_else(|_| Told::Text(value.to_owned()), Told::Number);
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), told(value))).collect()
}

/// The machine's XML, with a second interface, which the kernel carries.
fn described() -> HashMap<String, String> {
    let xml = "<domain type='qemu'><name>shop_vm</name><devices>\
        <disk type='file' device='disk'><target dev='vda' bus='virtio'/><alias name='ua-root'/></disk>\
        <disk type='file' device='disk'><target dev='vdb' bus='virtio'/><alias name='ua-seed'/></disk>\
        <interface type='vhostuser'><alias name='ua-default'/></interface>\
        <interface type='ethernet'><target dev='tap0' managed='no'/><alias name='ua-second'/></interface>\
        </devices></domain>";
    names(&Domain::from_xml(xml).unwrap())
}

#[test]
fn an_answer_of_libvirt_is_read() {
    let stats = usage(&read(ANSWER), &described());
    let cpu = Cpu { time: Some(11_400_000_000), user: Some(9_780_000_000), system: Some(1_620_000_000) };
    assert_eq!(stats.cpu, Some(cpu));
    let memory = stats.memory.unwrap();
    assert_eq!(
        (memory.rss, memory.total, memory.actual_balloon),
        (Some(293_744), Some(262_144), Some(262_144))
    );
    assert_eq!((memory.available, memory.unused, memory.major_fault), (None, None, None));
    let vcpu = Vcpu { state: Some(1), time: Some(8_130_000_000), wait: Some(0), delay: Some(13_925_217_916) };
    assert_eq!((stats.vcpus, stats.vcpu), (1, vec![vcpu]));
    assert_eq!(stats.net, [], "libvirt cannot count what a netd carries");
    let [root, seed] = stats.block.as_slice() else { panic!("{:?}", stats.block) };
    assert_eq!((root.alias.as_str(), seed.alias.as_str()), ("root", "seed"));
    assert_eq!(root.name.as_deref(), Some("vda"));
    assert_eq!((root.read_requests, root.read_bytes), (Some(1048), Some(24_887_296)));
    assert_eq!((root.read_time, root.flush_requests), (Some(496_869_888), Some(0)));
    assert_eq!((root.errors, root.capacity), (None, Some(33_554_432)));
}

#[test]
fn an_interface_that_the_kernel_carries_has_the_manifests_name() {
    let answer = read(
        "net.count=3\nnet.1.name=tap0\nnet.1.rx.bytes=5\nnet.1.rx.pkts=6\nnet.1.tx.drop=7\n\
         net.2.name=other\nballoon.available=8\nballoon.disk_caches=9\nballoon.usable=10\n",
    );
    let stats = usage(&answer, &described());
    let [second, other] = stats.net.as_slice() else { panic!("{:?}", stats.net) };
    assert_eq!((second.name.as_deref(), second.alias.as_deref()), (Some("tap0"), Some("second")));
    assert_eq!((second.rx_bytes, second.rx_packets, second.tx_dropped), (Some(5), Some(6), Some(7)));
    assert_eq!((other.alias.as_ref(), other.rx_bytes), (None, None));
    let memory = stats.memory.unwrap();
    assert_eq!((memory.available, memory.cached, memory.usable), (Some(8), Some(9), Some(10)));
}

#[test]
fn a_count_that_cannot_be_is_cut() {
    let stats = usage(&read("vcpu.maximum=18446744073709551615\nblock.count=99999999999\n"), &HashMap::new());
    assert!(stats.vcpu.len() <= 4096 && stats.block.len() <= 4096);
}
