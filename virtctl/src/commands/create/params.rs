//! Flags with several parameters: `name:root,src:registry/image:tag,bootorder:1`.
//!
//! A parameter ends at a comma; its name ends at the first colon, so that a value may have colons.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail};

/// The parameters of one flag. Those that were asked for are gone: what is left at the end is unknown.
#[derive(Debug)]
pub(super) struct Params<'a> {
    flag: &'static str,
    values: BTreeMap<&'a str, &'a str>,
}

/// The error of a flag, in upstream's words.
pub(super) fn flag_error(flag: &str, why: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("failed to parse \"--{flag}\" flag: {why}")
}

impl<'a> Params<'a> {
    pub(super) fn read(flag: &'static str, text: &'a str) -> anyhow::Result<Self> {
        if text.is_empty() {
            return Err(flag_error(flag, "params may not be empty"));
        }
        let pair = |param: &'a str| {
            let pair = param.split_once(':');
            pair.ok_or_else(|| flag_error(flag, format!("params need to have at least one colon: {param}")))
        };
        let values = text.split(',').map(pair).collect::<anyhow::Result<_>>()?;
        Ok(Self { flag, values })
    }

    /// A parameter's text; an empty one counts as not given.
    pub(super) fn text(&mut self, name: &str) -> Option<&'a str> {
        self.values.remove(name).filter(|value| !value.is_empty())
    }

    /// The place among the disks that are booted.
    pub(super) fn boot_order(&mut self) -> anyhow::Result<Option<u32>> {
        let Some(value) = self.values.remove("bootorder") else { return Ok(None) };
        match value.parse() {
            Ok(0) => Err(self.error("bootorder must be greater than 0")),
            Ok(order) => Ok(Some(order)),
            Err(_) => Err(self.error(format!("failed to parse param \"bootorder\": {value:?} is no number"))),
        }
    }

    /// The parameter `src`, which is the name of something in the machine's own namespace: `what`.
    pub(super) fn source(&mut self, what: &str) -> anyhow::Result<&'a str> {
        let Some(source) = self.text("src") else { return Err(self.error("src must be specified")) };
        match split_prefixed(source) {
            Ok((None, name)) => Ok(name),
            Ok((Some(_), name)) => {
                Err(self.error(format!("not allowed to specify namespace of {what} \"{name}\"")))
            }
            Err(error) => Err(self.error(format!("src invalid: {error}"))),
        }
    }

    /// That there are no other parameters.
    pub(super) fn done(&self) -> anyhow::Result<()> {
        if self.values.is_empty() {
            return Ok(());
        }
        let unknown: Vec<_> = self.values.iter().map(|(name, value)| format!("{name}:{value}")).collect();
        Err(self.error(format!("unknown param(s): {}", unknown.join(","))))
    }

    pub(super) fn error(&self, why: impl std::fmt::Display) -> anyhow::Error {
        flag_error(self.flag, why)
    }
}

/// What is before and behind the one slash of a word, if it has one.
pub(super) fn split_prefixed(word: &str) -> anyhow::Result<(Option<&str>, &str)> {
    let (prefix, name) = match word.split_once('/') {
        None => (None, word),
        Some((_, rest)) if rest.contains('/') => {
            bail!("invalid count {} of slashes in prefix/name", word.matches('/').count())
        }
        Some((prefix, name)) => (Some(prefix).filter(|prefix| !prefix.is_empty()), name),
    };
    if name.is_empty() {
        bail!("name cannot be empty");
    }
    Ok((prefix, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_by_name_and_may_have_colons() {
        let mut params =
            Params::read("volume-containerdisk", "src:registry:5000/image:tag,bootorder:2").unwrap();
        assert_eq!(params.text("src"), Some("registry:5000/image:tag"));
        assert_eq!((params.boot_order().unwrap(), params.text("name")), (Some(2), None));
        params.done().unwrap();
    }

    #[test]
    fn what_is_wrong_is_told_with_the_flag() {
        let error = |result: anyhow::Result<()>| result.unwrap_err().to_string();
        let read = |text: &'static str| Params::read("volume-pvc", text);
        for (told, why) in [
            (error(read("").map(drop)), "params may not be empty"),
            (error(read("src").map(drop)), "params need to have at least one colon: src"),
            (error(read("a:b,c:d").unwrap().done()), "unknown param(s): a:b,c:d"),
            (error(read("bootorder:0").unwrap().boot_order().map(drop)), "bootorder must be greater than 0"),
            (error(read("name:a").unwrap().source("pvc").map(drop)), "src must be specified"),
            (
                error(read("src:ns/a").unwrap().source("pvc").map(drop)),
                "not allowed to specify namespace of pvc \"a\"",
            ),
            (
                error(read("src:a/b/c").unwrap().source("pvc").map(drop)),
                "src invalid: invalid count 2 of slashes in prefix/name",
            ),
        ] {
            assert_eq!(told, format!("failed to parse \"--volume-pvc\" flag: {why}"));
        }
    }
}
