//! The messages that clients and the daemon exchange over a Unix socket of packets, beside the boards.
//!
//! One connection has one object of its client: a channel, a pool or a reader. It ends with the connection. A packet
//! is the version of the protocol, the kind of the message, and its fields ([`bytes`]). Descriptors go with packets
//! ([`socket`]): files to the daemon, a board and frames back. Lengths are limited, so that reading a packet takes one
//! buffer. The receiver trusts no field: a malformed message ends the connection.

mod bytes;
mod guarded;
mod socket;
#[cfg(test)]
pub mod tests;

pub use bytes::malformed;
pub use socket::{Received, Socket};

use crate::Result;
use crate::board::StampWords;
use crate::plan::Range;
use crate::scan::check_pages_held;
use crate::service::Terms;
use crate::worker::Cancelled;
use bytes::{Reader, Writer};

/// The protocol's version. Boards have their own.
pub const VERSION: u8 = 3;

/// Maximum number of bytes of a packet.
pub const MESSAGE: usize = 64 << 10;
/// Maximum number of descriptors in a packet, with a name of at most 4 KiB each.
pub const DESCRIPTORS: usize = 8;
/// Maximum number of ranges in a packet.
pub const RANGES: usize = 2048;
/// Maximum length of a file name.
const NAME: usize = 4096;

/// A message from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The worker wakes the control loop. No answer.
    Ring,
    /// The client asks for a description of the daemon. → [`Reply::About`]
    About,
    /// The client opens a channel of files, which follow. → [`Reply::Channel`]
    Open {
        page_size: u64,
        ring_bytes: u64,
        terms: Terms,
        /// None: all of every file. More than [`RANGES`] follow in [`Request::Ranges`] of their own.
        ranges: Option<Vec<Range>>,
        files: u32,
    },
    /// The client creates a pool for files, which follow. → [`Reply::Pool`]
    Found { memory_bytes: u64, terms: Terms, files: u32 },
    /// The client asks for the names of a pool's files. → [`Reply::Names`], until all that it announces have come
    Names { key: [u8; 16] },
    /// The client joins a pool; the files follow as a proof that the client can read them. → [`Reply::Channel`]
    Join { key: [u8; 16], page_size: u64, files: u32 },
    /// Files, with descriptors and with their names, if they have any. No answer.
    Files(Vec<Vec<u8>>),
    /// The client adds ranges to the connection's channel. → [`Reply::Done`]
    Ranges(Vec<Range>),
    /// The client cancels ranges of the connection's channel. → [`Reply::Cancelled`]
    Cancel(Vec<Range>),
    /// The client requests a descriptor that is readable when the connection's channel has a page. → [`Reply::Done`], with the
    /// descriptor
    Watch,
    /// The client opens a reader of a file, which comes as a descriptor. → [`Reply::Reader`]
    Reader,
    /// The connection's reader fetches a range. → [`Reply::Fetched`] or [`Reply::NotFetched`], in any order
    Fetch { fetch: u32, start: u64, len: u32 },
    /// The connection's reader releases a range, or stops waiting for it. No answer.
    Release { fetch: u32 },
}

/// A message from the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The daemon's engine, and its statistics.
    About { engine: u8, about: String, statistics: [u64; 5] },
    /// A channel, with the descriptors of its board and its frames.
    Channel { pages: u8, terms: Terms },
    /// A pool.
    Pool { key: [u8; 16], memory_bytes: u64 },
    /// Some names of the files of a pool, and the total number of names.
    Names { names: Vec<Vec<u8>>, of: u32 },
    /// The request is done.
    Done,
    /// The number of cancelled bytes, and the number of the chunk before which the client skips them.
    Cancelled(Cancelled),
    /// A reader, with the version of its file.
    Reader { identity: [u64; 2], stamp: StampWords, unit: u32 },
    /// A range has arrived. The memory of the segment comes as a descriptor with its first range.
    Fetched { fetch: u32, segment: u32, at: u64 },
    /// A range cannot be read.
    NotFetched { fetch: u32, error: u32 },
    /// The request failed. `invalid`: the request itself is wrong.
    Failed { invalid: bool, text: String },
}

