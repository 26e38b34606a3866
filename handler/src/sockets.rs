//! Sockets in a pod's volumes, reached from the node without trusting the pod.
//!
//! A launcher pod can write whatever it likes into its own emptyDirs: a symbolic link there could lead a process
//! of the node, which follows it with all privileges, to the container runtime's socket. So nothing is followed:
//! directories are opened by `openat2` beneath the kubelet's directory of pods with RESOLVE_NO_SYMLINKS, a socket
//! is opened itself (O_PATH, O_NOFOLLOW) and dialled through `/proc/self/fd`. That also cures the length of
//! these paths: `sun_path` holds 107 bytes, of which `/var/lib/kubelet/pods/<uid>/volumes/...` takes 91.
//!
//! The process at the other end is checked as well: [`PodVolumes::peer`] takes it from SO_PEERCRED, holds it
//! ([`Process`]) and compares its control group with the pod.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, unlinkat};
use podvirt_api::names::pod;
use tokio::net::{UnixListener, UnixStream};

use crate::process::Process;

/// Pods' volumes as the kubelet lays them out.
#[derive(Clone, Debug)]
pub struct PodVolumes {
    pods: PathBuf,
    processes: Option<PathBuf>,
    owner: u32,
}

/// A directory in a pod's volume.
#[derive(Debug)]
pub struct Dir(OwnedFd);

impl PodVolumes {
    /// Volumes below `pods`, which is `/var/lib/kubelet/pods` on a node.
    pub fn new(pods: impl Into<PathBuf>) -> Self {
        let owner = u32::try_from(pod::UID).unwrap_or(u32::MAX);
        Self { pods: pods.into(), processes: None, owner }
    }

    /// The same with pods that run as another user, for tests.
    #[must_use]
    pub fn with_owner(self, owner: u32) -> Self {
        Self { owner, ..self }
    }

    /// User and group that launchers run as.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// The same with another place in which processes' control groups are looked up, for tests.
    #[must_use]
    pub fn with_processes(self, processes: impl Into<PathBuf>) -> Self {
        Self { processes: Some(processes.into()), ..self }
    }

    /// Opens the directory `sub` (empty: the volume itself) in an emptyDir volume of a pod.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is not there; `InvalidInput` for a pod UID that is none; anything else is trouble,
    /// a symbolic link on the way (`ELOOP`) among it.
    pub fn dir(&self, pod_uid: &str, volume: &str, sub: &str) -> io::Result<Dir> {
        // It comes from an object that users may write.
        if pod_uid.is_empty() || !pod_uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            let message = format!("pod UID {pod_uid:?}: letters, digits and hyphens are allowed");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let pods = File::open(&self.pods)?;
        let path = Path::new(pod_uid).join("volumes/kubernetes.io~empty-dir").join(volume).join(sub);
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_BENEATH);
        Ok(Dir(openat2(&pods, &path, how)?))
    }

    /// The directory's path, for watching it.
    pub fn path(&self, pod_uid: &str, volume: &str) -> PathBuf {
        self.pods.join(pod_uid).join("volumes/kubernetes.io~empty-dir").join(volume)
    }

    /// The process at the other end of `stream`, which must be one of the pod's.
    ///
    /// # Errors
    ///
    /// The process cannot be told, or it is none of the pod's.
    pub fn peer(&self, stream: &UnixStream, pod_uid: &str) -> io::Result<Process> {
        let pid = stream.peer_cred()?.pid().unwrap_or_default();
        if pid == 0 {
            return Err(io::Error::other(
                "the launcher's process is not visible: virt-handler needs hostPID",
            ));
        }
        // Held before it is looked at. If the number was another one's by then, it is that process which is judged.
        let process = Process::of(pid)?;
        let groups = match &self.processes {
            None => process.groups()?,
            Some(processes) => std::fs::read_to_string(processes.join(pid.to_string()).join("cgroup"))?,
        };
        if !of_pod(&groups, pod_uid) {
            let message = format!("process {pid} at the launcher's socket is not of pod {pod_uid}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(process)
    }
}

impl Dir {
    /// Connects to the socket `name` in the directory.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such file. `ConnectionRefused`: no process listens. `InvalidInput`: it is no socket.
    pub async fn connect(&self, name: &str) -> io::Result<UnixStream> {
        let socket = self.open(name)?;
        UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
    }

    /// Connects to the socket `name` of this kind in the directory; blocks for `limit` at most. It is the connection's timeout
    /// of writes, too.
    ///
    /// # Errors
    ///
    /// As [`Dir::connect`]; EPROTOTYPE: it is of another kind; `WouldBlock`: it listens and takes no connection.
    pub fn connect_as(
        &self,
        name: &str,
        kind: socket2::Type,
        limit: Duration,
    ) -> io::Result<socket2::Socket> {
        let socket = self.open(name)?;
        let connection = socket2::Socket::new(socket2::Domain::UNIX, kind.cloexec(), None)?;
        // connect(2) of a UNIX socket waits for a place in the backlog as long as a write may take.
        connection.set_write_timeout(Some(limit))?;
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        connection.connect(&socket2::SockAddr::unix(path)?)?;
        Ok(connection)
    }

    /// The socket `name` itself.
    fn open(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let socket = openat(&self.0, name, flags, Mode::empty())?;
        if fstat(&socket)?.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFSOCK.bits() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} is no socket")));
        }
        Ok(socket)
    }

    /// Listens on a new socket `name` in the directory, which `owner` (user and group) may connect to. One that
    /// is there is replaced.
    ///
    /// # Errors
    ///
    /// The directory does not allow it.
    pub fn listen(&self, name: &str, owner: u32) -> io::Result<UnixListener> {
        match unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
        // bind follows no link in the last component: it fails on one.
        let listener = UnixListener::bind(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()))?;
        let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
        fchownat(&self.0, name, Some(user), Some(group), AtFlags::AT_SYMLINK_NOFOLLOW)?;
        Ok(listener)
    }

    /// Removes a socket that [`Dir::listen`] made; one that is gone is fine.
    pub fn remove(&self, name: &str) {
        // The pod's directory goes away with the pod at the latest.
        let _gone_with_the_pod = unlinkat(&self.0, name, UnlinkatFlags::NoRemoveDir);
    }
}

