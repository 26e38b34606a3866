//! The API server of the test: [`Server`] behind HTTP, and the death of a process that asks, at the request that was
//! chosen.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::Server;

/// When a process dies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Death {
    /// As its request of this number arrives: it is not carried out.
    Before(u32),
    /// After its request of this number was carried out, without an answer.
    Unanswered(u32),
    /// So long after its request of this number was answered: somewhere in what it does next.
    After(u32, Duration),
}

/// A process that asks.
#[derive(Default)]
struct Client {
    pid: Option<u32>,
    death: Option<Death>,
    requests: u32,
}

/// The server; clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Api(Arc<Inner>);

#[derive(Default)]
struct Inner {
    server: Mutex<Server>,
    clients: Mutex<HashMap<String, Client>>,
    known: Condvar,
}

impl Api {
    /// Serves on the loopback of the calling thread's network namespace.
    pub(crate) fn serve(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let api = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let api = api.clone();
                // A client that died has said enough.
                std::thread::spawn(move || api.client(&stream));
            }
        });
        address
    }

    /// Looks at the objects or changes them.
    pub(crate) fn objects<T>(&self, work: impl FnOnce(&mut Server) -> T) -> T {
        work(&mut self.0.server.lock().unwrap())
    }

    /// Says which process has `token`, and when it dies.
    pub(crate) fn expect(&self, token: &str, pid: u32, death: Option<Death>) {
        let client = Client { pid: Some(pid), death, requests: 0 };
        self.0.clients.lock().unwrap_or_else(PoisonError::into_inner).insert(token.to_owned(), client);
        self.0.known.notify_all();
    }

    /// The number of this request of `token`'s process, the process, and when it dies.
    fn counted(&self, token: &str) -> (u32, u32, Option<Death>) {
        let clients = self.0.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // It may ask before it is known which one it is.
        let unknown = |all: &mut HashMap<String, Client>| all.get(token).is_none_or(|c| c.pid.is_none());
        let mut clients = self.0.known.wait_while(clients, unknown).unwrap_or_else(PoisonError::into_inner);
        let client = clients.get_mut(token).unwrap();
        client.requests += 1;
        (client.requests, client.pid.unwrap(), client.death)
    }

    fn client(&self, mut stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let mut words = line.split_whitespace();
            let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
            let (mut length, mut token) = (0, String::new());
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).ok()?;
                let Some((name, value)) = line.trim_end().split_once(": ") else { break };
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => length = value.parse().ok()?,
                    "authorization" => token = value.strip_prefix("Bearer ")?.to_owned(),
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let (number, pid, death) = self.counted(&token);
            if matches!(death, Some(Death::Before(at)) if at == number) {
                return kill(pid);
            }
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let (code, value) = self.objects(|server| server.answer(&method, path, query, &body));
            if matches!(death, Some(Death::Unanswered(at)) if at == number) {
                return kill(pid);
            }
            let text = value.to_string();
            let head = format!(
                "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                text.len()
            );
            stream.write_all(format!("{head}{text}").as_bytes()).ok()?;
            if let Some(Death::After(at, pause)) = death
                && at == number
            {
                std::thread::sleep(pause);
                return kill(pid);
            }
        }
    }
}

/// Ends a process of this test as a power cut does. It has not been waited for: the number is still its own, or no
/// process's.
fn kill(pid: u32) -> Option<()> {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
    // It may have ended by itself.
    let _ended = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    None
}

/// What the garbage collector does: asks for the deletion of leases whose owner is gone.
pub(crate) fn collect_garbage(server: &mut Server) {
    let uids: Vec<Value> = server.objects.values().map(|o| o["metadata"]["uid"].clone()).collect();
    let orphan = |object: &Value| {
        let mut owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        object["kind"] == "AddressLease" && !owners.any(|owner| uids.contains(&owner["uid"]))
    };
    let orphans: Vec<String> =
        server.objects.iter().filter(|(_, object)| orphan(object)).map(|(path, _)| path.clone()).collect();
    for path in orphans {
        server.answer("DELETE", &path, "", &json!({}));
    }
}
