//! Attachments of programs to events of the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{self, bpf_attach_type};

use super::Program;
use crate::{Error, Result};

/// A program that is attached. Dropping it detaches the program, and so does the end of the process. Runs that have begun end normally.
pub(crate) struct Link(OwnedFd);

impl Link {
    /// Attaches a program. `interface` is the index of a network interface, or 0 for a tracepoint.
    pub fn create(program: &Program, interface: u32, kind: bpf_attach_type) -> Result<Link> {
        let program = program.as_fd().as_raw_fd();
        // SAFETY: the descriptor is open, and the function accepts no options.
        let link = unsafe { libbpf_sys::bpf_link_create(program, interface as i32, kind, std::ptr::null()) };
        if link < 0 {
            return Err(failed("cannot attach the handler", link));
        }
        // SAFETY: the kernel has returned a new descriptor, which nothing else owns.
        Ok(Link(unsafe { OwnedFd::from_raw_fd(link) }))
    }

    /// Replaces the attached program by another one of the same kind. No event is missed. The kernel refuses this for tracepoints.
    pub fn update(&self, program: &Program) -> Result<()> {
        let program = program.as_fd().as_raw_fd();
        // SAFETY: both descriptors are open, and the function accepts no options.
        let done = unsafe { libbpf_sys::bpf_link_update(self.0.as_raw_fd(), program, std::ptr::null()) };
        if done < 0 { Err(failed("cannot replace the attached handler", done)) } else { Ok(()) }
    }
}

impl Link {
    /// Whether an update has failed because the interface is not there any more.
    pub fn is_cut(error: &Error) -> bool {
        matches!(error, Error::Io { source, .. } if source.raw_os_error() == Some(libc::ENOLINK))
    }
}

impl From<OwnedFd> for Link {
    /// `link` is the descriptor of a link. The kernel refuses to use another one.
    fn from(link: OwnedFd) -> Link {
        Link(link)
    }
}

impl From<Link> for OwnedFd {
    fn from(link: Link) -> OwnedFd {
        link.0
    }
}

fn failed(what: &str, error: i32) -> Error {
    Error::io(what, io::Error::from_raw_os_error(error.unsigned_abs() as i32))
}
