//! Messages are what they were after a journey, with their descriptors; bytes that are none are refused.

use std::os::fd::{AsFd, OwnedFd};

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::Error;

fn pair() -> (Socket, Socket) {
    let (one, other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    (one.into(), other.into())
}

fn range() -> impl Strategy<Value = Range> {
    (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(file, start, end)| Range { file, start, end })
}

fn names() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..=DESCRIPTORS)
}

fn terms() -> impl Strategy<Value = Terms> {
    (any::<bool>(), 1..=crate::MAX_PAGES_HELD)
        .prop_map(|(is_watched, pages_held)| Terms { is_watched, pages_held })
}

fn request() -> impl Strategy<Value = Request> {
    let ranges = || prop::collection::vec(range(), 0..50);
    prop_oneof![
        Just(Request::Ring),
        Just(Request::About),
        (any::<u64>(), any::<u64>(), terms(), prop::option::of(ranges()), any::<u32>()).prop_map(
            |(page_size, ring_bytes, terms, ranges, files)| Request::Open {
                page_size,
                ring_bytes,
                terms,
                ranges,
                files
            }
        ),
        (any::<u64>(), terms(), any::<u32>()).prop_map(|(memory_bytes, terms, files)| Request::Found {
            memory_bytes,
            terms,
            files
        }),
        any::<[u8; 16]>().prop_map(|key| Request::Names { key }),
        (any::<[u8; 16]>(), any::<u64>(), any::<u32>()).prop_map(|(key, page_size, files)| Request::Join {
            key,
            page_size,
            files
        }),
        names().prop_map(Request::Files),
        ranges().prop_map(Request::Ranges),
        ranges().prop_map(Request::Cancel),
        Just(Request::Watch),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        (any::<u8>(), ".{0,100}", any::<[u64; 5]>()).prop_map(|(engine, about, statistics)| Reply::About {
            engine,
            about,
            statistics
        }),
        (any::<u8>(), terms()).prop_map(|(pages, terms)| Reply::Channel { pages, terms }),
        (any::<u64>(), any::<u64>())
            .prop_map(|(bytes, before)| Reply::Cancelled(Cancelled { bytes, before })),
        (any::<[u8; 16]>(), any::<u64>()).prop_map(|(key, memory_bytes)| Reply::Pool { key, memory_bytes }),
        (names(), any::<u32>()).prop_map(|(names, of)| Reply::Names { names, of }),
        Just(Reply::Done),
        (any::<bool>(), ".{0,100}").prop_map(|(invalid, text)| Reply::Failed { invalid, text }),
    ]
}

proptest! {
    #[test]
    fn messages_arrive_as_they_were(request in request(), reply in reply(), count in 0..=DESCRIPTORS) {
        let (one, other) = pair();
        let files: Vec<OwnedFd> = (0..count).map(|_| tempfile::tempfile().unwrap().into()).collect();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        one.send(&request, &files).unwrap();
        let received = other.receive::<Request>().unwrap();
        prop_assert_eq!(received.message, request);
        prop_assert_eq!(received.descriptors.len(), count);
        other.send(&reply, &[]).unwrap();
        prop_assert_eq!(one.receive::<Reply>().unwrap().message, reply);
    }

    /// A byte of a message is another, one is missing, or one too many is there.
    #[test]
    fn what_is_no_message_is_refused(request in request(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut packet = request.encode();
        packet.push(byte);
        prop_assert!(Request::decode(&packet).is_err());
        packet.truncate(at.index(packet.len() - 1));
        prop_assert!(Request::decode(&packet).is_err());
        let mut packet = request.encode();
        let at = at.index(packet.len());
        packet[at] = byte;
        arbitrary_packet(&packet);
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(mut packet in prop::collection::vec(any::<u8>(), 0..400), valid in any::<bool>()) {
        if let (true, Some(version)) = (valid, packet.first_mut()) {
            *version = VERSION;
        }
        arbitrary_packet(&packet);
    }
}

const TERMS: Terms = Terms { is_watched: false, pages_held: crate::MAX_PAGES_HELD };

/// A number of pages that no client may hold is no message.
#[test]
fn limits_are_checked_when_a_message_is_read() {
    for (pages_held, is_right) in
        [(0, false), (1, true), (TERMS.pages_held, true), (TERMS.pages_held + 1, false)]
    {
        let request = Request::Found { memory_bytes: 1, terms: Terms { pages_held, ..TERMS }, files: 1 };
        assert_eq!(Request::decode(&request.encode()).is_ok(), is_right, "{pages_held}");
    }
}

#[test]
fn the_longest_messages_fit() {
    let (one, other) = pair();
    let range = Range { file: 1, start: 2, end: u64::MAX };
    let longest = [
        Request::Files(vec![vec![b'n'; NAME]; DESCRIPTORS]),
        Request::Open {
            page_size: 1,
            ring_bytes: 2,
            terms: TERMS,
            ranges: Some(vec![range; RANGES]),
            files: 3,
        },
    ];
    for request in longest {
        one.send(&request, &[]).unwrap();
        assert_eq!(other.receive::<Request>().unwrap().message, request);
    }
    assert!(one.send(&Request::Files(vec![vec![b'n'; MESSAGE]]), &[]).is_err());
}

#[test]
fn who_is_gone_is_noticed() {
    let (one, other) = pair();
    assert!(one.is_alive());
    drop(other);
    assert!(!one.is_alive());
    assert!(matches!(one.receive::<Reply>(), Err(Error::Gone)));
    assert!(matches!(one.send(&Request::About, &[]), Err(Error::Gone)));
    one.send_now(&Request::Ring);
}
