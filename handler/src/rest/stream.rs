//! Serial console and screen: a WebSocket on one side, QEMU's socket in the pod on the other.
//!
//! Bytes go through one buffer a direction: an end that reads slowly makes the other end wait, the guest for as long as
//! a client that is there does not read. Either end closing closes the other. One client at a time is connected to a
//! console: a second client takes it over, as with upstream, since a forgotten window must not lock out the person at
//! the machine. virt-handler closes the first client's connection without a WebSocket Close frame then: upstream's
//! virtctl tells its user that the connection was lost only if there was no Close frame.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use futures::{Sink, SinkExt, Stream, StreamExt};
use podvirt_api::names::{path, pod};
use podvirt_api::v1::VirtualMachineInstancePhase as Phase;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tracing::Instrument as _;

use super::{Failure, Server};

/// What virtctl asks for: bytes as they are, in binary frames.
const PROTOCOL: &str = "plain.kubevirt.io";
/// Bytes that wait in each direction at most, beside the kernel's.
const BUFFER: usize = 16 << 10;
/// Largest frame that is taken from a client: a clipboard pasted into a console.
const FRAME_MAX: usize = 1 << 20;
/// Longest time that the machine may take no input.
const INPUT_STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a client to hear of the end.
const FAREWELL: Duration = Duration::from_secs(5);

/// Which clients use which consoles and screens, by VMI and socket. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Seats(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    taken: Mutex<HashMap<Seat, (u64, oneshot::Sender<()>)>>,
    next: AtomicU64,
}

