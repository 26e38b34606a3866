//! container-disk: hands files of the image that it runs in to the launcher beside it.
//!
//! A containerDisk is a container image with a disk image in it. The pod runs it as a sidecar with this program, which
//! it finds in a volume ([`copy`] put it there), since the image need not hold any other program. It opens the files
//! read-only and hands the descriptors to each process that connects to its socket, which only the pod can reach
//! ([`hand`]): nothing is copied or mounted.
//!
//! What cannot be handed over is said to the caller as well, which can tell the user, instead of ending again and
//! again. The program links nothing but the C library, and that statically: the user's image decides about the rest.

mod copy;
mod find;
mod hand;
mod options;

use std::process::ExitCode;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use options::Options;

fn main() -> ExitCode {
    let result = match Options::parse(std::env::args_os().skip(1)) {
        Ok(Options::Help) => {
            println!("{}", options::USAGE);
            return ExitCode::SUCCESS;
        }
        Ok(Options::CopyTo(target)) => {
            copy::copy(&target).map_err(|e| format!("cannot copy this program to {}: {e}", target.display()))
        }
        Ok(Options::Listen { socket, paths }) => listen(&socket, &paths),
        Err(error) => {
            eprintln!("container-disk: {error}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("container-disk: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Hands the files over to every caller until a signal asks for the end.
fn listen(socket: &std::path::Path, paths: &[std::path::PathBuf]) -> Result<(), String> {
    // As process 1 of its container it would not even notice a signal that it does not wait for.
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None)
        .map_err(|e| format!("cannot block signals: {e}"))?;
    let files: Result<Vec<_>, _> = paths.iter().map(|path| find::open(path)).collect();
    match &files {
        Ok(files) => {
            for file in files {
                println!("container-disk: {} ({}, {} bytes)", file.path.display(), file.format, file.size);
            }
        }
        Err(error) => eprintln!("container-disk: {error}"),
    }
    let listener =
        hand::listener(socket).map_err(|e| format!("cannot listen on {}: {e}", socket.display()))?;
    std::thread::spawn(move || hand::serve(&listener, files.as_deref()));
    signals.wait().map_err(|e| format!("cannot wait for signals: {e}"))?;
    Ok(())
}