/// A message that a packet can hold.
pub trait Message: Sized {
    /// Writes the message as a packet.
    fn encode(&self) -> Vec<u8>;

    /// Reads the message of a packet.
    ///
    /// # Errors
    /// The packet is not a valid message.
    fn decode(packet: &[u8]) -> Result<Self>;
}

impl Message for Request {
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u8(VERSION);
        match self {
            Self::Ring => to.u8(0),
            Self::About => to.u8(1),
            Self::Open { page_size, ring_bytes, terms, ranges, files } => {
                to.u8(2).u64(*page_size).u64(*ring_bytes);
                write_terms(&mut to, *terms).u32(*files).u8(ranges.is_some().into());
                write_ranges(&mut to, ranges.as_deref().unwrap_or_default())
            }
            Self::Found { memory_bytes, terms, files } => {
                write_terms(to.u8(3).u64(*memory_bytes), *terms).u32(*files)
            }
            Self::Names { key } => to.u8(4).raw(key),
            Self::Join { key, page_size, files } => to.u8(5).raw(key).u64(*page_size).u32(*files),
            Self::Files(names) => write_names(to.u8(6), names),
            Self::Ranges(ranges) => write_ranges(to.u8(7), ranges),
            Self::Cancel(ranges) => write_ranges(to.u8(8), ranges),
            Self::Watch => to.u8(9),
            Self::Reader => to.u8(10),
            Self::Fetch { fetch, start, len } => to.u8(11).u32(*fetch).u64(*start).u32(*len),
            Self::Release { fetch } => to.u8(12).u32(*fetch),
        }
        .finish()
    }

    fn decode(packet: &[u8]) -> Result<Self> {
        let (kind, mut from) = begin(packet)?;
        let message = match kind {
            0 => Self::Ring,
            1 => Self::About,
            2 => {
                let (page_size, ring_bytes) = (from.u64()?, from.u64()?);
                let (terms, files) = (read_terms(&mut from)?, from.u32()?);
                let some = from.u8()? != 0;
                let ranges = read_ranges(&mut from)?;
                Self::Open { page_size, ring_bytes, terms, ranges: some.then_some(ranges), files }
            }
            3 => Self::Found { memory_bytes: from.u64()?, terms: read_terms(&mut from)?, files: from.u32()? },
            4 => Self::Names { key: from.raw()? },
            5 => Self::Join { key: from.raw()?, page_size: from.u64()?, files: from.u32()? },
            6 => Self::Files(read_names(&mut from)?),
            7 => Self::Ranges(read_ranges(&mut from)?),
            8 => Self::Cancel(read_ranges(&mut from)?),
            9 => Self::Watch,
            10 => Self::Reader,
            11 => Self::Fetch { fetch: from.u32()?, start: from.u64()?, len: from.u32()? },
            12 => Self::Release { fetch: from.u32()? },
            _ => return Err(malformed("is of no kind that there is")),
        };
        from.finish()?;
        Ok(message)
    }
}

