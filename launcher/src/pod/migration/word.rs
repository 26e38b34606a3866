//! The word by which a machine runs at one end of a move only.
//!
//! libvirt lets a machine run at the target once it is complete there, and tells the source afterwards; when that answer
//! is lost, the source lets it run as well. So the machine is moved held, and runs at the target by the source's word:
//!
//! ```text
//!   source                                             target
//!   hello ───────────────────────────────────────────>
//!         <─────────────────────────────────────────── hello       a held machine is not here from now on
//!   disk … ──────────────────────────────────────────>             for each volume that moves to another claim
//!         <─────────────────────────────────────────── disk        it has the disk's size there
//!   the move: memory, state; the guest stands still     complete, and held
//!         <─────────────────────────────────────────── ready
//!   stands still here? its hypervisor is killed
//!   run ─────────────────────────────────────────────> runs
//! ```
//!
//! Before `ready` has come, whatever breaks makes the move fail at the source, and the machine goes on there; the target
//! holds it until it is told to end. With its hypervisor killed the source cannot have it again, and says so by two ways:
//! here, and in its report, from which virt-handler writes that the machine is the target's; the target's virt-handler
//! finalizes then, which gives the word as well. A source that misses `ready` gives its word when libvirt says that the
//! machine has moved. That the machine stands still is asked for right before the kill: libvirt, which lets it run
//! again when it has lost its own connection, does so half a minute later than anything here takes.
//!
//! A target that does not answer the greeting knows of no word, and the machine is moved as libvirt does it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podvirt_api::error::chain;
use podvirt_api::names::path;
use podvirt_proto::domain::Status;
use podvirt_proto::migration::word::{DISK, HELLO, PAUSED, READY, REFUSED, RUN, SOCKET};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines, Take};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};
use tracing::{Instrument, info, warn};

use super::super::shared::Shared;
use super::moved::{self, MovedError};
use crate::life::machine::Word;
use crate::rundir;

/// How long the other launcher may take to greet: two handshakes between the nodes, and its own thread.
const GREETING: Duration = Duration::from_secs(20);
/// How long a machine may take to be complete after the source has said that it has left, and to run then.
const COMPLETE: Duration = Duration::from_secs(10);
/// All that either end ever says is shorter.
const MOST: u64 = 32 * 1024;

/// Why the word is not taken, or cannot be given.
#[derive(Debug, thiserror::Error)]
pub(in crate::pod) enum WordError {
    /// The machine has not come.
    #[error("the machine that has come is not complete")]
    Incomplete,
    /// The machine has come, and stands still.
    #[error("the machine that has come does not run")]
    Stands,
    /// The target's launcher greets otherwise.
    #[error("the target's launcher says '{0}'; '{hello}' is expected", hello = HELLO)]
    Greeting(String),
    /// The target's launcher is silent.
    #[error("the target's launcher did not answer within {} s", GREETING.as_secs())]
    Silent,
    /// The target's launcher makes no room for a disk.
    #[error("volume {volume}")]
    Disk {
        /// The disk's volume.
        volume: String,
        /// Why.
        source: Refusal,
    },
}

/// Why the target's launcher makes no room for a disk.
#[derive(Debug, thiserror::Error)]
pub(in crate::pod) enum Refusal {
    /// In its own words.
    #[error("the target's launcher has no room for it: {0}")]
    NoRoom(String),
    /// It says what is not understood.
    #[error("the target's launcher says '{0}'")]
    Strange(String),
    /// It does not know of such disks.
    #[error("the target's launcher is of a release that takes no volume to another claim")]
    Release,
    /// It is not reached any more.
    #[error("the target's launcher cannot be asked")]
    Lost(#[source] io::Error),
    /// It is silent.
    #[error("the target's launcher did not answer within {} s", GREETING.as_secs())]
    Silent,
}

/// A conversation.
#[derive(Debug)]
struct Talk {
    lines: Lines<BufReader<Take<OwnedReadHalf>>>,
    write: OwnedWriteHalf,
}

impl Talk {
    fn new(stream: UnixStream) -> Talk {
        let (read, write) = stream.into_split();
        Talk { lines: BufReader::new(read.take(MOST)).lines(), write }
    }

    async fn say(&mut self, line: &str) -> io::Result<()> {
        self.write.write_all(format!("{line}\n").as_bytes()).await
    }

    /// What is said next; none when the other end is gone. Nothing is lost when this is given up.
    async fn hear(&mut self) -> io::Result<Option<String>> {
        self.lines.next_line().await
    }
}

fn unexpected(line: Option<String>) -> io::Error {
    match line {
        Some(line) => {
            io::Error::new(io::ErrorKind::InvalidData, format!("'{line}' is nothing to be said here"))
        }
        None => io::ErrorKind::UnexpectedEof.into(),
    }
}

/// Listens at the target for the launcher that gives the word.
///
/// # Errors
///
/// The pod's directory does not take the socket.
pub(in crate::pod) fn listen() -> io::Result<UnixListener> {
    let socket = Path::new(path::PUBLIC).join(SOCKET);
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(&socket),
    }
}