type Seat = (String, &'static str);

/// A taken seat. It is free when this is dropped.
#[derive(Debug)]
pub(super) struct Sitting {
    seats: Seats,
    seat: Seat,
    number: u64,
}

impl Seats {
    /// Takes a seat, and from the client that sits there unless that is to be preserved: `None` then. The future is done when
    /// another client takes it.
    pub(super) fn take(
        &self,
        uid: &str,
        socket: &'static str,
        preserve: bool,
    ) -> Option<(Sitting, oneshot::Receiver<()>)> {
        let (leave, left) = oneshot::channel();
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let seat = (uid.to_owned(), socket);
        let mut taken = self.lock();
        if preserve && taken.contains_key(&seat) {
            return None;
        }
        // Dropping the other's sender tells the other.
        taken.insert(seat.clone(), (number, leave));
        Some((Sitting { seats: self.clone(), seat, number }, left))
    }

    /// Whether a client sits there.
    fn is_taken(&self, uid: &str, socket: &'static str) -> bool {
        self.lock().contains_key(&(uid.to_owned(), socket))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Seat, (u64, oneshot::Sender<()>)>> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Sitting {
    fn drop(&mut self) {
        let mut taken = self.seats.lock();
        if taken.get(&self.seat).is_some_and(|(number, _)| *number == self.number) {
            taken.remove(&self.seat);
        }
    }
}

pub(super) async fn console(
    State(server): State<Server>,
    Path(name): Path<(String, String)>,
    Query(wish): Query<Wish>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Failure> {
    let place = Place { socket: path::SERIAL_SOCKET, what: "serial console" };
    connect(server, name, place, &wish, upgrade).await
}

pub(super) async fn vnc(
    State(server): State<Server>,
    Path(name): Path<(String, String)>,
    Query(wish): Query<Wish>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Failure> {
    let place = Place { socket: path::VNC_SOCKET, what: "graphics device" };
    connect(server, name, place, &wish, upgrade).await
}

/// What a client can wish for.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Wish {
    /// Not to take the place from the client that has it.
    preserve_session: bool,
}

/// One of a machine's sockets for people.
struct Place {
    socket: &'static str,
    what: &'static str,
}

async fn connect(
    server: Server,
    (namespace, name): (String, String),
    Place { socket, what }: Place,
    wish: &Wish,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Failure> {
    let (vmi, pod_uid) = server.find(&namespace, &name)?;
    let phase = vmi.status.phase.clone().unwrap_or_default();
    if phase != Phase::Running {
        // The words by which a client that waits for the machine knows that it may go on waiting.
        let message = format!("the machine cannot be reached because phase is {phase} instead of Running");
        return Err(Failure::bad_request(message));
    }
    let uid = vmi.metadata.uid.clone().unwrap_or_default();
    if wish.preserve_session && server.seats.is_taken(&uid, socket) {
        return Err(Failure::conflict(format!("the {what} is in use")));
    }
    let dialled = match server.volumes.dir(&pod_uid, pod::volume::PRIVATE, &uid) {
        Ok(dir) => dir.connect(socket).await,
        Err(error) => Err(error),
    };
    let machine = dialled.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::conflict(format!("VMI is not running or has no {what}")),
        io::ErrorKind::ConnectionRefused => super::not_running(),
        _ => Failure::internal(format!("the {what} cannot be reached: {error}")),
    })?;
    // A client that asks to preserve may have been overtaken since.
    let (sitting, left) = server
        .seats
        .take(&uid, socket, wish.preserve_session)
        .ok_or_else(|| Failure::conflict(format!("the {what} is in use")))?;
    let span = tracing::info_span!("stream", namespace, vmi = name, uid, socket);
    let upgrade = upgrade.protocols([PROTOCOL]).max_message_size(FRAME_MAX).max_frame_size(FRAME_MAX);
    Ok(upgrade.on_upgrade(move |client| {
        async move {
            tracing::info!("a user is connected");
            splice(client, machine, left).await;
            drop(sitting);
            tracing::info!("the user is gone");
        }
        .instrument(span)
    }))
}

/// Carries bytes until one end closes or the seat is taken.
async fn splice(client: WebSocket, machine: UnixStream, left: oneshot::Receiver<()>) {
    let (mut to_client, from_client) = client.split();
    let (from_machine, to_machine) = machine.into_split();
    let close = tokio::select! {
        close = up(from_client, to_machine) => close,
        () = down(from_machine, &mut to_client) => (close_code::NORMAL, "the machine closed the connection"),
        _ = left => return tracing::info!("another user has taken over"),
    };
    farewell(&mut to_client, close).await;
}

/// Code and reason of a WebSocket's Close frame.
type Close = (u16, &'static str);

async fn up(
    mut client: impl Stream<Item = Result<Message, axum::Error>> + Unpin,
    mut machine: impl tokio::io::AsyncWrite + Unpin,
) -> Close {
    const CLIENT_CLOSED: Close = (close_code::NORMAL, "");
    while let Some(Ok(message)) = client.next().await {
        let mut bytes = match &message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.as_bytes(),
            // Answered by the library.
            Message::Ping(_) | Message::Pong(_) => continue,
            Message::Close(_) => return CLIENT_CLOSED,
        };
        while !bytes.is_empty() {
            // While it waits here the client's farewell is not heard.
            match tokio::time::timeout(INPUT_STALL_TIMEOUT, machine.write(bytes)).await {
                Ok(Ok(length @ 1..)) => bytes = &bytes[length..],
                Ok(Ok(0) | Err(_)) => return (close_code::NORMAL, "the machine closed the connection"),
                Err(_) => {
                    tracing::info!("the machine takes no input");
                    return (close_code::ERROR, "the machine takes no input");
                }
            }
        }
    }
    CLIENT_CLOSED
}

/// A client that does not read keeps the guest waiting: it may be a person who looks at a part of the output. One that is gone ends
/// its connection, or the kernel does.
async fn down(
    mut machine: impl tokio::io::AsyncRead + Unpin,
    client: &mut (impl Sink<Message, Error = axum::Error> + Unpin),
) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(length @ 1..) = machine.read(&mut buffer).await {
        if client.send(Message::Binary(buffer[..length].to_vec().into())).await.is_err() {
            return;
        }
    }
}

async fn farewell(client: &mut (impl Sink<Message, Error = axum::Error> + Unpin), (code, why): Close) {
    let frame = CloseFrame { code, reason: why.into() };
    // A client that does not listen any more has nothing to hear.
    let _gone = tokio::time::timeout(FAREWELL, client.send(Message::Close(Some(frame)))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_taken_over_unless_it_is_to_be_preserved() {
        let seats = Seats::default();
        let take = |preserve| seats.take("vmi-1", "serial", preserve);
        let (first, mut first_left) = take(true).unwrap();
        assert!(take(true).is_none());
        assert_eq!(first_left.try_recv(), Err(oneshot::error::TryRecvError::Empty), "it still sits there");
        let (second, _left) = take(false).unwrap();
        assert_eq!(first_left.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        drop(first);
        assert!(take(true).is_none(), "the second client has the seat");
        drop(second);
        assert!(take(true).is_some());
    }
    #[tokio::test(start_paused = true)]
    async fn a_guest_waits_for_a_client_that_does_not_read_and_no_byte_is_lost() {
        let (mut guest, machine) = tokio::io::duplex(BUFFER);
        let (client, mut read) = futures::channel::mpsc::channel::<Message>(0);
        let mut client = client.sink_map_err(axum::Error::new);
        let carried = tokio::spawn(async move { down(machine, &mut client).await });
        let written = tokio::spawn(async move {
            for part in 0..64_u8 {
                guest.write_all(&[part; BUFFER]).await.unwrap();
            }
        });
        tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
        assert!(!carried.is_finished() && !written.is_finished());
        let mut all = Vec::new();
        while let Some(message) = read.next().await {
            all.extend(message.into_data());
        }
        let expected: Vec<u8> = (0..64_u8).flat_map(|part| [part; BUFFER]).collect();
        assert!(all == expected, "{} bytes", all.len());
        carried.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_takes_no_input_is_told_as_the_reason() {
        let (machine, _guest) = tokio::io::duplex(1);
        let client = futures::stream::iter([Ok(Message::Binary(vec![0; 2].into()))]);
        assert_eq!(up(client, machine).await, (close_code::ERROR, "the machine takes no input"));
    }
}