impl Message for Reply {
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u8(VERSION);
        match self {
            Self::About { engine, about, statistics } => {
                to.u8(0).u8(*engine).bytes(about.as_bytes());
                statistics.iter().fold(&mut to, |to, number| to.u64(*number))
            }
            Self::Channel { pages, terms } => write_terms(to.u8(1).u8(*pages), *terms),
            Self::Pool { key, memory_bytes } => to.u8(2).raw(key).u64(*memory_bytes),
            Self::Names { names, of } => write_names(to.u8(3).u32(*of), names),
            Self::Done => to.u8(4),
            Self::Cancelled(Cancelled { bytes, before }) => to.u8(6).u64(*bytes).u64(*before),
            Self::Reader { identity, stamp, unit } => {
                to.u8(7).u32(*unit);
                identity.iter().chain(stamp).fold(&mut to, |to, word| to.u64(*word))
            }
            Self::Fetched { fetch, segment, at } => to.u8(8).u32(*fetch).u32(*segment).u64(*at),
            Self::NotFetched { fetch, error } => to.u8(9).u32(*fetch).u32(*error),
            Self::Failed { invalid, text } => to.u8(5).u8((*invalid).into()).bytes(text.as_bytes()),
        }
        .finish()
    }

    fn decode(packet: &[u8]) -> Result<Self> {
        let (kind, mut from) = begin(packet)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let message = match kind {
            0 => {
                let (engine, about) = (from.u8()?, text(from.bytes()?));
                let mut statistics = [0; 5];
                for number in &mut statistics {
                    *number = from.u64()?;
                }
                Self::About { engine, about, statistics }
            }
            1 => Self::Channel { pages: from.u8()?, terms: read_terms(&mut from)? },
            2 => Self::Pool { key: from.raw()?, memory_bytes: from.u64()? },
            3 => {
                let of = from.u32()?;
                Self::Names { names: read_names(&mut from)?, of }
            }
            4 => Self::Done,
            5 => Self::Failed { invalid: from.u8()? != 0, text: text(from.bytes()?) },
            7 => {
                let unit = from.u32()?;
                let mut words = [0; 7];
                for word in &mut words {
                    *word = from.u64()?;
                }
                let [device, inode, stamp @ ..] = words;
                Self::Reader { identity: [device, inode], stamp, unit }
            }
            8 => Self::Fetched { fetch: from.u32()?, segment: from.u32()?, at: from.u64()? },
            9 => Self::NotFetched { fetch: from.u32()?, error: from.u32()? },
            6 => Self::Cancelled(Cancelled { bytes: from.u64()?, before: from.u64()? }),
            _ => return Err(malformed("is of no kind that there is")),
        };
        from.finish()?;
        Ok(message)
    }
}

fn write_terms(to: &mut Writer, terms: Terms) -> &mut Writer {
    to.u8((!terms.is_watched).into()).u32(terms.pages_held as u32)
}

fn read_terms(from: &mut Reader<'_>) -> Result<Terms> {
    let is_watched = match from.u8()? {
        0 => true,
        1 => false,
        _ => return Err(malformed("has flags that are none")),
    };
    let pages_held = from.u32()? as usize;
    check_pages_held(pages_held)?;
    Ok(Terms { is_watched, pages_held })
}

fn begin(packet: &[u8]) -> Result<(u8, Reader<'_>)> {
    if packet.len() > MESSAGE {
        return Err(malformed("is too long"));
    }
    let mut from = Reader::new(packet);
    if from.u8()? != VERSION {
        return Err(malformed("is of another version of this protocol: use one version of bedplate"));
    }
    Ok((from.u8()?, from))
}

fn write_ranges<'a>(to: &'a mut Writer, ranges: &[Range]) -> &'a mut Writer {
    to.list(ranges, |to, range| {
        to.u32(range.file).u64(range.start).u64(range.end);
    })
}

fn read_ranges(from: &mut Reader<'_>) -> Result<Vec<Range>> {
    let ranges =
        from.list(20, |from| Ok(Range { file: from.u32()?, start: from.u64()?, end: from.u64()? }))?;
    if ranges.len() > RANGES { Err(malformed("has too many ranges")) } else { Ok(ranges) }
}

fn write_names<'a>(to: &'a mut Writer, names: &[Vec<u8>]) -> &'a mut Writer {
    to.list(names, |to, name| {
        to.bytes(name);
    })
}

fn read_names(from: &mut Reader<'_>) -> Result<Vec<Vec<u8>>> {
    let names = from.list(4, |from| Ok(from.bytes()?.to_vec()))?;
    if names.len() > DESCRIPTORS || names.iter().any(|name| name.len() > NAME) {
        return Err(malformed("has too many names, or too long ones"));
    }
    Ok(names)
}

/// Decodes a packet, for the fuzzer and the tests: a decoded message is encoded to the same bytes.
#[cfg(any(test, fuzzing))]
pub fn arbitrary_packet(packet: &[u8]) {
    if let Ok(request) = Request::decode(packet) {
        assert_eq!(Request::decode(&request.encode()).expect("it is one"), request);
    }
    if let Ok(reply) = Reply::decode(packet) {
        let packet = reply.encode();
        // Text that is not UTF-8 becomes longer.
        if packet.len() <= MESSAGE {
            assert_eq!(Reply::decode(&packet).expect("it is one"), reply);
        }
    }
}
