//! Work inside a network namespace: a thread that enters it, does the work and ends.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use nix::sched::{CloneFlags, setns};
use rtnetlink::Handle;

use super::NetError;

/// Runs `work` with rtnetlink in the namespace that `file` stands for; in the caller's own without one.
///
/// # Errors
/// The namespace cannot be entered, or what `work` meets.
pub fn inside<T, F, W>(netns: Option<&File>, work: W) -> Result<T, NetError>
where
    T: Send,
    F: Future<Output = Result<T, NetError>>,
    W: FnOnce(Handle) -> F + Send,
{
    let enter = move || {
        if let Some(netns) = netns {
            setns(netns.as_fd(), CloneFlags::CLONE_NEWNET)
                .map_err(|e| NetError::io("cannot enter the network namespace", e))?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| NetError::io("cannot start a runtime", e))?;
        let result = runtime.block_on(async move {
            let (connection, handle, _) =
                rtnetlink::new_connection().map_err(|e| NetError::io("cannot open rtnetlink", e))?;
            let connection = tokio::spawn(connection);
            let result = work(handle).await;
            connection.abort();
            result
        });
        // The connection's socket goes with it.
        close_aside(runtime);
        result
    };
    let joined = std::thread::scope(|scope| scope.spawn(enter).join());
    // A panic inside goes on outside.
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Opens a namespace's file.
///
/// # Errors
/// There is none.
pub fn open(path: &Path) -> Result<File, NetError> {
    File::open(path).map_err(|e| NetError::io(format!("the network namespace {}", path.display()), e))
}

/// Drops `sockets`, or what owns sockets, on a thread of its own. When a packet socket or a netlink socket is closed, the kernel waits for all
/// processors, 10 ms and more; without this thread the caller would wait, and a machine that has just arrived would be silent for as long.
pub(super) fn close_aside<S: Send + 'static>(sockets: S) {
    // If the kernel has no thread to give, the closure is dropped here, and the sockets with it.
    let _ = std::thread::Builder::new().name("close".into()).spawn(move || drop(sockets));
}
