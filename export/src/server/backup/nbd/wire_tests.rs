use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn fixed<const N: usize>(text: &str) -> [u8; N] {
    hex(text).try_into().unwrap()
}

#[test]
fn messages_of_the_client_are_the_protocols() {
    assert_eq!(structured_reply(), hex("49484156454f5054 00000008 00000000"));
    assert_eq!(go("root"), hex("49484156454f5054 00000007 0000000a 00000004 726f6f74 0000"));
    let contexts = set_contexts("root", &["base:allocation", "q"]);
    assert_eq!(
        contexts,
        hex("49484156454f5054 0000000a 00000024 00000004 726f6f74 00000002 \
             0000000f 626173653a616c6c6f636174696f6e 00000001 71")
    );
    assert_eq!(
        request(command::READ, 3, 0x0102_0304_0506, 512),
        hex("25609513 0000 0000 0000000000000003 0000010203040506 00000200")
    );
    assert_eq!(request(command::DISCONNECT, 4, 0, 0).len(), 28);
}

#[test]
fn of_the_greeting_the_new_handshake_is_taken_alone() {
    for (text, flags) in [
        ("4e42444d41474943 49484156454f5054 0003", Some(3)),
        ("4e42444d41474943 49484156454f5054 0001", Some(1)),
        // Flags of later versions are not answered.
        ("4e42444d41474943 49484156454f5054 ff03", Some(3)),
        ("4e42444d41474943 49484156454f5054 0002", None),
        ("4e42444d41474943 0000420281861253 0003", None),
        ("485454502f312e31 2034303020426164 0003", None),
    ] {
        let answer = greeting(&fixed(text)).ok().map(u32::from_be_bytes);
        assert_eq!(answer, flags, "{text}");
    }
}

#[test]
fn replies_to_options_are_of_the_option_and_bounded() {
    use OptionReply::{Acknowledged, Context, Info, Other, Refused};
    for (text, wanted) in [
        ("0003e889045565a9 00000007 00000001 00000000", Some((Acknowledged, 0))),
        ("0003e889045565a9 00000007 00000003 0000000c", Some((Info, 12))),
        ("0003e889045565a9 00000007 00000004 00002000", Some((Context, 8192))),
        ("0003e889045565a9 00000007 00000002 00000000", Some((Other, 0))),
        ("0003e889045565a9 00000007 80000006 00000005", Some((Refused(0x8000_0006), 5))),
        ("0003e889045565a9 00000008 00000001 00000000", None),
        ("49484156454f5054 00000007 00000001 00000000", None),
        ("0003e889045565a9 00000007 00000003 00002001", None),
        ("0003e889045565a9 00000007 00000003 ffffffff", None),
    ] {
        assert_eq!(option_reply(&fixed(text), option::GO).ok(), wanted, "{text}");
    }
}

#[test]
fn what_is_told_of_an_export_is_read() {
    assert_eq!(size(&hex("0000 0000000000100000 008f")).unwrap(), Some(1 << 20));
    assert_eq!(size(&hex("0003 00000001 00001000 02000000")).unwrap(), None);
    size(&hex("0000 00000000")).unwrap_err();
    size(&[]).unwrap_err();
    assert_eq!(context(&hex("00000002 713a78")).unwrap(), (2, "q:x".to_owned()));
    context(&hex("00000002 ff")).unwrap_err();
    context(&hex("0000")).unwrap_err();
}

#[test]
fn chunks_are_of_the_request_and_of_a_known_kind() {
    for (text, wanted) in [
        ("668e33ef 0001 0000 0000000000000007", Some((Chunk::None, true))),
        ("668e33ef 0000 0001 0000000000000007", Some((Chunk::Data, false))),
        ("668e33ef 0001 0002 0000000000000007", Some((Chunk::Hole, true))),
        // A flag that is not known is passed over.
        ("668e33ef 8001 0005 0000000000000007", Some((Chunk::Status, true))),
        ("668e33ef 0001 8001 0000000000000007", Some((Chunk::Error, true))),
        ("668e33ef 0001 8fff 0000000000000007", Some((Chunk::Error, true))),
        ("668e33ef 0001 0003 0000000000000007", None),
        ("668e33ef 0001 0001 0000000000000008", None),
        ("67446698 0000 0000 0000000000000007", None),
        ("25609513 0000 0000 0000000000000007", None),
    ] {
        assert_eq!(chunk(&fixed(text), 7).ok(), wanted, "{text}");
    }
    let simple = chunk(&fixed("67446698 0000 0016 0000000000000007"), 7).unwrap_err();
    assert!(matches!(simple, NbdError::Failed { code: 22, .. }), "{simple}");
}

#[test]
fn errors_are_told_in_the_servers_words() {
    let told = failure(&hex("00000005 0003 626164")).unwrap();
    assert_eq!(told.to_string(), "the NBD server fails: bad (error 5)");
    // Where the place of the error follows, it is passed over.
    let told = failure(&hex("0000001c 0000 0000000000000200")).unwrap();
    assert!(matches!(told, NbdError::Failed { code: 28, .. }), "{told}");
    failure(&hex("00000005 0004 626164")).unwrap_err();
    failure(&hex("00000005")).unwrap_err();
    let long = "\u{1b}[1m".to_owned() + &"x".repeat(10_000);
    let short = words(long.as_bytes());
    assert!(short.len() == MOST_LETTERS && !short.contains('\u{1b}'), "{short}");
}

#[test]
fn block_statuses_are_read() {
    let (context, all) = statuses(&hex("00000001 00010000 00000003 00000200 00000000")).unwrap();
    let parts = [Status { length: 65_536, flags: 3 }, Status { length: 512, flags: 0 }];
    assert_eq!((context, all.as_slice()), (1, &parts[..]));
    for text in ["", "0000", "00000001", "00000001 00010000", "00000001 00000000 00000000"] {
        statuses(&hex(text)).unwrap_err();
    }
    assert_eq!(hole(fixed("0000000000010000 00000200")), (65_536, 512));
}

#[test]
fn lengths_are_bounded() {
    assert_eq!(bounded(5, 5).unwrap(), 5);
    bounded(6, 5).unwrap_err();
}
