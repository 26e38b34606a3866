//! A file that has holes where what is written has zeroes.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

/// Zeroes of this many bytes, at a multiple of it, become a hole.
const BLOCK: usize = 4096;

/// The file.
#[derive(Debug)]
pub(super) struct Sparse {
    file: File,
    /// What stands before this place is written, or a hole.
    at: u64,
}

impl Sparse {
    /// Of a file that is empty.
    pub(super) fn new(file: File) -> Self {
        Sparse { file, at: 0 }
    }

    /// The place behind what is written.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Begins anew.
    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.at = 0;
        Ok(())
    }

    /// Ends the file behind what is written.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.file.set_len(self.at)?;
        self.file.sync_all()
    }
}

impl Write for Sparse {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Up to the next block, or a block, or as many blocks as are alike.
        let place = usize::try_from(self.at % BLOCK as u64).map_err(io::Error::other)?;
        let first = bytes.len().min(BLOCK - place);
        // What is not written reads as zeroes, also within a block that is written in part.
        let is_hole = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        let (head, rest) = bytes.split_at(first);
        let hole = is_hole(head);
        let alike = rest.chunks(BLOCK).take_while(|block| is_hole(block) == hole).map(<[u8]>::len);
        let length = first + alike.sum::<usize>();
        if !hole {
            self.file.seek(SeekFrom::Start(self.at))?;
            self.file.write_all(bytes.get(..length).unwrap_or(bytes))?;
        }
        self.at += length as u64;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn zeroes_become_holes_wherever_they_are_divided() {
        let mut bytes = vec![0; 3 << 20];
        bytes[70_000..80_000].fill(7);
        bytes[2_000_001] = 1;
        for step in [1000, 4096, 65_537, bytes.len()] {
            let path = tempfile::NamedTempFile::new().unwrap();
            let mut file = Sparse::new(path.reopen().unwrap());
            bytes.chunks(step).for_each(|chunk| file.write_all(chunk).unwrap());
            file.finish().unwrap();
            assert!(std::fs::read(path.path()).unwrap() == bytes, "{step}");
            if step >= BLOCK {
                let used = path.path().metadata().unwrap().blocks() * 512;
                assert!(used < 200_000, "{step}: {used}");
            }
            file.restart().unwrap();
            file.write_all(b"new").unwrap();
            file.finish().unwrap();
            assert_eq!(std::fs::read(path.path()).unwrap(), b"new");
        }
    }
}
