//! Keeping the link current.
//!
//! Netlink's multicast groups and inotify only say *that* something changed; what it is now is read anew, once
//! the changes have settled for [`QUIET`] or have gone on for [`CHANGING_AT_MOST`]. In between the watcher reads
//! everything every [`POLL`]: a resolv.conf can be replaced behind a bind mount where no watch sees it, and
//! netlink drops messages when they come too fast.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{PodError, ResolvConf, build_link, netlink};
use crate::config::Config;
use crate::net::Link;

/// Changes come in groups (an address, its routes); nothing new for so long ends the group.
const QUIET: Duration = Duration::from_millis(200);
/// A link that keeps changing is read this often.
const CHANGING_AT_MOST: Duration = Duration::from_secs(1);
/// How often everything is read though nothing seems to have changed.
const POLL: Duration = Duration::from_secs(30);

const GROUPS: &[MulticastGroup] = &[
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];

/// Calls `push` with every link that differs from the one before, the first of which is `link`; ends only by
/// an error or when it is dropped.
///
/// A pod that has no usable link for a while leaves the last one in force, and a resolv.conf that cannot be read the
/// resolvers and search domains that were read last.
///
/// # Errors
///
/// [`PodError::Socket`] when there is no netlink socket to begin with.
pub async fn watch(
    config: Arc<Config>,
    resolv_conf: PathBuf,
    mut link: Arc<Link>,
    mut push: impl AsyncFnMut(Arc<Link>),
) -> Result<(), PodError> {
    let (connection, handle, mut messages) = new_multicast_connection(GROUPS).map_err(PodError::Socket)?;
    let connection = AbortOnDrop(tokio::spawn(connection));
    let mut files = FileWatch::new(&resolv_conf);
    let mut last_error = None;
    let mut resolv = LastResolvConf::new(&resolv_conf);
    loop {
        // The first turn reads at once: something may have changed before the groups were joined.
        // A guest is not renumbered because its pod has got a further address.
        let present = [link.v4.as_ref().map(|l| l.pod.into()), link.v6.as_ref().map(|l| l.pod.into())];
        let present: Vec<IpAddr> = present.into_iter().flatten().collect();
        match netlink::read(&handle, config.interface.as_deref(), &present)
            .await
            .and_then(|facts| Ok(build_link(&config, &facts, resolv.read())?))
        {
            Ok(new) => {
                if last_error.take().is_some() {
                    tracing::info!("the pod has a usable link again");
                }
                if new.link != *link {
                    log_change(&link, &new.link);
                    new.log();
                    link = Arc::new(new.link);
                    push(link.clone()).await;
                }
            }
            Err(error) => {
                let text = error.to_string();
                if last_error.as_ref() != Some(&text) {
                    tracing::warn!(error = %text, "the pod has no usable link; the guest keeps the last one");
                    last_error = Some(text);
                }
            }
        }
        let poll = Instant::now() + POLL;
        if !changed(&mut messages, &mut files, poll).await {
            continue;
        }
        let give_up = Instant::now() + CHANGING_AT_MOST;
        loop {
            let quiet = (Instant::now() + QUIET).min(give_up);
            if !changed(&mut messages, &mut files, quiet).await {
                break;
            }
        }
        if connection.0.is_finished() {
            tracing::warn!("netlink's connection ended; changes are found by polling");
        }
    }
}

/// Waits for any change until `deadline`; whether there was one.
async fn changed<T>(
    messages: &mut (impl futures::Stream<Item = T> + Unpin),
    files: &mut FileWatch,
    deadline: Instant,
) -> bool {
    let message = async {
        if messages.next().await.is_none() {
            // The connection has ended: only the deadline is left.
            sleep_until(deadline + POLL).await;
        }
    };
    let either = async {
        tokio::select! {
            () = message => (),
            () = files.changed() => (),
        }
    };
    timeout_at(deadline, either).await.is_ok()
}

