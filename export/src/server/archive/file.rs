//! A file as an entry of an archive.
//!
//! The header comes first and says how many bytes follow, and a pod may write to the file meanwhile. So the length and the
//! regions are read once. What the file has grown by is left out, and what it has lost reads as zeroes: the entries behind it
//! stay where the header says. `tar` does the same ("file changed as we read it").
//!
//! Holes are left out as GNU tar's old format of sparse files has them: four regions in the header, 21 in each block behind it.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

use super::super::image::{Extent, extent};

/// Regions of data that are told apart in a file; what is behind them is packed with its holes.
const REGIONS_LIMIT: usize = 4096;

/// A file whose length and regions are decided.
pub(super) struct Packed {
    pub(super) header: Header,
    /// The blocks of a sparse file's further regions.
    blocks: Vec<u8>,
    contents: Contents,
}

impl Packed {
    /// Reads the length and the regions of a file.
    ///
    /// # Errors
    /// The file's metadata cannot be read.
    pub(super) fn new(file: File, path: &Path) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let size = metadata.len();
        let mut header = Header::new_gnu();
        header.set_metadata(&metadata);
        let mut blocks = Vec::new();
        let mut regions = regions(&file, size);
        if size > 0 && regions.first() != Some(&(0..size)) {
            // The end of the file, which a hole may be in front of.
            let with_end: Vec<_> = regions.iter().cloned().chain(std::iter::once(size..size)).collect();
            blocks = describe(&mut header, size, &with_end)?;
        }
        regions.reverse();
        Ok(Packed {
            header,
            blocks,
            contents: Contents { file, path: path.into(), regions, is_short: false },
        })
    }

    /// The header, and all bytes that belong behind it.
    pub(super) fn into_parts(self) -> (Header, impl Read) {
        (self.header, io::Cursor::new(self.blocks).chain(self.contents))
    }
}

/// The regions of data before `size`, in their order.
fn regions(file: &File, size: u64) -> Vec<Range<u64>> {
    let mut regions = Vec::new();
    let mut at = 0;
    while at < size {
        if regions.len() == REGIONS_LIMIT - 1 {
            regions.push(at..size);
            break;
        }
        at = match extent(file, at, size) {
            Extent::Hole(end) => end,
            Extent::Data(end) => {
                regions.push(at..end);
                end
            }
        };
    }
    regions
}

/// Makes the header one of a sparse file; the blocks behind it.
fn describe(header: &mut Header, size: u64, regions: &[Range<u64>]) -> io::Result<Vec<u8>> {
    let region = |to: &mut GnuSparseHeader, region: &Range<u64>| {
        to.set_offset(region.start);
        to.set_length(region.end - region.start);
    };
    header.set_entry_type(EntryType::GNUSparse);
    header.set_size(regions.iter().map(|region| region.end - region.start).sum());
    let gnu = header.as_gnu_mut().ok_or_else(|| io::Error::other("the header is not GNU tar's"))?;
    gnu.set_real_size(size);
    let (first, rest) = regions.split_at(regions.len().min(gnu.sparse.len()));
    gnu.sparse.iter_mut().zip(first).for_each(|(to, from)| region(to, from));
    gnu.set_is_extended(!rest.is_empty());
    let mut blocks = Vec::new();
    let in_a_block = GnuExtSparseHeader::new().sparse.len();
    let mut rest = rest.chunks(in_a_block).peekable();
    while let Some(regions) = rest.next() {
        let mut block = GnuExtSparseHeader::new();
        block.sparse.iter_mut().zip(regions).for_each(|(to, from)| region(to, from));
        block.set_is_extended(rest.peek().is_some());
        blocks.extend_from_slice(block.as_bytes());
    }
    Ok(blocks)
}

/// The bytes of a file's regions: as many as there were when the regions were read.
struct Contents {
    file: File,
    /// Its path in the claim, for the log.
    path: PathBuf,
    /// Whether the file has turned out to be shorter than it was.
    is_short: bool,
    /// Regions that are to be read, the next one last.
    regions: Vec<Range<u64>>,
}

