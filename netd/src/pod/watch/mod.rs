//! Keeping the link current.
//!
//! Netlink's multicast groups and inotify only say *that* something changed; what it is now is read anew, once
//! the changes have settled for [`QUIET`] or have gone on for [`CHANGING_AT_MOST`]. Messages that the kernel dropped because
//! they came too fast are a change as well: the connection says so. Every [`POLL`] the watcher reads everything though
//! nothing seems to have changed: a resolv.conf can be replaced where no watch sees it.
//!
//! A guest is idle for hours: each reading of everything wakes netd, so they are rare.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout_at};

use super::{PodError, ResolvConf, build_link, netlink};
use crate::config::Config;
use crate::net::Link;

/// Changes come in groups (an address, its routes); nothing new for so long ends the group.
const QUIET: Duration = Duration::from_millis(200);
/// A link that keeps changing is read this often.
const CHANGING_AT_MOST: Duration = Duration::from_secs(1);
/// How often everything is read though nothing seems to have changed.
const POLL: Duration = Duration::from_secs(300);
/// The same where changes of netlink or of resolv.conf cannot be seen.
const POLL_UNSEEN: Duration = Duration::from_secs(30);

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
    let mut netlink = Netlink::open().map_err(PodError::Socket)?;
    let mut files = FileWatch::new(&resolv_conf);
    let mut last_error = None;
    let mut resolv = LastResolvConf::new(&resolv_conf);
    loop {
        // The first turn reads at once: something may have changed before the groups were joined.
        // A guest is not renumbered because its pod has got a further address.
        let present = [link.v4.as_ref().map(|l| l.pod.into()), link.v6.as_ref().map(|l| l.pod.into())];
        let present: Vec<IpAddr> = present.into_iter().flatten().collect();
        match netlink::read(&netlink.handle, config.interface.as_deref(), &present)
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
        let seen = !netlink.ended && files.watched;
        let poll = Instant::now() + if seen { POLL } else { POLL_UNSEEN };
        if changed(&mut netlink, &mut files, poll).await {
            settle(&mut netlink, &mut files).await;
        }
        if netlink.ended {
            match Netlink::open() {
                Ok(another) => netlink = another,
                Err(error) => {
                    tracing::warn!(%error, "netlink's connection ended, and no other can be made yet");
                }
            }
        }
    }
}

/// Waits until no more changes come, or until they have come for long enough.
async fn settle(netlink: &mut Netlink, files: &mut FileWatch) {
    let give_up = Instant::now() + CHANGING_AT_MOST;
    while changed(netlink, files, (Instant::now() + QUIET).min(give_up)).await {}
}

/// Waits for any change until `deadline`; whether there was one.
async fn changed(netlink: &mut Netlink, files: &mut FileWatch, deadline: Instant) -> bool {
    let either = async {
        tokio::select! {
            () = netlink.changed() => (),
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

/// A connection to the kernel that asks it and is told of changes.
struct Netlink {
    handle: Handle,
    /// Something for each message that tells of a change, or that messages were lost.
    messages: BoxStream<'static, ()>,
    /// Whether the kernel can no longer be asked by it.
    ended: bool,
    _connection: AbortOnDrop,
}

impl Netlink {
    fn open() -> io::Result<Netlink> {
        let (connection, handle, messages) = new_multicast_connection(GROUPS)?;
        let messages = messages.map(|_| ()).boxed();
        Ok(Netlink { handle, messages, ended: false, _connection: AbortOnDrop(tokio::spawn(connection)) })
    }

    /// Waits for a change, or for the connection's end.
    async fn changed(&mut self) {
        if self.ended {
            return std::future::pending().await;
        }
        self.ended = self.messages.next().await.is_none();
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
    /// Whether the file itself is watched, which it is not while it does not exist.
    watched: bool,
}

impl FileWatch {
    fn new(path: &Path) -> FileWatch {
        let inotify = Self::open();
        if let Err(error) = &inotify {
            tracing::warn!(%error, path = %path.display(), "changes of the file are found by polling");
        }
        let mut watch = FileWatch { path: path.to_owned(), inotify: inotify.ok(), watched: false };
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
        let watch = |place: &Path, flags| match inotify.add_watch(place, flags) {
            Ok(_) => true,
            // What may not be watched is found by polling.
            Err(error) => {
                tracing::debug!(%error, path = %place.display(), "not watched");
                false
            }
        };
        for place in directories.into_iter().flatten() {
            watch(place, directory);
        }
        self.watched = target.is_some_and(|target| watch(&target, file));
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
                (self.inotify, self.watched) = (None, false);
            }
        }
    }
}

#[cfg(test)]
mod tests;
