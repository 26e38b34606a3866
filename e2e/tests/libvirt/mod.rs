//! netd under libvirt without Kubernetes: on a socket of its own, and started by libvirt in the place of passt.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podvirt_e2e::artefacts::{artefact, program_dir};
use podvirt_e2e::{Backend, BackendOptions, Guest, NetOptions, Pod, Process, until};

use crate::scenario;

/// The end or the start of a process, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Starts libvirt's daemon for an ordinary user and a machine, and waits for its end: the machine's end as well.
/// The first directory of PATH is where `passt` is looked for.
const SCRIPT: &str = r#"
mkdir -p "$XDG_CONFIG_HOME/libvirt"
echo 'stdio_handler = "file"' >"$XDG_CONFIG_HOME/libvirt/qemu.conf"
libvirtd --timeout 600 &
export LIBVIRT_DEFAULT_URI=qemu:///session
until virsh uri >/dev/null 2>&1; do kill -0 $! && sleep 0.1; done
virsh create /w/domain.xml || exit 1
while virsh domstate vm 2>/dev/null | grep -q running; do sleep 0.2; done
"#;

/// A machine whose only interface is `interface`.
fn domain(interface: &str) -> String {
    format!(
        "<domain type='qemu'>
          <name>vm</name>
          <memory unit='MiB'>256</memory>
          <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
          <vcpu>1</vcpu>
          <cpu mode='maximum'/>
          <os>
            <type arch='x86_64' machine='q35'>hvm</type>
            <kernel>/guest/vmlinux</kernel>
            <initrd>/guest/initrd.img</initrd>
            <cmdline>console=ttyS0 quiet mitigations=off init_on_alloc=0 cryptomgr.notests</cmdline>
          </os>
          <features><acpi/></features>
          <devices>
            <emulator>/usr/bin/qemu-system-x86_64</emulator>
            <serial type='unix'><source mode='bind' path='/w/serial.sock'/></serial>
            <memballoon model='none'/>
            {interface}
          </devices>
        </domain>"
    )
}

/// Starts the machine; `passt` is netd.
fn start(pod: &Pod, interface: &str) -> Process {
    fs::write(pod.path("domain.xml"), domain(interface)).unwrap();
    let netd = program_dir("netd").unwrap().join("netd");
    let container = pod.container("libvirt").unwrap().ro(&artefact("tiny").unwrap(), "/guest");
    let container = container.ro(&netd, "/mnt/libexec/passt").env("PATH", "/mnt/libexec:/usr/sbin:/usr/bin");
    container.spawn(&["sh", "-ec", SCRIPT]).unwrap()
}

/// The interface as libvirt's documentation has it for passt, with this inside.
fn passt(more: &str) -> String {
    format!(
        "<interface type='vhostuser'>
           <mac address='{}'/>
           <model type='virtio'/>
           <backend type='passt' logFile='/w/passt.log'/>
           {more}
         </interface>",
        Guest::MAC
    )
}

#[test]
fn libvirt_has_netd_on_a_socket() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let options = BackendOptions { tcp: vec![8001], udp: vec![8001], ..Default::default() };
    let backend = Backend::Netd.start(&pod, &options).unwrap();
    let interface = format!(
        "<interface type='vhostuser'>
           <mac address='{}'/>
           <source type='unix' path='/w/{}' mode='client'><reconnect enabled='yes' timeout='1'/></source>
           <model type='virtio'/>
         </interface>",
        Guest::MAC,
        Backend::SOCKET
    );
    let libvirt = start(&pod, &interface);
    let mut guest = Guest::attach(libvirt, &pod.path("serial.sock")).unwrap();
    scenario::everything_works(&mut guest, &pod);

    // What is gone comes back, and QEMU with it.
    drop(backend);
    let _backend = Backend::Netd.start(&pod, &options).unwrap();
    for address in pod.net.client_addresses() {
        guest.ping(address).unwrap();
    }
    guest.shut_down().unwrap();
}

/// The only `passt` of the pod, once it is another than `before`.
fn running(pod: &Pod, before: Option<Pid>) -> Pid {
    let another = || Ok(pod.pids("passt")?.into_iter().find(|pid| Some(*pid) != before));
    until("a passt", LIMIT, another).unwrap()
}

#[test]
fn libvirt_starts_netd_as_passt_and_starts_it_again() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    // No <mtu>: libvirt 11.3 wants a privilege for that.
    let ports = "<portForward proto='tcp'><range start='8000' end='8002'/><range start='8002' exclude='yes'/></portForward>
                 <portForward proto='udp'><range start='8001'/></portForward>";
    let libvirt = start(&pod, &passt(&format!("<source dev='eth0'/>{ports}")));
    let mut guest = Guest::attach(libvirt, &pod.path("serial.sock")).unwrap();
    let log = || fs::read_to_string(pod.path("passt.log")).unwrap();
    assert!(log().contains("the guest's link"), "it is netd: {}", log());
    scenario::everything_works(&mut guest, &pod);

    let first = running(&pod, None);
    kill(first, Signal::SIGKILL).unwrap();
    running(&pod, Some(first));
    for address in pod.net.client_addresses() {
        guest.ping(address).unwrap();
    }

    // Without a frontend it is of no use.
    guest.shut_down().unwrap();
    until("the end of passt", LIMIT, || Ok(pod.pids("passt")?.is_empty().then_some(()))).unwrap();
}

#[test]
fn libvirt_tells_why_netd_does_not_start_as_passt() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let ports = "<portForward proto='tcp' address='10.9.0.2'><range start='8001'/></portForward>";
    let mut libvirt = start(&pod, &passt(ports));
    assert_eq!(libvirt.wait(LIMIT).unwrap().code(), Some(1));
    let log = libvirt.log();
    assert!(log.contains("--tcp-ports: '10.9.0.2/8001' is not allowed"), "{log}");
}