/// Whether `/proc/<pid>/cgroup` names the pod, in the form of the cgroupfs or of the systemd driver.
fn of_pod(groups: &str, pod_uid: &str) -> bool {
    let systemd = format!("pod{}.slice", pod_uid.replace('-', "_"));
    let cgroupfs = format!("pod{pod_uid}");
    groups.lines().any(|line| {
        line.split('/').any(|part| {
            part == cgroupfs || part.strip_prefix("kubepods-").is_some_and(|p| p.ends_with(&systemd))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> (tempfile::TempDir, PodVolumes, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let volumes = PodVolumes::new(root.path());
        let dir = volumes.path("6d2c2c5e-1c7e-4a53-8a5b-0f5f5b5f5b5f", "sockets");
        std::fs::create_dir_all(&dir).unwrap();
        (root, volumes, dir)
    }
    const POD: &str = "6d2c2c5e-1c7e-4a53-8a5b-0f5f5b5f5b5f";

    #[tokio::test]
    async fn a_socket_with_a_long_path_is_served_and_reached() {
        let (_root, volumes, path) = pod();
        let dir = volumes.dir(POD, "sockets", "").unwrap();
        let owner = Uid::current().as_raw();
        let name = "a-name-that-is-too-long-for-the-rest-of-it.sock";
        let listener = dir.listen(name, owner).unwrap();
        assert!(path.join(name).as_os_str().len() > 107, "the test is about long paths");
        dir.connect(name).await.unwrap();
        listener.accept().await.unwrap();
        drop(listener);
        let refused = dir.connect(name).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let listener = dir.listen(name, owner).expect("a stale socket is replaced");
        dir.connect(name).await.unwrap();
        drop(listener);
        dir.remove(name);
        assert_eq!(dir.connect(name).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn links_that_a_pod_puts_are_not_followed() {
        let (root, volumes, path) = pod();
        let outside = root.path().join("runtime.sock");
        let _runtime = UnixListener::bind(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, path.join("launcher-sock")).unwrap();
        std::os::unix::fs::symlink(root.path(), path.join("sub")).unwrap();
        let dir = volumes.dir(POD, "sockets", "").unwrap();
        dir.connect("launcher-sock").await.unwrap_err();
        volumes.dir(POD, "sockets", "sub").unwrap_err();
        volumes.dir(POD, "sockets", "..").expect("stays beneath");
        volumes.dir(POD, "sockets", "../../../../..").unwrap_err();
        volumes.dir("../..", "sockets", "").unwrap_err();
        std::fs::write(path.join("file"), "").unwrap();
        assert_eq!(dir.connect("file").await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_socket_whose_backlog_is_full_is_given_up() {
        let (_root, volumes, path) = pod();
        let dir = volumes.dir(POD, "sockets", "").unwrap();
        let listener = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::SEQPACKET, None).unwrap();
        listener.bind(&socket2::SockAddr::unix(path.join("s")).unwrap()).unwrap();
        listener.listen(0).unwrap();
        let mut waiting = Vec::new();
        let error = loop {
            match dir.connect_as("s", socket2::Type::SEQPACKET, Duration::from_millis(20)) {
                Ok(socket) => waiting.push(socket),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_process_is_the_pods_by_either_cgroup_driver() {
        let v2 = "0::/../../kubepods-burstable-pod6d2c2c5e_1c7e_4a53_8a5b_0f5f5b5f5b5f.slice/cri-1.scope\n";
        let v1 = "4:memory:/node1/kubepods/besteffort/pod6d2c2c5e-1c7e-4a53-8a5b-0f5f5b5f5b5f/3f\n3:cpu:/\n";
        for groups in [v1, v2] {
            assert!(of_pod(groups, POD), "{groups}");
            assert!(!of_pod(groups, "0f5f5b5f5b5f"), "{groups}");
            assert!(!of_pod(groups, ""), "{groups}");
        }
    }

    #[tokio::test]
    async fn a_process_of_another_pod_is_not_taken_for_the_launcher() {
        let (root, volumes, _) = pod();
        let dir = volumes.dir(POD, "sockets", "").unwrap();
        let _listener = dir.listen("launcher-sock", Uid::current().as_raw()).unwrap();
        let stream = dir.connect("launcher-sock").await.unwrap();
        let process = root.path().join("processes").join(std::process::id().to_string());
        std::fs::create_dir_all(&process).unwrap();
        let volumes = volumes.with_processes(root.path().join("processes"));
        let of = |pod: &str| {
            std::fs::write(process.join("cgroup"), format!("0::/kubepods/pod{pod}/c\n")).unwrap();
            volumes.peer(&stream, POD)
        };
        assert_eq!(of(POD).unwrap().pid().unsigned_abs(), std::process::id());
        let refused = of("0f5f5b5f-1c7e-4a53-8a5b-6d2c2c5e5b5f").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
}
