//! Files below a directory: no link, and no `..`, leads out of it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

/// A directory that is as the root of a file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root<'a>(&'a Path);

/// A file in such a directory, or a device.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    root: Option<&'a Path>,
    path: PathBuf,
}

impl<'a> Root<'a> {
    pub(super) fn new(path: &'a Path) -> Self {
        Root(path)
    }

    pub(super) fn place(self, path: impl Into<PathBuf>) -> Place<'a> {
        Place { root: Some(self.0), path: path.into() }
    }
}

impl<'a> Place<'a> {
    pub(super) fn device(path: &'a Path) -> Self {
        Place { root: None, path: path.to_owned() }
    }

    /// Opens it to be read. A pipe does not block.
    pub(super) fn open(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Some(root) = self.root else { return Ok(open(&self.path, flags, Mode::empty())?.into()) };
        let root = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let path = if self.path.as_os_str().is_empty() { Path::new(".") } else { &self.path };
        Ok(openat2(&root, path, flags, Mode::empty(), resolve)?.into())
    }
}