impl Read for Contents {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(region) = self.regions.last_mut() else { return Ok(0) };
        let rest = usize::try_from(region.end - region.start).unwrap_or(usize::MAX);
        let length = rest.min(into.len());
        let Some(into) = into.get_mut(..length) else { return Ok(0) };
        let mut read = self.file.read_at(into, region.start)?;
        if read == 0 {
            if !std::mem::replace(&mut self.is_short, true) {
                let (path, at) = (self.path.display(), region.start);
                tracing::warn!(%path, at, "the file has become shorter: the rest is packed as zeroes");
            }
            into.fill(0);
            read = length;
        }
        region.start += read as u64;
        if region.start >= region.end {
            self.regions.pop();
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::unpacked;
    use super::*;

    /// A file with `count` regions of data, each with a hole in front and behind.
    fn sparse(path: &std::path::Path, count: u64) -> Vec<u8> {
        const STEP: u64 = 64 << 10;
        let file = File::create(path).unwrap();
        file.set_len((2 * count + 1) * STEP + 77).unwrap();
        for n in 0..count {
            file.write_all_at(format!("region {n}").as_bytes(), (2 * n + 1) * STEP).unwrap();
        }
        std::fs::read(path).unwrap()
    }

    fn archive(packed: Packed) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let (mut header, contents) = packed.into_parts();
        builder.append_data(&mut header, "file", contents).unwrap();
        let mut next = Header::new_gnu();
        next.set_size(0);
        builder.append_data(&mut next, "next", io::empty()).unwrap();
        builder.into_inner().unwrap()
    }

    #[test]
    fn a_sparse_file_is_packed_without_its_holes() {
        let dir = tempfile::tempdir().unwrap();
        for count in [0, 1, 3, 4, 24, 25, 26, 100] {
            let path = dir.path().join(count.to_string());
            let content = sparse(&path, count);
            let archive = archive(Packed::new(File::open(&path).unwrap(), &path).unwrap());
            assert!(archive.len() < 20_000 + 9_000 * count as usize, "{count}: {}", archive.len());
            assert!(unpacked(&archive) == [("file".into(), content), ("next".into(), Vec::new())], "{count}");
        }
    }

    #[test]
    fn a_file_of_many_regions_costs_no_more_than_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        let regions_of_data = REGIONS_LIMIT as u64 + 10;
        for n in 0..regions_of_data {
            file.write_all_at(&n.to_be_bytes(), n * 8192).unwrap();
        }
        let packed = Packed::new(File::open(&path).unwrap(), &path).unwrap();
        assert_eq!(packed.contents.regions.len(), REGIONS_LIMIT);
        let content = std::fs::read(&path).unwrap();
        assert!(unpacked(&archive(packed)) == [("file".into(), content), ("next".into(), Vec::new())]);
    }

    #[test]
    fn what_follows_a_file_that_changes_is_where_it_belongs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let dense = vec![7; 100_000];
        for length in [0, 1, 50_000, 99_999, 200_000] {
            std::fs::write(&path, &dense).unwrap();
            let packed = Packed::new(File::open(&path).unwrap(), &path).unwrap();
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
            let mut wanted = dense.clone();
            wanted.truncate(usize::try_from(length).unwrap());
            wanted.resize(dense.len(), 0);
            let files = unpacked(&archive(packed));
            assert!(files == [("file".into(), wanted), ("next".into(), Vec::new())], "{length}");
        }
        let content = sparse(&path, 30);
        let packed = Packed::new(File::open(&path).unwrap(), &path).unwrap();
        // What was a hole has become data, and what was data a hole.
        let file = File::create(&path).unwrap();
        file.set_len(content.len() as u64).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
        let files = unpacked(&archive(packed));
        assert!(files == [("file".into(), vec![0; content.len()]), ("next".into(), Vec::new())]);
    }
}
