//! The files that netd may open by a path, enforced by Landlock.
//!
//! | what | why |
//! |---|---|
//! | resolv.conf, read | watched: the guest is told of changes. See below |
//! | `/proc/self`, read | the metrics tell memory and descriptors of the process |
//! | `/proc/sys/net/ipv4/ip_local_port_range`, read | the ports that `all` leaves out |
//! | `/proc/sys/kernel/hostname`, read | the guest's name by default |
//! | the directory of each configured socket: make a socket, remove a file | at the start, at the end, and to replace a stale one |
//!
//! Connecting to a socket by its path (`vhost_user.mode: client`, `hold.socket`) is not confined by Landlock; system calls on
//! descriptors that are open already or come by SCM_RIGHTS are not either.
//!
//! A resolv.conf that is a mount of its own, as in every pod, is written in place: the file alone is allowed. Anywhere
//! else it is replaced by renaming, and the new file is another one, so the directory in which that happens is allowed:
//! the one that has the file's symbolic link when the link stays inside it (a ConfigMap's `..data`), otherwise the one
//! that the link leads to (systemd-resolved's). On a host whose `/etc/resolv.conf` is an ordinary file that means
//! reading, but not listing, `/etc`.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, LandlockStatus, PathBeneath, PathFd, RestrictionStatus, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, make_bitflags,
};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use crate::config::{Config, SocketRole};
use crate::pod::RESOLV_CONF;

/// The newest interface whose rights are known here; an older kernel enforces those that it has.
const NEWEST: ABI = ABI::V6;

/// What may be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Files and directories that may be read, with everything below.
    pub read: Vec<PathBuf>,
    /// Directories in which sockets are made and removed.
    pub sockets: Vec<PathBuf>,
}

/// Files that are confined. Some are of file systems that forget a file that no process holds and make another for its next
/// use, to which the rule would not apply: they are held.
#[derive(Debug)]
pub struct Confined {
    _held: Vec<PathFd>,
    status: RestrictionStatus,
}

impl Files {
    /// What a netd with this configuration opens.
    pub fn of(config: &Config) -> Files {
        let proc = ["self", "sys/kernel/hostname", "sys/net/ipv4/ip_local_port_range"];
        let mut read: Vec<PathBuf> = proc.iter().map(|p| Path::new("/proc").join(p)).collect();
        read.extend(watched(Path::new(RESOLV_CONF)));
        let vhost = (config.vhost_user.mode == SocketRole::Server).then_some(&config.vhost_user.socket);
        let control = config.control.as_ref().map(|c| &c.path);
        let sockets = [vhost, control, config.ports.steering.as_ref()];
        Files { read, sockets: sockets.into_iter().flatten().map(|p| directory(p)).collect() }
    }

    /// Confines the calling thread and those that it makes to these files. What is not there is passed over.
    ///
    /// # Errors
    /// When a kernel that has Landlock does not take the rules.
    pub fn confine(&self) -> Result<Confined, RulesetError> {
        let read = AccessFs::from_read(ABI::V1) & !BitFlags::from(AccessFs::Execute);
        let make = make_bitflags!(AccessFs::{MakeSock | RemoveFile});
        let mut rules = Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))?
            .scope(Scope::AbstractUnixSocket | Scope::Signal)?
            .create()?;
        let mut held = Vec::new();
        let paths = self.read.iter().map(|p| (p, read)).chain(self.sockets.iter().map(|p| (p, make)));
        for (path, access) in paths {
            let fd = match PathFd::new(path) {
                Ok(fd) => fd,
                // The part of netd that needs the file will say more about it.
                Err(error) => {
                    tracing::debug!(path = %path.display(), %error, "not among the sandbox's files");
                    continue;
                }
            };
            let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
            rules = rules.add_rule(PathBeneath::new(&fd, access))?;
            held.push(fd);
        }
        let status = rules.restrict_self()?;
        if status.ruleset == RulesetStatus::NotEnforced {
            tracing::warn!(landlock = ?status.landlock, "the kernel has no Landlock: files are not confined");
        }
        Ok(Confined { _held: held, status })
    }
}

impl Confined {
    /// What the kernel enforces, in words.
    pub(super) fn describe(&self) -> &'static str {
        match (&self.status.ruleset, &self.status.landlock) {
            (RulesetStatus::FullyEnforced, _) => "enforced",
            (RulesetStatus::PartiallyEnforced, _) => "enforced as far as this kernel can",
            (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => "not enabled in this kernel",
            (RulesetStatus::NotEnforced, _) => "not in this kernel",
        }
    }
}

/// The directory of a file that may be named without one.
fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => ".".into(),
    }
}

/// What must be readable for a watched file to be found again after it was replaced.
pub fn watched(path: &Path) -> Vec<PathBuf> {
    let Ok(target) = path.canonicalize() else {
        // It may appear.
        return vec![directory(path)];
    };
    if is_mount(&target) {
        return vec![target];
    }
    let (link, file) = (directory(path), directory(&target));
    let inside = link.canonicalize().is_ok_and(|link| file.starts_with(link));
    vec![if inside { link } else { file }]
}

/// Whether something is mounted at `path`.
fn is_mount(path: &Path) -> bool {
    statx(CWD, path, AtFlags::empty(), StatxFlags::TYPE)
        .is_ok_and(|s| s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::config::cli::Args;

    #[test]
    fn the_directories_of_the_configured_sockets_are_allowed() {
        let file = "vhost_user: { socket: /run/a/vm.sock }\ncontrol: { socket: c.sock }\n\
                    ports: { steering: /run/b/ports.sock }";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("netd.yaml");
        let files = |text: String| {
            std::fs::write(&path, text).unwrap();
            Files::of(&Config::load(&Args { config: Some(path.clone()), ..Args::default() }).unwrap())
        };
        let text = file.to_owned();
        assert_eq!(files(text).sockets, ["/run/a", ".", "/run/b"].map(PathBuf::from));
        let text = file.replace("vm.sock }", "vm.sock, mode: client }");
        assert_eq!(files(text).sockets, [".", "/run/b"].map(PathBuf::from), "it only connects");
    }

    #[test]
    fn a_file_that_is_replaced_is_found_in_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let file = dir.join("resolv.conf");
        assert_eq!(watched(&file), std::slice::from_ref(&dir), "it is not there yet");
        std::fs::write(&file, "").unwrap();
        assert_eq!(watched(&file), std::slice::from_ref(&dir));
        // As the kubelet lays out a ConfigMap.
        std::fs::create_dir(dir.join("..2026")).unwrap();
        std::fs::rename(&file, dir.join("..2026/resolv.conf")).unwrap();
        symlink("..2026", dir.join("..data")).unwrap();
        symlink("..data/resolv.conf", &file).unwrap();
        assert_eq!(watched(&file), std::slice::from_ref(&dir));
        // As systemd-resolved does.
        let other = tempfile::tempdir().unwrap();
        let link = other.path().join("resolv.conf");
        symlink(dir.join("..2026/resolv.conf"), &link).unwrap();
        assert_eq!(watched(&link), [dir.join("..2026")]);
    }

    #[test]
    fn a_mount_is_told_from_a_file() {
        assert!(is_mount(Path::new("/proc")));
        assert!(!is_mount(Path::new("/proc/self/status")));
    }
}
