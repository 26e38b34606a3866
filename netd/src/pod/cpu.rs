//! Whether the pod's processor time is limited.

use std::path::{Path, PathBuf};

/// Where the control groups are.
const ROOT: &str = "/sys/fs/cgroup";

/// Whether the kernel makes this process, or one that shares its limit, wait once it has used its part of a period
/// (`cpu.max`; in the first version of control groups `cpu.cfs_quota_us`). A limit that cannot be read is none.
pub fn is_limited() -> bool {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    is_limited_by(&groups, |file| std::fs::read_to_string(file).ok())
}

/// `groups` is the text of /proc/self/cgroup (cgroups(7)): lines of a hierarchy's number, its controllers, and the path in it.
fn is_limited_by(groups: &str, read: impl Fn(&Path) -> Option<String>) -> bool {
    let hierarchies = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (root, file) = match controllers {
            "" => (PathBuf::from(ROOT), "cpu.max"),
            _ if controllers.split(',').any(|name| name == "cpu") => {
                (Path::new(ROOT).join("cpu"), "cpu.cfs_quota_us")
            }
            _ => return None,
        };
        Some((root, file, Path::new(path)))
    });
    // Limits of all groups above hold as well. In a container the path may be the node's while the root is the container's
    // own group: what is not there is passed over.
    hierarchies.into_iter().any(|(root, file, path)| {
        path.ancestors()
            .map(|group| root.join(group.strip_prefix("/").unwrap_or(group)).join(file))
            .filter_map(|file| read(&file))
            .any(|text| is_limit(&text))
    })
}

/// `max 100000` and `-1` are no limits; `50000 100000` and `50000` are.
fn is_limit(text: &str) -> bool {
    text.split_whitespace().next().is_some_and(|quota| quota.parse::<u64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(groups: &str, files: &[(&str, &str)]) -> bool {
        is_limited_by(groups, |file| {
            files.iter().find(|(path, _)| Path::new(path) == file).map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn a_limit_of_the_group_or_of_one_above_is_found() {
        let own = "/sys/fs/cgroup/kubepods/pod1/netd/cpu.max";
        let above = "/sys/fs/cgroup/kubepods/pod1/cpu.max";
        let groups = "0::/kubepods/pod1/netd\n";
        assert!(limited(groups, &[(own, "50000 100000\n")]));
        assert!(limited(groups, &[(own, "max 100000\n"), (above, "150000 100000\n")]));
        assert!(!limited(groups, &[(own, "max 100000\n"), (above, "max 100000\n")]));
    }

    #[test]
    fn a_container_with_a_root_of_its_own_has_its_limit_there() {
        assert!(limited("0::/\n", &[("/sys/fs/cgroup/cpu.max", "50000 100000\n")]));
        let first = "11:memory:/kubepods/pod1\n4:cpu,cpuacct:/kubepods/pod1/netd\n0::/\n";
        assert!(limited(first, &[("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n")]));
        assert!(!limited(first, &[("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")]));
    }

    #[test]
    fn what_cannot_be_read_is_no_limit() {
        assert!(!limited("", &[]));
        assert!(!limited("0::/a\nnonsense\n", &[]));
    }
}