/// Takes the word at the target, until the machine is here; the target does not listen afterwards, and the socket is gone.
pub(in crate::pod) async fn take(shared: Arc<Shared>, listener: UnixListener) {
    let mut facts = shared.facts.subscribe();
    let mut talks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = facts.wait_for(|facts| facts.started_at.is_some()) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let shared = Arc::clone(&shared);
                let work = async move {
                    if let Err(error) = wait(&shared, Talk::new(stream)).await {
                        info!(%error, "the source's word has not come this way");
                    }
                };
                talks.spawn(work.in_current_span());
            }
            Err(error) => {
                warn!(%error, "the source cannot give its word");
                sleep(Duration::from_millis(100)).await;
            }
        }
        while talks.try_join_next().is_some() {}
    }
    if let Ok(address) = listener.local_addr()
        && let Some(socket) = address.as_pathname()
    {
        // A launcher that connects by it meets no listener, whether the file is there or not.
        let _gone = std::fs::remove_file(socket);
    }
    drop(listener);
    // Those that have spoken are heard.
    while talks.join_next().await.is_some() {}
}

/// The target's end of a conversation.
async fn wait(shared: &Arc<Shared>, mut talk: Talk) -> io::Result<()> {
    match talk.hear().await? {
        Some(line) if line == HELLO => {}
        other => return Err(unexpected(other)),
    }
    shared.word.send_if_modified(|word| {
        let first = *word == Word::None;
        if first {
            *word = Word::Awaited;
        }
        first
    });
    talk.say(HELLO).await?;
    let early = loop {
        let line = tokio::select! {
            () = held(shared) => break None,
            line = talk.hear() => line?,
        };
        match line {
            Some(line) if line.starts_with(DISK) => {
                let expected = shared.moved.borrow().clone();
                let here = Arc::clone(shared);
                let ready = spawn_blocking(move || moved::make_ready(&line, &expected, &here.held)).await;
                let ready = ready.map_err(io::Error::other)?;
                // It is one line, whatever the reason is.
                let refused = |error: MovedError| format!("{REFUSED} {}", chain(&error).replace('\n', " "));
                talk.say(&ready.map_or_else(refused, |()| DISK.to_owned())).await?;
            }
            // libvirt has told the source already.
            line => break Some(word_of(line)?),
        }
    };
    let run = match early {
        Some(run) => run,
        None => {
            // A source that cannot be told may have given its word a moment before.
            let _told = talk.say(READY).await;
            word_of(talk.hear().await?)?
        }
    };
    info!(run, "the source has given its word");
    held(shared).await;
    let_go(shared, run).await;
    Ok(())
}

/// Whether the machine is to run.
fn word_of(line: Option<String>) -> io::Result<bool> {
    match line.as_deref() {
        Some(RUN) => Ok(true),
        Some(PAUSED) => Ok(false),
        _ => Err(unexpected(line)),
    }
}

/// Until the machine is complete here, and held.
async fn held(shared: &Shared) {
    if shared.view.subscribe().wait_for(|view| view.held).await.is_err() {
        // The life is over, and the launcher with it.
        std::future::pending::<()>().await;
    }
}

/// The machine is this launcher's.
async fn let_go(shared: &Shared, run: bool) {
    if run && let Err(error) = shared.call(|hypervisor| hypervisor.resume()).await {
        // It is here all the same, and its report says that it is paused.
        warn!(%error, "the machine that has come does not run");
    }
    shared.word.send_replace(Word::Taken);
}

/// Takes the word from virt-handler, if the machine waits for it, and waits until it is here.
///
/// # Errors
///
/// The machine is not complete, or does not run.
pub(super) async fn from_handler(shared: &Shared, run: bool) -> Result<(), WordError> {
    if *shared.word.borrow() == Word::Awaited {
        info!(run, "virt-handler has the source's word");
        timeout(COMPLETE, held(shared)).await.map_err(|_| WordError::Incomplete)?;
        let_go(shared, run).await;
    }
    let mut facts = shared.facts.subscribe();
    let runs = timeout(COMPLETE, facts.wait_for(|facts| facts.started_at.is_some())).await;
    if matches!(runs, Ok(Ok(_))) { Ok(()) } else { Err(WordError::Stands) }
}

/// The source's end of a conversation, before anything moves.
#[derive(Debug)]
pub(super) struct Promise {
    talk: Talk,
}

