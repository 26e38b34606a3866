//! The program itself, beside a caller.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what a test needs is there or the test fails")]

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than the program takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The program, which ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// What a caller of `socket` is told.
fn told(socket: &Path) -> String {
    let begin = Instant::now();
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) => assert!(begin.elapsed() < TIMEOUT, "nothing listens: {error}"),
        }
        std::thread::yield_now();
    };
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn an_image_without_a_disk_is_told_to_every_caller_and_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, disk) = (directory.path().join("disk_0.sock"), directory.path().join("disk"));
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_container-disk"));
        command.arg("--listen").arg(&socket).arg("--path").arg(&disk).stderr(Stdio::null());
        Running(command.spawn().unwrap())
    };
    let missing = format!("{}: No such file or directory (os error 2)", disk.display());
    let empty = "is a directory without a file: a path names a file, or a directory with one file alone";
    let empty = format!("{} {empty}", disk.display());
    for why in [missing, empty] {
        let mut program = start();
        for _ in 0..2 {
            assert_eq!(told(&socket), format!("{{\"error\":\"{why}\"}}\n"));
        }
        assert!(program.0.try_wait().unwrap().is_none(), "it ends, and is started again and again");
        drop(program);
        std::fs::remove_file(&socket).unwrap();
        let _made = std::fs::create_dir(&disk);
    }
}
