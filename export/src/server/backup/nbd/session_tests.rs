use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::double::{self, Disk};
use super::*;

/// A disk of a few pieces, with zeroes in the middle.
fn disk() -> Disk {
    let mut data = vec![0; 300_000];
    for place in (0..70_000).chain(200_000..300_000) {
        data[place] = u8::try_from(place % 251).unwrap();
    }
    let contexts = vec![
        (ALLOCATION.to_owned(), vec![(131_072, 0), (65_536, 3), (103_392, 0)]),
        ("qemu:dirty-bitmap:changes".to_owned(), vec![(65_536, 1), (234_464, 0)]),
    ];
    Disk { name: "root".into(), data, contexts, broken_from: None }
}

fn served(disk: Disk) -> DuplexStream {
    let (ours, theirs) = duplex(4096);
    tokio::spawn(async move { double::serve(theirs, &[disk]).await });
    ours
}

#[tokio::test]
async fn a_disk_is_read_with_its_zeroes() {
    let disk = disk();
    let mut session = Session::open(served(disk.clone()), "root", &[]).await.unwrap();
    assert_eq!(session.size(), 300_000);
    for (offset, length) in [(0_u32, 300_000_u32), (1, 1), (69_999, 2), (65_536, 131_072), (299_999, 1)] {
        let read = session.read(offset.into(), length).await.unwrap();
        let (start, length) = (usize::try_from(offset).unwrap(), usize::try_from(length).unwrap());
        assert!(read == disk.data[start..start + length], "{offset} {length}");
    }
    session.close().await;
}

#[tokio::test]
async fn contexts_are_told_each_for_itself() {
    let bitmap = format!("{DIRTY_BITMAP}changes");
    let mut session = Session::open(served(disk()), "root", &[ALLOCATION, &bitmap, "x:y"]).await.unwrap();
    let (allocation, dirty) = (session.context(ALLOCATION).unwrap(), session.context(&bitmap).unwrap());
    assert_eq!(session.context("x:y"), None);
    let status = |length, flags| Status { length, flags };
    assert_eq!(
        session.status(allocation, 0, 200_000).await.unwrap(),
        [status(131_072, 0), status(65_536, 3), status(3392, 0)]
    );
    assert_eq!(session.status(dirty, 65_535, 100).await.unwrap(), [status(1, 1), status(99, 0)]);
}

#[tokio::test]
async fn what_the_server_refuses_is_told() {
    let refused = Session::open(served(disk()), "other", &[]).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the NBD server refuses the export: export 'other' not present (reply 0x80000006)"
    );
    let broken = Disk { broken_from: Some(70_000), ..disk() };
    let mut session = Session::open(served(broken), "root", &[]).await.unwrap();
    session.read(0, 70_000).await.unwrap();
    let failed = session.read(0, 70_001).await.unwrap_err();
    assert_eq!(failed.to_string(), "the NBD server fails: bad sectors (error 5)");
}

/// A session whose server has answered up to the requests, and sends `reply` to the next one.
async fn answered(reply: Vec<u8>) -> Session<DuplexStream> {
    let (ours, mut theirs) = duplex(64 << 10);
    tokio::spawn(async move {
        theirs.write_all(b"NBDMAGICIHAVEOPT\x00\x03").await.unwrap();
        for (option, length) in [(8_u32, 0), (10, 47), (7, 10)] {
            let mut asked = vec![0; 16 + length + if option == 8 { 4 } else { 0 }];
            theirs.read_exact(&mut asked).await.unwrap();
            let mut tell = async |kind: u32, data: &[u8]| {
                let length = u32::try_from(data.len()).unwrap().to_be_bytes();
                let head = [&0x0003_e889_0455_65a9_u64.to_be_bytes()[..], &option.to_be_bytes()].concat();
                theirs.write_all(&[&head, &kind.to_be_bytes()[..], &length, data].concat()).await.unwrap();
            };
            match option {
                10 => tell(4, b"\x00\x00\x00\x01base:allocation").await,
                7 => tell(3, &[0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 1]).await,
                _ => {}
            }
            tell(1, &[]).await;
        }
        let mut request = [0; 28];
        theirs.read_exact(&mut request).await.unwrap();
        theirs.write_all(&reply).await.unwrap();
        // The stream stays open, as a server's would.
        let _ = theirs.read(&mut request).await;
    });
    Session::open(ours, "root", &[ALLOCATION, "x:y", "12345"]).await.unwrap()
}

