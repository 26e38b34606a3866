//! Logs of a daemon.
//!
//! Levels: `error` needs a person, `warn` is handled but should not be, `info` tells the life of objects a few
//! lines each, `debug` tells decisions, `trace` tells messages. Logs go to standard error.

use std::io::IsTerminal;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

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

/// Starts logging for the daemon called `name`, which its first line tells.
///
/// `filter` has the form of `RUST_LOG` (`info`, `info,kube=debug`); the variable `RUST_LOG` wins over it.
///
/// # Errors
///
/// A filter that cannot be read, or logging that is already there.
pub fn init(name: &str, format: Format, filter: &str) -> Result<(), Error> {
    let filter =
        std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|text| !text.is_empty()).unwrap_or(filter.into());
    let parsed =
        EnvFilter::try_new(&filter).map_err(|source| Error::Filter { filter: filter.clone(), source })?;
    let lines = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    match format {
        Format::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .finish()
            .try_init()?,
        Format::Text => lines.finish().try_init()?,
    }
    tracing::info!(daemon = name, version = env!("CARGO_PKG_VERSION"), filter, "starting");
    Ok(())
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
}
