//! Whose networks a pod may use: Multus' `namespaceIsolation` and `globalNamespaces`.
//!
//! Multus' daemon does not look at them for what it is asked to carry out here. So it is this controller that does.

use super::Options;
use super::error::Failure;

/// The namespaces whose networks pods of other namespaces may use.
#[derive(Debug)]
pub(super) struct Isolation {
    /// Whether it matters.
    on: bool,
    global: Vec<String>,
}

impl Isolation {
    /// As the command line has it.
    pub(super) fn of(options: &Options) -> Isolation {
        let global = options.global_namespaces.iter().map(|name| name.trim().to_owned());
        Isolation { on: options.namespace_isolation, global: global.collect() }
    }

    /// Whether a pod of the namespace `own` may use a network of `namespace`.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn permit(&self, own: &str, namespace: &str) -> Result<(), Failure> {
        let global = self.global.iter().map(String::as_str).filter(|name| *name != own);
        let allowed: Vec<&str> = std::iter::once(own).chain(global).collect();
        if !self.on || allowed.contains(&namespace) {
            return Ok(());
        }
        Err(Failure::Isolated { namespace: namespace.to_owned(), allowed: allowed.join(", ") })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// That of these arguments of the command line.
    pub(in crate::dynamic) fn isolation(arguments: &[&str]) -> Result<Isolation, clap::Error> {
        let line = ["dynamic", "--node=node1"].into_iter().chain(arguments.iter().copied());
        Line::try_parse_from(line).map(|line| Isolation::of(&line.options))
    }

    fn refusal(arguments: &[&str], namespace: &str) -> Option<String> {
        let permitted = isolation(arguments).unwrap().permit("shop", namespace);
        permitted.err().map(|refusal| refusal.to_string())
    }

    #[test]
    fn every_namespace_is_permitted_where_there_is_no_isolation() {
        assert_eq!(refusal(&[], "net"), None);
    }

    #[test]
    fn the_own_namespace_and_global_ones_are_permitted() {
        let refused = |namespaces: &str| {
            format!(
                "networks of the namespace net are refused (--namespace-isolation); allowed are those of the \
                 namespaces {namespaces}"
            )
        };
        let on = ["--namespace-isolation"];
        assert_eq!(refusal(&on, "shop"), None);
        assert_eq!(refusal(&on, "default"), None);
        assert_eq!(refusal(&on, "net"), Some(refused("shop, default")));
        let global = ["--namespace-isolation", "--global-namespaces=infra, lab,shop"];
        assert_eq!(refusal(&global, "lab"), None);
        assert_eq!(refusal(&global, "net"), Some(refused("shop, infra, lab")));
        // As with Multus: a list takes the place of what is global without one.
        assert!(refusal(&global, "default").is_some());
    }

    #[test]
    fn global_namespaces_are_told_with_the_isolation_alone() {
        let error = isolation(&["--global-namespaces=lab"]).unwrap_err().to_string();
        assert!(error.contains("--namespace-isolation"), "{error}");
    }
}
