//! How an error is told where one line is all there is: a condition, an event, an answer, a field of a log line.

use std::error::Error;

/// The error's words and those of its sources, outermost first; a source that repeats what was said is left out.
///
/// ```
/// use podvirt_api::error::chain;
///
/// #[derive(Debug, thiserror::Error)]
/// #[error("the file cannot be read")]
/// struct Unread(#[source] std::io::Error);
///
/// let error = Unread(std::io::Error::other("no such device"));
/// assert_eq!(chain(&error), "the file cannot be read: no such device");
/// ```
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}