fn log_change(old: &Link, new: &Link) {
    let addresses = |l: &Link| {
        let v4 = l.v4.as_ref().map(|l| format!("{}/{}", l.pod, l.prefix_len));
        let v6 = l.v6.as_ref().map(|l| format!("{}/{}", l.pod, l.prefix_len));
        [v4, v6].into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    tracing::info!(
        old = addresses(old),
        new = addresses(new),
        local = new.local.len(),
        mtu = new.mtu,
        dns = ?new.dns,
        "the pod's link changed"
    );
}

/// What was last read of resolv.conf.
struct LastResolvConf<'a> {
    path: &'a Path,
    last: ResolvConf,
    /// Why it could not be read the last time.
    error: Option<String>,
}

impl<'a> LastResolvConf<'a> {
    fn new(path: &'a Path) -> LastResolvConf<'a> {
        LastResolvConf { path, last: ResolvConf::read_or_empty(path), error: None }
    }

    /// Reads it anew. It is away for a moment while it is replaced, and a link that was pointed out of the sandbox
    /// cannot be followed: a guest without resolvers would be worse off than with those it knows.
    fn read(&mut self) -> &ResolvConf {
        match ResolvConf::read(self.path) {
            Ok(new) => (self.last, self.error) = (new, None),
            Err(error) => {
                let text = error.to_string();
                if self.error.as_ref() != Some(&text) {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "the file cannot be read; the guest keeps its resolvers");
                    self.error = Some(text);
                }
            }
        }
        &self.last
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An inotify instance that watches a file, its directory, and where a symbolic link leads.
struct FileWatch {
    path: PathBuf,
    inotify: Option<(Inotify, pipe::Receiver)>,
}

impl FileWatch {
    fn new(path: &Path) -> FileWatch {
        let inotify = Self::open();
        if let Err(error) = &inotify {
            tracing::warn!(%error, path = %path.display(), "changes of the file are found by polling");
        }
        let mut watch = FileWatch { path: path.to_owned(), inotify: inotify.ok() };
        watch.arm();
        watch
    }

    /// An inotify instance and a second descriptor of it for the runtime. It reads like a pipe, and only that
    /// there is something to read matters here.
    fn open() -> io::Result<(Inotify, pipe::Receiver)> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let events = pipe::Receiver::from_owned_fd_unchecked(inotify.as_fd().try_clone_to_owned()?)?;
        Ok((inotify, events))
    }

    /// Watches what the path is now. The directory tells of a file or symbolic link that is replaced, the file
    /// of a content that is rewritten in place, and both are needed where the path is a bind mount.
    fn arm(&mut self) {
        let Some((inotify, _)) = &self.inotify else { return };
        let directory = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_CLOSE_WRITE;
        let file = AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        let target = std::fs::canonicalize(&self.path).ok();
        let directories = [self.path.parent(), target.as_deref().and_then(Path::parent)];
        let places = directories.into_iter().flatten().map(|d| (d, directory));
        for (place, flags) in places.chain(target.as_deref().map(|t| (t, file))) {
            // What is not there, or may not be watched, is found by polling.
            if let Err(error) = inotify.add_watch(place, flags) {
                tracing::debug!(%error, path = %place.display(), "not watched");
            }
        }
    }

    /// Waits until something happened at the file; for ever when it cannot be watched.
    async fn changed(&mut self) {
        let Some((_, events)) = &self.inotify else { return std::future::pending().await };
        // At least one event with the longest name (inotify(7)).
        let mut buffer = [0; 4096];
        let result = loop {
            if let Err(error) = events.readable().await {
                break Err(error);
            }
            match events.try_read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => break result,
            }
        };
        match result {
            Ok(_) => self.arm(),
            Err(error) => {
                tracing::warn!(%error, "changes of the file are found by polling");
                self.inotify = None;
            }
        }
    }
}

#[cfg(test)]
mod tests;
