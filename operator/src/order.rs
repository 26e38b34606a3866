//! In which order the daemons are replaced, and which versions are refused.
//!
//! | what happens | order |
//! |---|---|
//! | installation, a change of settings, an update taken back | virt-api, virt-controller, virt-handler |
//! | update to a newer version, or to one whose order with the old is not known | virt-handler, virt-controller, virt-api |
//!
//! The order is upstream's. An update that is not complete can be taken back: the version that was installed last in
//! full is never older than itself. A version older than the stored one is refused, because its daemons do not know what
//! the newer ones have stored.

use semver::Version;

use crate::manifests::Wave;

/// Daemons in the order of an installation.
const INSTALL: [Wave; 3] = [Wave::Api, Wave::Controller, Wave::Handler];
/// Daemons in the order of an update.
const UPDATE: [Wave; 3] = [Wave::Handler, Wave::Controller, Wave::Api];

/// A version that is not installed, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "version {target} is older than {observed}, which is installed: its daemons do not know what the newer ones have \
     stored. A version from {observed} on is allowed"
)]
pub struct Downgrade {
    target: String,
    observed: String,
}

/// Reads a version. Tags of images may leave out numbers: `v0.2` is 0.2.0.
fn version(text: &str) -> Option<Version> {
    let text = text.trim_start_matches('v');
    let (numbers, rest) = text.split_at(text.find(['-', '+']).unwrap_or(text.len()));
    let missing = 2_usize.saturating_sub(numbers.matches('.').count());
    Version::parse(&format!("{numbers}{}{rest}", ".0".repeat(missing))).ok()
}

/// The waves from `observed`, which was installed last in full, to `target`.
///
/// # Errors
///
/// `target` is older.
pub fn waves(observed: Option<&str>, target: &str) -> Result<[Wave; 3], Downgrade> {
    let Some(observed) = observed.filter(|observed| !observed.is_empty()) else { return Ok(INSTALL) };
    if observed == target {
        return Ok(INSTALL);
    }
    match (version(observed), version(target)) {
        (Some(old), Some(new)) if new < old => {
            Err(Downgrade { target: target.to_owned(), observed: observed.to_owned() })
        }
        (Some(old), Some(new)) if new == old => Ok(INSTALL),
        _ => Ok(UPDATE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_begins_on_the_nodes_and_an_installation_with_the_api() {
        assert_eq!(waves(None, "v1.0.0"), Ok(INSTALL));
        assert_eq!(waves(Some("v1.0.0"), "v1.0.0"), Ok(INSTALL), "settings, or an update taken back");
        assert_eq!(waves(Some("v1.0.0"), "v1.1.0"), Ok(UPDATE));
        assert_eq!(waves(Some("dev"), "devel"), Ok(UPDATE), "nothing says which is newer");
        assert_eq!(waves(Some("v1.0.0+a"), "1.0.0+a"), Ok(INSTALL));
        assert_eq!(waves(Some("0.2"), "v0.2.0"), Ok(INSTALL), "the same");
        assert_eq!(waves(Some("0.2"), "0.3-rc.1"), Ok(UPDATE));
    }

    #[test]
    fn an_older_version_is_refused_by_name() {
        let refused = waves(Some("v1.1.0"), "v1.0.9").unwrap_err().to_string();
        assert!(refused.contains("v1.0.9") && refused.contains("v1.1.0"), "{refused}");
        assert!(waves(Some("v1.1.0"), "v1.1.0-rc.1").is_err());
        for short in ["0.2", "v0.2", "1", "1.1-rc.1"] {
            assert!(waves(Some("v1.1.0"), short).is_err(), "{short}");
        }
    }
}
