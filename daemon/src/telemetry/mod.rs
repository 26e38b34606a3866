//! Logs of a daemon.
//!
//! Levels: `error` needs a person, `warn` is handled but should not be, `info` tells the life of objects a few
//! lines each, `debug` tells decisions, `trace` tells messages. Logs go to standard error.
//!
//! The command line or the variable `RUST_LOG` says how much the daemon logs. Where neither is given, the KubeVirt object says
//! it, and a change of the object takes effect at once ([`Logs::set`]).

mod json;

use std::io::IsTerminal;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use podvirt_api::verbosity;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, reload};

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line, for log collectors.
    #[default]
    Json,
    /// Text for people.
    Text,
}

/// The text names no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log format {0:?}: json and text are allowed")]
pub struct FormatError(String);

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        match text {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            other => Err(FormatError(other.to_owned())),
        }
    }
}

/// Why logging could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter is not one.
    #[error("log filter {filter:?}")]
    Filter {
        /// The filter as given.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Logging was started before.
    #[error("logging cannot be started")]
    Started(#[from] TryInitError),
}

/// The log of this process. Its filter can change while the process runs; all clones change the same filter.
#[derive(Clone)]
pub struct Logs {
    /// Puts another filter in place.
    put: Arc<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>,
    /// The number that the filter in place was made of; `None` when the command line or the environment has given it.
    verbosity: Option<Arc<Mutex<u64>>>,
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logs").field("verbosity", &self.verbosity).finish_non_exhaustive()
    }
}

impl Logs {
    /// A log whose filter never changes, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn fixed() -> Self {
        Self { put: Arc::new(|_| Ok(())), verbosity: None }
    }

    /// From the next line on the daemon logs as much as `number` says (see [`verbosity`]).
    ///
    /// A filter that the command line or `RUST_LOG` gave stays, and `set` changes nothing: that filter was given to this daemon
    /// alone, while the KubeVirt object speaks to all daemons.
    pub fn set(&self, number: u64) {
        let Some(known) = &self.verbosity else { return };
        if std::mem::replace(&mut *known.lock().unwrap_or_else(PoisonError::into_inner), number) == number {
            return;
        }
        let filter = verbosity::filter(number);
        let put = EnvFilter::try_new(&filter)
            .map_err(Box::<dyn std::error::Error>::from)
            .and_then(|parsed| (self.put)(parsed).map_err(Into::into));
        match put {
            Ok(()) => tracing::info!(verbosity = number, filter, "another filter of the log"),
            Err(error) => tracing::warn!(error = &*error, "the log's filter is as before"),
        }
    }
}

/// Starts logging for the daemon called `name`, which its first line tells.
///
/// `filter` has the form of `RUST_LOG` (`info`, `info,kube=debug`); the variable `RUST_LOG` wins over it. Without either
/// the log begins at `info`, and follows [`Logs::set`].
///
/// # Errors
///
/// A filter that cannot be read, or logging that is already there.
pub fn init(name: &str, format: Format, filter: Option<&str>) -> Result<Logs, Error> {
    let variable = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|text| !text.is_empty());
    let given = variable.or(filter.map(str::to_owned));
    let own = given.is_none().then(|| Arc::new(Mutex::new(verbosity::DEFAULT)));
    let filter = given.unwrap_or_else(|| verbosity::filter(verbosity::DEFAULT));
    let parsed =
        EnvFilter::try_new(&filter).map_err(|source| Error::Filter { filter: filter.clone(), source })?;
    let lines = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    let put: Arc<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync> = match format {
        Format::Json => {
            let lines = lines.event_format(json::Lines).fmt_fields(json::Fields);
            let lines = lines.with_filter_reloading();
            let handle = lines.reload_handle();
            lines.finish().try_init()?;
            Arc::new(move |filter| handle.reload(filter))
        }
        Format::Text => {
            let lines = lines.with_filter_reloading();
            let handle = lines.reload_handle();
            lines.finish().try_init()?;
            Arc::new(move |filter| handle.reload(filter))
        }
    };
    tracing::info!(daemon = name, version = env!("CARGO_PKG_VERSION"), filter, "starting");
    Ok(Logs { put, verbosity: own })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_format_is_told_with_what_is_allowed() {
        assert_eq!("text".parse(), Ok(Format::Text));
        assert_eq!(
            "xml".parse::<Format>().unwrap_err().to_string(),
            "log format \"xml\": json and text are allowed"
        );
    }

    /// Whether lines of four targets, each with its level, are logged now.
    fn logged() -> [bool; 4] {
        use tracing::{Level, enabled};
        [
            enabled!(target: "podvirt_daemon::pki", Level::DEBUG),
            enabled!(target: "virt_handler", Level::TRACE),
            enabled!(target: "hyper::proto", Level::DEBUG),
            enabled!(target: "virt", Level::INFO),
        ]
    }

    // A process has one subscriber, and can set it once. nextest gives every test a process of its own, and no other test of
    // this crate calls `init`.
    #[test]
    fn the_filter_follows_the_number_while_the_process_runs() {
        let logs = init("test", Format::Json, None).unwrap();
        assert_eq!(logged(), [false, false, false, true]);
        logs.set(4);
        assert_eq!(logged(), [true, false, false, true]);
        logs.set(9);
        assert_eq!(logged(), [true; 4]);
        logs.set(1);
        assert_eq!(logged(), [false; 4]);
        logs.set(verbosity::DEFAULT);
        assert_eq!(logged(), [false, false, false, true]);
        let given = Logs { verbosity: None, ..logs };
        given.set(9);
        assert_eq!(logged(), [false, false, false, true], "the command line wins");
    }
}
