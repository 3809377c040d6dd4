//! Files that clients send, and the limit on their size.

use std::os::fd::OwnedFd;

use crate::plan::Range;
use crate::source::File;
use crate::wire::{Request, Socket, malformed};
use crate::{Error, Result};

/// Largest number of bytes in one request. It is limited because other clients wait while the control loop plans them.
const AT_ONCE: u64 = 4 << 40;

/// Receives the files that a request announced, and their names.
pub fn receive(socket: &Socket, count: u32, most: u32) -> Result<(Vec<File>, Vec<Vec<u8>>)> {
    if count > most {
        return Err(Error::Invalid(format!("{count} files: at most {most} at a time")));
    }
    let (mut files, mut names) = (Vec::new(), Vec::new());
    while files.len() < count as usize {
        let received = socket.receive::<Request>()?;
        let Request::Files(more) = received.message else {
            return Err(malformed("is not that of files, which should follow"));
        };
        let descriptors = received.descriptors;
        if more.is_empty() || more.len() != descriptors.len() || files.len() + more.len() > count as usize {
            return Err(malformed("has other files than it says"));
        }
        for (descriptor, name) in descriptors.into_iter().zip(more) {
            files.push(file(descriptor, files.len())?);
            names.push(name);
        }
    }
    Ok((files, names))
}

fn file(descriptor: OwnedFd, number: usize) -> Result<File> {
    File::handed_over(descriptor).map_err(|error| {
        Error::Invalid(format!("file {number} of the scan cannot be scanned by another process: {error}"))
    })
}

/// Refuses a request whose plan would take the service too long.
pub fn check_size(files: &[File], ranges: Option<&[Range]>) -> Result<()> {
    let bytes = match ranges {
        None => files.iter().fold(0u64, |sum, file| sum.saturating_add(file.size)),
        Some(ranges) => {
            ranges.iter().fold(0u64, |sum, range| sum.saturating_add(range.end.saturating_sub(range.start)))
        }
    };
    if bytes > AT_ONCE {
        return Err(Error::Invalid(format!("{bytes} bytes: at most {AT_ONCE} at a time")));
    }
    Ok(())
}
