//! `create`: writes manifests; asks no cluster.

mod cloud_init;
mod credentials;
mod draft;
mod params;
#[cfg(test)]
mod tests;
mod vm;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use anyhow::Context as _;

use crate::args::{Create, Global, What};
use crate::output::{complain, say};

/// Letters of a name that is made: no vowels, so that they make no word, and nothing that looks like another.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// How many of them.
const SUFFIX: usize = 5;

pub(super) fn run(global: &Global, args: &Create) -> anyhow::Result<()> {
    let What::Vm(flags) = &args.what;
    let name = flags.name.clone().filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| format!("vm-{}", suffix(RandomState::new().build_hasher().finish())));
    let made = vm::manifest(flags, &name, global.namespace.as_deref())?;
    for warning in made.warnings {
        complain(&format!("WARNING: {warning}"));
    }
    let text = serde_saphyr::to_string(&made.manifest).context("cannot write the manifest")?;
    say(text.trim_end())
}

/// So many letters of a random number.
fn suffix(random: u64) -> String {
    let count = LETTERS.len() as u64;
    let letter = |rest: &mut u64| {
        let place = usize::try_from(*rest % count).unwrap_or(0);
        *rest /= count;
        LETTERS.get(place).copied().map(char::from)
    };
    std::iter::repeat_n((), SUFFIX).scan(random, |rest, ()| letter(rest)).collect()
}
