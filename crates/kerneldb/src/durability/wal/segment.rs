//! Reading of segments frame by frame, with bounded memory, and classification of bytes that are not a
//! frame.

use std::io;

use super::frame::{FRAME_HEADER, FrameHeader, SEGMENT_HEADER, SegmentHeader, check_payload, salt};
use crate::durability::disk::DiskFile;

/// Bytes read at once in the search for frames behind damage.
const SCAN: usize = 256 << 10;

/// An open segment and the position in it. Only the payload of one frame is held in memory.
pub(crate) struct SegmentReader {
    file: Box<dyn DiskFile>,
    len: u64,
    offset: u64,
    payload: Vec<u8>,
    seq: u64,
    salt: u32,
}

/// The item at the current position.
pub(crate) enum Next {
    /// An intact frame; [`SegmentReader::payload`] has its payload.
    Frame(FrameHeader),
    /// The end of the file, or bytes that are not an intact frame.
    Other,
}

/// The bytes behind a position that has no frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    /// The first intact frame of this segment behind it: position and header.
    pub(crate) frame: Option<(u64, FrameHeader)>,
    /// Highest durable timestamp in the intact frames behind it.
    pub(crate) durable_ts: u64,
    /// Bytes up to the last one that is not zero.
    pub(crate) used: u64,
}

impl SegmentReader {
    /// `seq` is the number in the file's name; frames of other segments or databases do not count.
    pub(crate) fn new(
        file: Box<dyn DiskFile>,
        seq: u64,
        database_id: &[u8; 16],
    ) -> io::Result<SegmentReader> {
        let len = file.len()?;
        let offset = SEGMENT_HEADER as u64;
        Ok(SegmentReader { file, len, offset, payload: Vec::new(), seq, salt: salt(database_id) })
    }

    /// The segment's header; the error text describes the fault.
    pub(crate) fn header(&self) -> io::Result<Result<SegmentHeader, String>> {
        let mut bytes = [0; SEGMENT_HEADER];
        let n = self.file.read_at(0, &mut bytes)?;
        Ok(SegmentHeader::decode(&bytes[..n]))
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Continues at another position.
    pub(crate) fn seek(&mut self, offset: u64) {
        self.offset = offset;
    }

    pub(crate) fn file_len(&self) -> u64 {
        self.len
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Makes the file's contents and size durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }

    /// Cuts the file.
    pub(crate) fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }

    /// Reads the frame at the current position and moves behind it; stays if there is none.
    pub(crate) fn next(&mut self) -> io::Result<Next> {
        match self.frame_at(self.offset)? {
            Some(header) => {
                self.offset += header.frame_len();
                Ok(Next::Frame(header))
            }
            None => Ok(Next::Other),
        }
    }

    /// The intact frame of this segment at `offset`, if there is one; its payload is read.
    fn frame_at(&mut self, offset: u64) -> io::Result<Option<FrameHeader>> {
        let mut bytes = [0; FRAME_HEADER];
        let n = self.file.read_at(offset, &mut bytes)?;
        let Some(header) = FrameHeader::decode(&bytes[..n], self.salt) else { return Ok(None) };
        if header.seq != self.seq || offset + header.frame_len() > self.len {
            return Ok(None);
        }
        self.payload.resize(header.payload as usize, 0);
        let n = self.file.read_at(offset + FRAME_HEADER as u64, &mut self.payload)?;
        Ok((n == self.payload.len() && check_payload(&header, &self.payload)).then_some(header))
    }

    /// Reads everything behind the current position (where no acceptable frame is).
    pub(crate) fn rest(&mut self) -> io::Result<Rest> {
        let start = self.offset;
        let mut rest = Rest::default();
        let mut at = start;
        let mut chunk = vec![0; SCAN];
        'chunks: while at < self.len {
            let n = self.file.read_at(at, &mut chunk)?;
            if n == 0 {
                break;
            }
            if let Some(last) = chunk[..n].iter().rposition(|&b| b != 0) {
                rest.used = rest.used.max(at + last as u64 + 1 - start);
            } else {
                at += n as u64;
                continue;
            }
            // Frames are at multiples of 8, and so are the chunks.
            for inner in (0..n).step_by(8) {
                if !FrameHeader::maybe(&chunk[inner..n]) {
                    continue;
                }
                let mut place = at + inner as u64;
                let mut found = false;
                while let Some(header) = self.frame_at(place)? {
                    rest.frame.get_or_insert((place, header));
                    rest.durable_ts = rest.durable_ts.max(header.durable_ts);
                    place += header.frame_len();
                    found = true;
                }
                if found {
                    at = place;
                    rest.used = rest.used.max(at.min(self.len).saturating_sub(start));
                    continue 'chunks;
                }
            }
            at += n as u64;
        }
        Ok(rest)
    }
}