/// Promises the target, by way of `socket`, to give it the word; none when it knows of none.
///
/// # Errors
///
/// It is there and does not answer as it should.
pub(super) async fn promise(socket: &Path) -> Result<Option<Promise>, WordError> {
    let greet = async {
        let mut talk = Talk::new(UnixStream::connect(socket).await?);
        talk.say(HELLO).await?;
        let heard = talk.hear().await?;
        Ok::<_, io::Error>((talk, heard))
    };
    match timeout(GREETING, greet).await {
        Ok(Ok((talk, Some(line)))) if line == HELLO => Ok(Some(Promise { talk })),
        Ok(Ok((_, Some(line)))) => Err(WordError::Greeting(line)),
        // The virt-handlers, or the other launcher, are of a version that has no such socket.
        Ok(Ok((_, None)) | Err(_)) => Ok(None),
        Err(_) => Err(WordError::Silent),
    }
}

impl Promise {
    /// Has the target make room for a disk of `bytes` that moves to another claim.
    ///
    /// # Errors
    ///
    /// It cannot, or does not answer.
    pub(super) async fn disk(&mut self, volume: &str, bytes: u64) -> Result<(), WordError> {
        let ask = async {
            self.talk.say(&moved::line(volume, bytes)).await?;
            self.talk.hear().await
        };
        let source = match timeout(GREETING, ask).await {
            Ok(Ok(Some(line))) if line == DISK => return Ok(()),
            Ok(Ok(Some(line))) => match line.strip_prefix(REFUSED) {
                Some(why) => Refusal::NoRoom(why.trim_start().to_owned()),
                None => Refusal::Strange(line),
            },
            Ok(Ok(None)) => Refusal::Release,
            Ok(Err(error)) => Refusal::Lost(error),
            Err(_) => Refusal::Silent,
        };
        Err(WordError::Disk { volume: volume.to_owned(), source })
    }
}

/// A promise that is kept by a task of its own, which goes on until the target has heard.
#[derive(Debug)]
pub(super) struct Giver {
    task: JoinHandle<()>,
    moved: oneshot::Sender<()>,
}

impl Promise {
    /// Gives the word when the target has all of the machine, whose run directory is `runtime`; `run`: whether it is to run
    /// there.
    pub(super) fn keep(self, shared: Arc<Shared>, runtime: PathBuf, run: bool) -> Giver {
        let (moved, has_moved) = oneshot::channel();
        let mut talk = self.talk;
        let work = async move {
            if let Err(error) = give(&shared, &runtime, &mut talk, has_moved, run).await {
                // virt-handler says it.
                info!(%error, "the target has not heard the word this way");
            }
        };
        Giver { task: tokio::spawn(work.in_current_span()), moved }
    }
}

impl Giver {
    /// The hypervisor's move has come back; tells whether the machine is the target's, whatever that said.
    pub(super) async fn end(self, shared: &Shared, moved: bool) -> bool {
        if moved {
            // A source that has given its word hears this no more.
            let _given = self.moved.send(());
            return true;
        }
        if *shared.word.borrow() != Word::Given {
            self.task.abort();
            let _aborted = self.task.await;
        }
        *shared.word.borrow() == Word::Given
    }
}

async fn give(
    shared: &Shared,
    runtime: &Path,
    talk: &mut Talk,
    mut moved: oneshot::Receiver<()>,
    run: bool,
) -> io::Result<()> {
    let word = if run { RUN } else { PAUSED };
    let ready = tokio::select! {
        line = talk.hear() => match line? {
            Some(line) if line == READY => true,
            other => return Err(unexpected(other)),
        },
        result = &mut moved => match result {
            Ok(()) => false,
            Err(_) => return Ok(()),
        },
    };
    if ready && !leave(shared, runtime).await {
        // libvirt decides, and says so.
        match moved.await {
            Ok(()) => {}
            Err(_) => return Ok(()),
        }
    }
    talk.say(word).await?;
    // The way between the nodes may lose what an end has said that closes before the other does.
    while talk.hear().await?.is_some() {}
    Ok(())
}

/// Makes sure that the machine does not run here again, and tells so. False when it may.
async fn leave(shared: &Shared, runtime: &Path) -> bool {
    let stands = shared.call(|hypervisor| hypervisor.status()).await.map(|status| status.status);
    if stands != Ok(Status::Paused) {
        warn!(?stands, "the machine does not stand still: the target is not given it");
        return false;
    }
    // Nothing is waited for from here on: an end of this task finds the word given and the machine ended, or neither.
    if let Err(error) = rundir::end_machine(runtime) {
        warn!(%error, "the machine cannot be ended here: libvirt decides");
        return false;
    }
    shared.word.send_replace(Word::Given);
    super::left(shared);
    true
}

#[cfg(test)]
#[path = "word_tests.rs"]
mod tests;
