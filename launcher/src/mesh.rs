//! The end of a service mesh's proxy in the pod.
//!
//! A pod that is not deleted ends when its containers have ended. A proxy that a mesh has put into it as an ordinary
//! container does not end by itself: the pod would run on without a machine, and its machine would not come to an end. So
//! virt-launcher's process 1 asks the proxies that it knows to quit, when the launcher has ended, however that was. They
//! are asked on the pod's loopback, where each of them listens for this:
//!
//! | mesh | is there when it accepts at | is asked by |
//! |---|---|---|
//! | Istio | 15021, the proxy's health | `POST /quitquitquit` at 15020 |
//! | Linkerd | 4191, the proxy's administration | `POST /shutdown` at 4191, where the mesh allows it |
//!
//! A proxy that is a sidecar by Kubernetes' own understanding (an init container that restarts) is ended by the kubelet,
//! behind all containers; to be asked before does it no harm.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use tracing::{debug, info, warn};

/// For a connection and its answer, on the pod's own loopback.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A mesh's proxy.
struct Proxy {
    mesh: &'static str,
    /// Accepts where the proxy is.
    there: u16,
    /// Takes the request.
    asked: u16,
    path: &'static str,
}

const PROXIES: [Proxy; 2] = [
    Proxy { mesh: "Istio", there: 15021, asked: 15020, path: "/quitquitquit" },
    Proxy { mesh: "Linkerd", there: 4191, asked: 4191, path: "/shutdown" },
];

/// Asks the proxies that are in the pod to quit.
pub fn release() {
    for proxy in &PROXIES {
        let mesh = proxy.mesh;
        match proxy.release() {
            Ok(None) => debug!(mesh, "no proxy of this mesh is in the pod"),
            Ok(Some(status)) if status.contains(" 200 ") => {
                info!(mesh, "asked the mesh's proxy to quit");
            }
            Ok(Some(status)) => {
                warn!(mesh, status, "the mesh's proxy was asked to quit, and refuses; it may keep the pod");
            }
            Err(error) => {
                warn!(mesh, %error, "the mesh's proxy cannot be asked to quit; it may keep the pod");
            }
        }
    }
}

impl Proxy {
    /// The first line of its answer; `None`: it is not there.
    fn release(&self) -> std::io::Result<Option<String>> {
        if connect(self.there).is_err() {
            return Ok(None);
        }
        let mut stream = connect(self.asked)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let (path, port) = (self.path, self.asked);
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )?;
        // A status line is short.
        let mut line = String::new();
        BufReader::new(stream.take(512)).read_line(&mut line)?;
        Ok(Some(line.trim_end().to_owned()))
    }
}

fn connect(port: u16) -> std::io::Result<TcpStream> {
    TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), TIMEOUT)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Serves one request, after connections that only look whether it is there, and returns the request.
    fn serve(listener: TcpListener, answer: &'static str) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            loop {
                let (mut client, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let mut buffer = [0; 512];
                while !request.ends_with(b"\r\n\r\n") {
                    let size = client.read(&mut buffer).unwrap();
                    if size == 0 {
                        break;
                    }
                    request.extend_from_slice(&buffer[..size]);
                }
                if !request.is_empty() {
                    client.write_all(answer.as_bytes()).unwrap();
                    return String::from_utf8(request).unwrap();
                }
            }
        })
    }

    fn port(listener: &TcpListener) -> u16 {
        listener.local_addr().unwrap().port()
    }

    #[test]
    fn a_proxy_that_is_there_is_asked() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let there = port(&listener);
        let served = serve(listener, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let proxy = Proxy { mesh: "a test's", there, asked: there, path: "/quitquitquit" };
        assert_eq!(proxy.release().unwrap().unwrap(), "HTTP/1.1 200 OK");
        assert!(served.join().unwrap().starts_with("POST /quitquitquit HTTP/1.1\r\n"));
    }

    #[test]
    fn a_proxy_that_is_not_there_is_not() {
        // Its place is taken and given back, so that nothing listens there.
        let gone = port(&TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        other.set_nonblocking(true).unwrap();
        let proxy = Proxy { mesh: "a test's", there: gone, asked: port(&other), path: "/quitquitquit" };
        assert_eq!(proxy.release().unwrap(), None);
        assert_eq!(other.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
}
