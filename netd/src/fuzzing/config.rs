//! The configuration file.

use crate::config::file::File;

/// Longest input: a deep or repetitive document costs time and memory in its length.
const MAX: usize = 4096;

/// Runs one input. What passes the check can be used; what does not is told with the names of fields.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(&data[..data.len().min(MAX)]) else { return };
    let Ok(file) = File::parse(text) else { return };
    match file.check() {
        Ok(config) => {
            assert!(!config.vhost_user.socket.as_os_str().is_empty());
            assert!(config.mtu.is_none_or(|mtu| mtu >= 68));
            assert!(config.masquerade.prefix_v4 <= 32 && config.masquerade.prefix_v6 <= 128);
        }
        Err(problems) => assert!(!problems.to_string().is_empty()),
    }
}
