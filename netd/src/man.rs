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
    write(Args::command(), DAEMONS, dir)?;
    write(Passt::command().name("netd-passt").bin_name("passt"), DAEMONS, dir)
}

/// Writes the page of a program into `dir`, and one for each of its commands, as `NAME-COMMAND`.
///
/// # Errors
/// When a file cannot be written.
pub fn write(mut program: Command, section: &str, dir: &Path) -> io::Result<()> {
    program = program.disable_help_subcommand(true);
    program.build();
    pages(&program, section, dir)
}

fn pages(program: &Command, section: &str, dir: &Path) -> io::Result<()> {
    for command in program.get_subcommands().filter(|c| !c.is_hide_set()) {
        pages(command, section, dir)?;
    }
    let name = program.get_display_name().unwrap_or(program.get_name()).to_owned();
    let page = Man::new(program.clone()).title(name.to_uppercase()).section(section);
    let mut text = Vec::new();
    page.render(&mut text)?;
    std::fs::write(dir.join(format!("{name}.{section}")), text)
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
