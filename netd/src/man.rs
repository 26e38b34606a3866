//! Manual pages, from the definitions of the options themselves.

use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::config::cli::Args;
use crate::config::passt::Passt;

/// The section of daemons.
const DAEMONS: &str = "8";

/// Writes the pages of netd by both of its names into `dir`.
///
/// # Errors
/// When a file cannot be written.
pub fn write_netd(dir: &Path) -> io::Result<()> {
    write(Args::command(), dir)?;
    write(Passt::command().name("netd-passt").bin_name("passt"), dir)
}

fn write(mut program: Command, dir: &Path) -> io::Result<()> {
    program.build();
    let name = program.get_name().to_owned();
    let mut text = Vec::new();
    Man::new(program).title(name.to_uppercase()).section(DAEMONS).render(&mut text)?;
    std::fs::write(dir.join(format!("{name}.{DAEMONS}")), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_netd_is_in_its_page() {
        let dir = tempfile::tempdir().unwrap();
        write_netd(dir.path()).unwrap();
        for (file, command) in [("netd.8", Args::command()), ("netd-passt.8", Passt::command())] {
            let page = std::fs::read_to_string(dir.path().join(file)).unwrap();
            assert!(page.contains(".SH OPTIONS") && page.contains(".SH SYNOPSIS"), "{page}");
            for option in command.get_arguments().filter(|a| !a.is_hide_set()) {
                // roff writes a hyphen as \-.
                let long = option.get_long().unwrap().replace('-', "\\-");
                assert!(page.contains(&format!("\\-\\-{long}")), "{file}: {long}");
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
