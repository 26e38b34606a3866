//! The command line. Parsed by hand: a parser would be most of this program.

use std::ffi::OsString;
use std::path::PathBuf;

/// How the program is called.
pub(crate) const USAGE: &str = "usage: container-disk --copy-to FILE
       container-disk --listen SOCKET [--path PATH]...

  --copy-to FILE   copy this program to FILE and end
  --listen SOCKET  hand files to each process that connects to SOCKET, until SIGTERM
  --path PATH      the file, or the directory with the only one; once for each (default: /disk)";

/// Where disk images are in images that say nothing else.
const DEFAULT_PATH: &str = "/disk";

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Options {
    Help,
    CopyTo(PathBuf),
    Listen { socket: PathBuf, paths: Vec<PathBuf> },
}

impl Options {
    pub(crate) fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Options, String> {
        let (mut copy, mut socket, mut paths) = (None, None, Vec::new());
        while let Some(arg) = args.next() {
            let name = arg.to_string_lossy().into_owned();
            if matches!(name.as_str(), "-h" | "--help") {
                return Ok(Options::Help);
            }
            if !matches!(name.as_str(), "--copy-to" | "--listen" | "--path") {
                return Err(format!("'{name}' is not known"));
            }
            let value: PathBuf = args.next().ok_or_else(|| format!("{name} needs a path"))?.into();
            match name.as_str() {
                "--copy-to" => copy = Some(value),
                "--listen" => socket = Some(value),
                _ => paths.push(value),
            }
        }
        match (copy, socket) {
            (Some(target), None) if paths.is_empty() => Ok(Options::CopyTo(target)),
            (None, Some(socket)) => {
                if paths.is_empty() {
                    paths.push(DEFAULT_PATH.into());
                }
                Ok(Options::Listen { socket, paths })
            }
            _ => Err("either --copy-to or --listen is needed".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Options, String> {
        Options::parse(words.split_whitespace().map(OsString::from))
    }

    #[test]
    fn one_of_two_things_is_done() {
        assert_eq!(parse("--copy-to /b"), Ok(Options::CopyTo("/b".into())));
        let listen = |paths: &[&str]| {
            Ok(Options::Listen { socket: "/s".into(), paths: paths.iter().map(PathBuf::from).collect() })
        };
        assert_eq!(parse("--listen /s"), listen(&["/disk"]));
        assert_eq!(parse("--path /k --listen /s --path /i"), listen(&["/k", "/i"]));
        for wrong in ["", "--path /x", "--listen", "--copy-to /a --listen /b", "--copy-to /a --path /b", "-x"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
