//! The frontend's side of a handover: the connection at rest, packed, set up again, and gone on with.
//!
//! The connection in service is shared between the thread that serves it and the thread that hands it over: one message is
//! carried under the lock of [`Mover`], and a handover holds that lock for as long as it lasts. So the connection is
//! always between two messages when it moves, and what the frontend sends meanwhile waits in the socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podvirt_proto::hold;

use super::RingSink;
use super::filter::Action;
use super::message::{Message, code};
use super::record::Record;
use super::serve::{Joined, Live};
use crate::ring::{DirtyLog, RingError};
use crate::state::{self, Descriptors, Missing, Named, Pack, text};

/// What may move: shared by [`super::serve`] and a handover.
#[derive(Clone, Default)]
pub struct Mover(Arc<Mutex<Shared>>);

/// What is under the lock.
#[derive(Default)]
pub(super) struct Shared {
    /// Path of the listening socket, and the socket.
    pub(super) listener: Option<(PathBuf, UnixListener)>,
    /// The connection in service.
    pub(super) live: Option<Live>,
    /// A frontend has come and is not in service yet.
    pub(super) coming: bool,
}

impl std::fmt::Debug for Mover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mover").finish_non_exhaustive()
    }
}

/// Why the frontend cannot be handed over.
#[derive(Debug, thiserror::Error)]
pub enum RestError {
    /// It is coming at this moment.
    #[error("a frontend is connecting at this moment")]
    Coming,
    /// Its daemon does not answer.
    #[error("the connection with the frontend does not come to rest")]
    Rest(#[source] io::Error),
}

/// The frontend at rest: no message is carried and no ring runs until this is dropped.
#[derive(Debug)]
pub struct AtRest<'a> {
    shared: MutexGuard<'a, Shared>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("live", &self.live.is_some()).finish_non_exhaustive()
    }
}

impl Mover {
    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the frontend to rest and stops its rings.
    ///
    /// # Errors
    /// [`RestError`]; everything goes on then.
    pub(crate) fn rest(&self) -> Result<AtRest<'_>, RestError> {
        let mut shared = self.lock();
        if shared.coming {
            return Err(RestError::Coming);
        }
        if let Some(live) = &mut shared.live {
            // The daemon must not change a ring any more once their positions are taken.
            live.come_to_rest().map_err(RestError::Rest)?;
            let positions = live.group.pause();
            live.record.set_positions(&positions);
        }
        Ok(AtRest { shared })
    }
}

type PathAndSocket = (String, state::Fd);

impl AtRest<'_> {
    /// The path of the listener, and what the frontend has set up; their descriptors into the pack.
    pub(crate) fn pack(
        &self,
        pack: &mut Pack,
    ) -> Result<(Option<PathAndSocket>, Option<state::Frontend>), hold::Error> {
        let mut named = Named::after(pack);
        let listener = self.shared.listener.as_ref().map(|(path, l)| (text(path), named.name(l.as_fd())));
        let frontend = self.shared.live.as_ref().map(|live| {
            let connection = named.name(live.front.as_fd());
            live.record.state(connection, &mut named)
        });
        pack.add(named.fds())?;
        Ok((listener, frontend))
    }
}

impl Drop for AtRest<'_> {
    fn drop(&mut self) {
        if let Some(live) = &self.shared.live {
            live.group.resume();
        }
    }
}

/// What another netd had of the frontend, ready to go on.
pub struct Taken {
    pub(super) listener: Option<UnixListener>,
    pub(super) joined: Option<Joined>,
}

impl std::fmt::Debug for Taken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taken").field("frontend", &self.joined.is_some()).finish_non_exhaustive()
    }
}

/// Why another netd's frontend cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// Something does not work.
    #[error("the frontend's connection cannot be set up again")]
    Io(#[from] io::Error),
    /// The daemon does not take what another one took.
    #[error("what the frontend has set up is not taken: {0}")]
    Refused(String),
}

/// What another netd's frontend has set up, its descriptors in hand.
pub struct Recorded {
    front: UnixStream,
    record: Record,
}

impl std::fmt::Debug for Recorded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorded").finish_non_exhaustive()
    }
}

impl Recorded {
    /// Takes the frontend's descriptors.
    ///
    /// # Errors
    /// One of them is not there.
    pub fn new(frontend: state::Frontend, fds: &mut Descriptors) -> Result<Recorded, Missing> {
        let front = UnixStream::from(fds.take(frontend.connection)?);
        Ok(Recorded { front, record: Record::from_state(frontend, fds)? })
    }
}

impl Taken {
    /// Sets the connection up again, up to the point where its rings would run.
    ///
    /// # Errors
    /// [`TakeError`].
    pub fn new(
        listener: Option<OwnedFd>,
        frontend: Option<Recorded>,
        sink: &Arc<dyn RingSink>,
        pairs: usize,
    ) -> Result<Taken, TakeError> {
        let listener = listener.map(UnixListener::from);
        let Some(Recorded { front, record }) = frontend else { return Ok(Taken { listener, joined: None }) };
        let messages = record.replay()?;
        let mut joined = Joined::new(front, sink, pairs)?;
        joined.live.record = record;
        for message in messages {
            joined.live.set_up(message)?;
        }
        // The daemon answers in turn: with this answer all that was before it was taken.
        joined.live.set_up(Message::request(code::GET_FEATURES, Vec::new()))?;
        Ok(Taken { listener, joined: Some(joined) })
    }
}

impl Live {
    /// Carries one message to the daemon as if the frontend had sent it; the frontend hears nothing of it.
    fn set_up(&mut self, message: Message) -> Result<(), TakeError> {
        let number = message.code;
        for action in self.filter.handle(message) {
            match action {
                Action::Forward(message) => {
                    let owes = self.filter.expects_reply(&message);
                    super::channel::send(&self.inner, &message)?;
                    if owes && super::channel::recv(&self.inner)?.is_none() {
                        return Err(TakeError::Refused(format!("message {number}")));
                    }
                }
                Action::Reply(_) | Action::Reset | Action::Transfer { .. } | Action::Checked => {}
                Action::BadRing(index) => self.group.bad_ring(index),
                Action::Log { file, offset, len } => {
                    let refused = |e: RingError| TakeError::Refused(e.to_string());
                    let log = DirtyLog::new(file, offset, len).map_err(refused)?;
                    self.group.set_log(log).map_err(refused)?;
                }
            }
        }
        Ok(())
    }
}
