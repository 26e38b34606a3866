//! An NBD server for tests: it speaks as QEMU's does, as far as a client of ours listens.
//!
//! Built for tests and by the feature `testing`, never into a program.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes that a chunk of a read has at most.
const PIECE: usize = 64 << 10;

/// A disk that is exported.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// Name of the export.
    pub name: String,
    /// What it holds.
    pub data: Vec<u8>,
    /// The contexts that are granted: their names, and what they tell, as lengths and flags from the start on.
    pub contexts: Vec<(String, Vec<(u32, u32)>)>,
    /// Reads that reach beyond this place fail.
    pub broken_from: Option<u64>,
}

/// Serves one client, until it says goodbye or is gone.
///
/// # Errors
///
/// The client is gone, or asks for something that is not here.
pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, disks: &[Disk]) -> std::io::Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03").await?;
    stream.flush().await?;
    let _flags = stream.read_u32().await?;
    let mut granted: Vec<String> = Vec::new();
    let disk = loop {
        let _magic = stream.read_u64().await?;
        let (option, length) = (stream.read_u32().await?, stream.read_u32().await?);
        let mut data = vec![0; usize::try_from(length).map_err(std::io::Error::other)?];
        stream.read_exact(&mut data).await?;
        match option {
            8 => reply(&mut stream, option, 1, &[]).await?,
            10 | 7 => {
                let mut texts = texts(&data, option == 7).into_iter();
                let name = texts.next().unwrap_or_default();
                let Some(disk) = disks.iter().find(|disk| disk.name == name) else {
                    let message = format!("export '{name}' not present");
                    reply(&mut stream, option, (1 << 31) + 6, message.as_bytes()).await?;
                    continue;
                };
                if option == 7 {
                    let mut info = vec![0, 0];
                    info.extend_from_slice(&u64::try_from(disk.data.len()).unwrap_or(0).to_be_bytes());
                    info.extend_from_slice(&[0, 0x8f]);
                    reply(&mut stream, option, 3, &info).await?;
                    reply(&mut stream, option, 1, &[]).await?;
                    break disk;
                }
                granted =
                    texts.filter(|wanted| disk.contexts.iter().any(|(name, _)| name == wanted)).collect();
                for (number, name) in (1_u32..).zip(&granted) {
                    let told = [&number.to_be_bytes()[..], name.as_bytes()].concat();
                    reply(&mut stream, option, 4, &told).await?;
                }
                reply(&mut stream, option, 1, &[]).await?;
            }
            _ => reply(&mut stream, option, (1 << 31) + 1, b"unknown option").await?,
        }
    };
    loop {
        let (_magic, _flags, kind) =
            (stream.read_u32().await?, stream.read_u16().await?, stream.read_u16().await?);
        let (cookie, offset, length) =
            (stream.read_u64().await?, stream.read_u64().await?, stream.read_u32().await?);
        let end = offset + u64::from(length);
        match kind {
            2 => return Ok(()),
            0 if disk.broken_from.is_some_and(|broken| end > broken) => {
                let told = [&5_u32.to_be_bytes()[..], &[0, 11], b"bad sectors"].concat();
                chunk(&mut stream, (1, 0x8001), cookie, &told).await?;
            }
            0 => read(&mut stream, disk, cookie, offset, length).await?,
            7 => {
                for (number, name) in (1_u32..).zip(&granted) {
                    let told = disk.contexts.iter().find(|(known, _)| known == name);
                    let told = told.map(|(_, told)| part(told, offset, length)).unwrap_or_default();
                    let told = [&number.to_be_bytes()[..], &told].concat();
                    chunk(&mut stream, (0, 5), cookie, &told).await?;
                }
                chunk(&mut stream, (1, 0), cookie, &[]).await?;
            }
            _ => return Err(std::io::Error::other("a request of an unknown kind")),
        }
    }
}

/// The texts in the data of an option; `one`: it has one, and something else behind it.
fn texts(data: &[u8], one: bool) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = data;
    while let Some((length, tail)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(0);
        let Some((text, tail)) = tail.split_at_checked(length) else { break };
        all.push(String::from_utf8_lossy(text).into_owned());
        // Behind the first one is the number of those that follow.
        rest = if all.len() == 1 { tail.get(4..).unwrap_or_default() } else { tail };
        if one {
            break;
        }
    }
    all
}

/// What a context tells of a part, as it is sent.
fn part(told: &[(u32, u32)], offset: u64, length: u32) -> Vec<u8> {
    let (mut at, end, mut bytes) = (0_u64, offset + u64::from(length), Vec::new());
    for (length, flags) in told {
        let (from, to) = (at.max(offset), (at + u64::from(*length)).min(end));
        if from < to {
            bytes.extend_from_slice(&u32::try_from(to - from).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend_from_slice(&flags.to_be_bytes());
        }
        at += u64::from(*length);
    }
    bytes
}

async fn reply<S: AsyncWrite + Unpin>(
    stream: &mut S,
    option: u32,
    kind: u32,
    data: &[u8],
) -> std::io::Result<()> {
    stream.write_u64(0x0003_e889_0455_65a9).await?;
    for field in [option, kind, u32::try_from(data.len()).unwrap_or(0)] {
        stream.write_u32(field).await?;
    }
    stream.write_all(data).await?;
    stream.flush().await
}

async fn chunk<S: AsyncWrite + Unpin>(
    stream: &mut S,
    (flags, kind): (u16, u16),
    cookie: u64,
    data: &[u8],
) -> std::io::Result<()> {
    stream.write_u32(0x668e_33ef).await?;
    stream.write_u16(flags).await?;
    stream.write_u16(kind).await?;
    stream.write_u64(cookie).await?;
    stream.write_u32(u32::try_from(data.len()).unwrap_or(0)).await?;
    stream.write_all(data).await?;
    stream.flush().await
}

/// Answers a read by pieces, of which those of zeroes are told as holes.
async fn read<S: AsyncWrite + Unpin>(
    stream: &mut S,
    disk: &Disk,
    cookie: u64,
    offset: u64,
    length: u32,
) -> std::io::Result<()> {
    let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX);
    let wanted = disk.data.get(at(offset)..at(offset + u64::from(length)));
    let wanted = wanted.ok_or_else(|| std::io::Error::other("a read beyond the end"))?;
    let mut place = offset;
    for piece in wanted.chunks(PIECE) {
        if piece.iter().all(|byte| *byte == 0) {
            let size = u32::try_from(piece.len()).unwrap_or(0);
            let hole = [&place.to_be_bytes()[..], &size.to_be_bytes()].concat();
            chunk(stream, (0, 2), cookie, &hole).await?;
        } else {
            chunk(stream, (0, 1), cookie, &[&place.to_be_bytes()[..], piece].concat()).await?;
        }
        place += u64::try_from(piece.len()).unwrap_or(0);
    }
    chunk(stream, (1, 0), cookie, &[]).await
}
