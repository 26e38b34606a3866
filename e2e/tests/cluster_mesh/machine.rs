//! A machine in a mesh, and what is asked of it.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podvirt_e2e::Console;
use podvirt_e2e::cluster::mesh::{Layout, Sidecar};
pub(crate) use podvirt_e2e::cluster::talk::{GREETER, host};
use podvirt_e2e::cluster::{BOOT, Binding, Cluster, Manifest, Namespace, Running, SOON, talk};

/// A command in the guest.
pub(crate) const COMMAND: Duration = Duration::from_secs(30);
/// A connection and its answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Ports of the guest: a web server, the tiny guest's greeter, which waits for a line, and what is like an SSH server.
pub(crate) const WEB: u16 = 8080;
pub(crate) const SSH: u16 = 22;
/// A port of UDP on which the guest echoes.
pub(crate) const ECHO: u16 = 5353;

/// cloud-init that starts a web server.
pub(crate) const SERVE: &str = "#cloud-config\nruncmd:\n- mkdir /tmp/www; echo yes >/tmp/www/live\n- httpd -p 8080 -h /tmp/www\n- httpd -p 8081 -h /tmp/www\n";

/// The cluster, with the image of the proxy in its nodes.
pub(crate) fn cluster() -> Cluster {
    Cluster::get_with_mesh().unwrap()
}

/// A machine.
pub(crate) struct Machine<'n> {
    pub(crate) namespace: &'n Namespace<'n>,
    pub(crate) pod: Pod,
    pub(crate) addresses: Vec<IpAddr>,
    /// Where this process is for it, IPv4 and IPv6.
    pub(crate) here: [IpAddr; 2],
    // In this order: the console ends with the program.
    console: Console,
    _running: Running,
}

impl<'n> Machine<'n> {
    /// Starts one whose guest serves at all of the ports above.
    pub(crate) fn start(
        namespace: &'n Namespace<'n>,
        binding: Binding,
        manifest: &Manifest<'_>,
    ) -> Machine<'n> {
        binding.apply(namespace, &Manifest { user_data: SERVE, ..manifest.clone() }, "").unwrap();
        namespace.wait_phase(manifest.name, "Running", BOOT).unwrap();
        let (mut console, running) = namespace.shell(manifest.name).unwrap();
        for family in ["TCP4-LISTEN:22", "TCP6-LISTEN:22,ipv6only"] {
            let serve = format!(
                "socat {family},fork,reuseaddr SYSTEM:'echo GUEST-HELLO to $SOCAT_PEERADDR; cat' 2>/dev/null &"
            );
            console.sh(&serve, COMMAND).unwrap();
        }
        console.sh(&format!("socat UDP6-RECVFROM:{ECHO},fork PIPE &"), COMMAND).unwrap();
        let pod = namespace.launcher(manifest.name).unwrap();
        let addresses = addresses(&pod);
        Machine { namespace, pod, addresses, here: own(), console, _running: running }
    }

    /// A command in the guest.
    pub(crate) fn sh(&mut self, command: &str) -> Result<String> {
        self.console.sh(command, COMMAND)
    }

    /// Its pod, and its addresses, after it has moved.
    pub(crate) fn look_again(&mut self, name: &str) {
        self.pod = self.namespace.launcher(name).unwrap();
        self.addresses = addresses(&self.pod);
    }

    /// Its pod's name.
    pub(crate) fn pod(&self) -> String {
        self.pod.name_any()
    }

    /// Its proxy.
    pub(crate) fn sidecar(&self, container: &'static str, layout: Layout) -> Sidecar<'n> {
        Sidecar::of(self.namespace, &self.pod(), container, layout)
    }

    /// Waits until the guest's web server answers at all of the machine's addresses.
    pub(crate) fn is_served(&self) {
        for &address in &self.addresses {
            self.namespace
                .until(&format!("a page of {address}"), SOON, || {
                    Ok(get(address, WEB, "/live").ok().filter(|page| page.contains(" 200 OK")))
                })
                .unwrap();
        }
    }

    /// What the guest's own client says of a web page.
    pub(crate) fn fetch(&mut self, url: &str) -> String {
        self.sh(&format!("wget -T 10 -S -O - {url} 2>&1 || true")).unwrap()
    }
}

/// A pod's, IPv4 and IPv6.
pub(crate) fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let all = pod.status.iter().flat_map(|s| s.pod_ips.iter().flatten());
    let all: Vec<IpAddr> = all.map(|a| a.ip.parse().unwrap()).collect();
    assert_eq!(all.len(), 2, "{all:?}");
    all
}

/// A page with its head.
pub(crate) fn get(address: IpAddr, port: u16, path: &str) -> Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\r\n");
    let mut stream = connect(address, port)?;
    stream.write_all(request.as_bytes())?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page)?;
    ensure!(!page.is_empty(), "an end without a word");
    Ok(String::from_utf8_lossy(&page).into_owned())
}

pub(crate) fn connect(address: IpAddr, port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::new(address, port), ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    Ok(stream)
}

/// A connection to one of the guest's greeters, and whom the guest takes the client for. The client speaks first: what is
/// of no known protocol is held until it has.
pub(crate) fn greeted(address: IpAddr, port: u16) -> Result<(TcpStream, IpAddr)> {
    let mut stream = connect(address, port)?;
    stream.write_all(b"a line that is of no protocol\n")?;
    let said = line(&mut stream)?;
    let peer = said.strip_prefix("GUEST-HELLO to ").with_context(|| said.clone())?;
    // Its echo of what was said before.
    ensure!(line(&mut stream)? == "a line that is of no protocol", "another line");
    let peer: IpAddr = peer.trim_matches(['[', ']']).parse().with_context(|| said.clone())?;
    Ok((stream, peer))
}

/// A datagram to the guest comes back.
pub(crate) fn echo(address: IpAddr) -> Result<()> {
    talk::echo(address, ECHO)
}

/// A line that comes, without its end.
pub(crate) fn line(stream: &mut TcpStream) -> Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while byte != *b"\n" {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8(line)?.trim_end().to_owned())
}

/// It goes on.
pub(crate) fn echoes(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"still there?\n")?;
    let back = line(stream)?;
    ensure!(back == "still there?", "{back}");
    Ok(())
}

/// The test's own addresses, IPv4 and IPv6: those of the control plane.
pub(crate) fn own() -> [IpAddr; 2] {
    ["192.168.77.100".parse().unwrap(), "fd00:77::100".parse().unwrap()]
}

/// A connection that the guest opens to this process, from where it comes, and what it says.
pub(crate) fn from_guest(machine: &mut Machine<'_>, here: IpAddr) -> (IpAddr, String) {
    let listener = TcpListener::bind((here, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    machine
        .sh(&format!("echo a line of the guest | socat -u - TCP:{}:{port},connect-timeout=10", host(here)))
        .unwrap();
    let (mut stream, peer) = listener.accept().unwrap();
    stream.set_read_timeout(Some(ANSWER)).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    drop(stream.shutdown(Shutdown::Both));
    (peer.ip(), said.trim_end().to_owned())
}

/// A datagram that the guest sends to this process, and from where it comes.
pub(crate) fn datagram_from_guest(machine: &mut Machine<'_>, here: IpAddr) -> IpAddr {
    let socket = UdpSocket::bind((here, 0)).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let port = socket.local_addr().unwrap().port();
    machine.sh(&format!("echo a datagram | socat -u - UDP:{}:{port}", host(here))).unwrap();
    let mut text = [0; 64];
    let (size, from) = socket.recv_from(&mut text).unwrap();
    assert_eq!(&text[..size], b"a datagram\n");
    from.ip()
}