fn chunk(flags: u16, kind: u16, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    head(flags, kind, 1, length).into_iter().chain(data.iter().copied()).collect()
}

fn head(flags: u16, kind: u16, cookie: u64, length: u32) -> Vec<u8> {
    let magic = 0x668e_33ef_u32.to_be_bytes();
    let (flags, kind) = (flags.to_be_bytes(), kind.to_be_bytes());
    [&magic[..], &flags, &kind, &cookie.to_be_bytes(), &length.to_be_bytes()].concat()
}

fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
    [&offset.to_be_bytes()[..], bytes].concat()
}

fn hole(offset: u64, length: u32) -> Vec<u8> {
    [&offset.to_be_bytes()[..], &length.to_be_bytes()].concat()
}

#[tokio::test]
async fn a_read_is_whole_or_an_error() {
    let done = chunk(1, 0, &[]);
    for (reply, wanted) in [
        (chunk(1, 1, &data(8, b"abcd")), Ok(*b"abcd")),
        ([chunk(0, 1, &data(8, b"ab")), chunk(0, 2, &hole(10, 2)), done.clone()].concat(), Ok(*b"ab\0\0")),
        ([chunk(0, 1, &data(8, b"ab")), done.clone()].concat(), Err("missing")),
        (done.clone(), Err("missing")),
        (chunk(1, 1, &data(9, b"abc")), Err("where it belongs")),
        (chunk(1, 1, &data(8, b"abcde")), Err("too long")),
        ([chunk(0, 1, &data(8, b"abc")), chunk(1, 1, &data(11, b"de"))].concat(), Err("where it belongs")),
        ([chunk(0, 1, &data(8, b"ab")), chunk(1, 1, &data(8, b"cd"))].concat(), Err("where it belongs")),
        (chunk(0, 2, &hole(8, 0)), Err("where it belongs")),
        (chunk(1, 2, &hole(8, u32::MAX)), Err("too long")),
        (chunk(0, 0, &[]), Err("something else")),
        (chunk(1, 5, &[0; 12]), Err("something else")),
        (head(1, 1, 2, 12), Err("no request")),
        (head(1, 0x8001, 1, u32::MAX), Err("too long")),
        (chunk(1, 0x8001, &[0, 0, 0, 28, 0, 0]), Err("error 28")),
    ] {
        let read = answered(reply.clone()).await.read(8, 4).await;
        match (read, wanted) {
            (Ok(read), Ok(wanted)) => assert_eq!(read, wanted),
            (Err(error), Err(wanted)) => assert!(error.to_string().contains(wanted), "{error}: {reply:?}"),
            (read, wanted) => panic!("{read:?} is not {wanted:?}: {reply:?}"),
        }
    }
}

#[tokio::test]
async fn block_statuses_are_of_the_context_that_is_asked_for() {
    let of = |context: u8| [0, 0, 0, context, 0, 0, 2, 0, 0, 0, 0, 3];
    for (reply, wanted) in [
        (chunk(1, 5, &of(1)), Ok(512)),
        ([chunk(0, 5, &of(1)), chunk(1, 0, &[])].concat(), Ok(512)),
        (chunk(1, 5, &of(2)), Err("are missing")),
        (chunk(1, 0, &[]), Err("are missing")),
        ([chunk(0, 5, &of(1)), chunk(0, 5, &of(2))].concat(), Err("does not end")),
        (head(1, 5, 1, u32::MAX), Err("too long")),
        (chunk(1, 1, &data(0, b"a")), Err("something else")),
    ] {
        let told = answered(reply.clone()).await.status(1, 0, 4096).await;
        match (told, wanted) {
            (Ok(told), Ok(length)) => assert_eq!(told, [Status { length, flags: 3 }]),
            (Err(error), Err(wanted)) => assert!(error.to_string().contains(wanted), "{error}: {reply:?}"),
            (told, wanted) => panic!("{told:?} is not {wanted:?}: {reply:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up() {
    let (ours, _theirs) = duplex(64);
    let silent = Session::open(ours, "root", &[]).await.unwrap_err();
    assert!(matches!(silent, NbdError::Silent(_)), "{silent}");
    let mut session = answered(Vec::new()).await;
    let silent = session.read(0, 4).await.unwrap_err();
    assert_eq!(silent.to_string(), "the NBD server says nothing for 120 s");
    let (ours, theirs) = duplex(64);
    drop(theirs);
    let gone = Session::open(ours, "root", &[]).await.unwrap_err();
    assert!(matches!(gone, NbdError::Stream(_)), "{gone}");
}
