//! What is logged: by the command line, by `RUST_LOG`, or by the number that virt-controller has put into the pod.

use podvirt_api::verbosity;

/// The variable of the filter, which netd knows as well.
pub const RUST_LOG: &str = "RUST_LOG";

/// The filter, in the form of `RUST_LOG`.
///
/// `given` is the filter of the command line; `environment` answers the value of a variable. The command line goes first, then
/// `RUST_LOG`, then the number; without any of them the default number holds.
pub fn filter(given: Option<&str>, environment: impl Fn(&str) -> Option<String>) -> String {
    let by_number = || environment(verbosity::ENVIRONMENT).as_deref().and_then(verbosity::parse);
    given
        .map(str::to_owned)
        .or_else(|| environment(RUST_LOG))
        .unwrap_or_else(|| verbosity::filter(by_number().unwrap_or(verbosity::DEFAULT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_number_is_taken_where_nothing_nearer_says_more() {
        let pod = |name: &str| (name == verbosity::ENVIRONMENT).then(|| "4".to_owned());
        assert_eq!(filter(None, pod), verbosity::filter(4));
        assert_eq!(filter(Some("warn"), pod), "warn");
        assert_eq!(filter(None, |name| (name == RUST_LOG).then(|| "trace".to_owned())), "trace");
        assert_eq!(filter(None, |_| None), "info");
        assert_eq!(filter(None, |name| (name == verbosity::ENVIRONMENT).then(|| "much".to_owned())), "info");
    }
}
