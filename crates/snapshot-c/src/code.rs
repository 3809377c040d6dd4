//! The results of functions: a code, and for the last error of each thread a text and an error number.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};

use bedplate_c_support::input::Wrong;
use bedplate_c_support::last::{self, Failure};
use bedplate_c_support::table::Bad;
use bedplate_snapshot::Error;

use bp_snapshot_code::*;

/// The results of functions. Errors are negative.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bp_snapshot_code {
    /// Success.
    BP_SNAPSHOT_OK = 0,
    /// The task has not ended yet.
    BP_SNAPSHOT_NOT_YET = 1,
    /// There may be more ranges than the array has room for.
    BP_SNAPSHOT_MORE = 2,

    /// The snapshot was abandoned, because there was no memory for pages that it shared with its owner. Bytes that were read from
    /// it do not count. The memory itself is undamaged.
    BP_SNAPSHOT_ERROR_INCOMPLETE = -1,
    /// The task did not end normally: its process was killed, or exited by itself.
    BP_SNAPSHOT_ERROR_TASK = -2,

    /// A system call failed: bp_snapshot_error_number() gives the error.
    BP_SNAPSHOT_ERROR_SYSTEM = -16,
    /// The engine does not work on this machine, or does not support the request.
    BP_SNAPSHOT_ERROR_UNAVAILABLE = -17,
    /// The memory has its maximum size.
    BP_SNAPSHOT_ERROR_NO_ROOM = -18,
    /// The maximum number of snapshots is active. Wait until one ends.
    BP_SNAPSHOT_ERROR_TOO_MANY = -19,
    /// There are too many handles.
    BP_SNAPSHOT_ERROR_FULL = -20,
    /// The memory was created without BP_SNAPSHOT_TRACK_CHANGES.
    BP_SNAPSHOT_ERROR_NOT_TRACKED = -21,
    /// The bookmark does not belong to an earlier snapshot of this memory, so all of the memory may have changed since then.
    BP_SNAPSHOT_ERROR_NOT_EARLIER = -22,
    /// A snapshot of a snapshot is not possible.
    BP_SNAPSHOT_ERROR_OF_A_SNAPSHOT = -23,

    /// The request is not possible.
    BP_SNAPSHOT_ERROR_INVALID = -32,
    /// A pointer is NULL that must not be NULL.
    BP_SNAPSHOT_ERROR_NULL = -33,
    /// The handle was never given out, or is of another kind.
    BP_SNAPSHOT_ERROR_HANDLE = -34,
    /// The handle was closed.
    BP_SNAPSHOT_ERROR_CLOSED = -35,
    /// The handle belongs to the parent process.
    BP_SNAPSHOT_ERROR_FORKED = -36,
    /// The memory is not a heap.
    BP_SNAPSHOT_ERROR_NOT_A_HEAP = -37,
    /// The memory is a heap, which grows by itself.
    BP_SNAPSHOT_ERROR_A_HEAP = -38,
    /// The pointer is not a block of this heap: the block was freed before, or the bytes in front of it were overwritten.
    BP_SNAPSHOT_ERROR_BLOCK = -39,
    /// The bookmark was not made by this process.
    BP_SNAPSHOT_ERROR_BOOKMARK = -40,
    /// An error within the library. A handle in which this happens can only be closed.
    BP_SNAPSHOT_ERROR_INTERNAL = -64,
}

impl bp_snapshot_code {
    const ALL: [(Self, &CStr); 23] = [
        (BP_SNAPSHOT_OK, c"done"),
        (BP_SNAPSHOT_NOT_YET, c"the task has not ended yet"),
        (BP_SNAPSHOT_MORE, c"there may be more ranges"),
        (BP_SNAPSHOT_ERROR_INCOMPLETE, c"the snapshot was given up for lack of memory"),
        (BP_SNAPSHOT_ERROR_TASK, c"the task did not end"),
        (BP_SNAPSHOT_ERROR_SYSTEM, c"a system call failed"),
        (BP_SNAPSHOT_ERROR_UNAVAILABLE, c"the engine does not work here, or cannot do this"),
        (BP_SNAPSHOT_ERROR_NO_ROOM, c"the memory is as large as it can become"),
        (BP_SNAPSHOT_ERROR_TOO_MANY, c"as many snapshots are active as there can be"),
        (BP_SNAPSHOT_ERROR_FULL, c"there are too many handles"),
        (BP_SNAPSHOT_ERROR_NOT_TRACKED, c"the memory keeps no track of its changes"),
        (BP_SNAPSHOT_ERROR_NOT_EARLIER, c"the bookmark is not of an earlier snapshot of this memory"),
        (BP_SNAPSHOT_ERROR_OF_A_SNAPSHOT, c"there are no snapshots of snapshots"),
        (BP_SNAPSHOT_ERROR_INVALID, c"what was asked for cannot be"),
        (BP_SNAPSHOT_ERROR_NULL, c"a pointer is NULL that must not be"),
        (BP_SNAPSHOT_ERROR_HANDLE, c"there is no such handle"),
        (BP_SNAPSHOT_ERROR_CLOSED, c"the handle was closed"),
        (BP_SNAPSHOT_ERROR_FORKED, c"the handle is the parent process's"),
        (BP_SNAPSHOT_ERROR_NOT_A_HEAP, c"the memory is not a heap"),
        (BP_SNAPSHOT_ERROR_A_HEAP, c"the memory is a heap"),
        (BP_SNAPSHOT_ERROR_BLOCK, c"this is no block of this heap"),
        (BP_SNAPSHOT_ERROR_BOOKMARK, c"this is not a bookmark that this process has got"),
        (BP_SNAPSHOT_ERROR_INTERNAL, c"something went wrong within the library"),
    ];
}

/// Returns the meaning of a code as text, never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_strerror(code: c_int) -> *const c_char {
    let text = bp_snapshot_code::ALL.iter().find(|(known, _)| *known as c_int == code).map(|(_, text)| *text);
    text.unwrap_or(c"no such code").as_ptr()
}

/// The reason why a call fails.
#[derive(Debug)]
pub struct Refusal {
    pub code: bp_snapshot_code,
    number: c_int,
    text: Cow<'static, str>,
}

impl Refusal {
    pub fn new(code: bp_snapshot_code, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, number: 0, text: text.into() }
    }

    pub fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(BP_SNAPSHOT_ERROR_INVALID, text)
    }

    pub fn null(what: &'static str) -> Self {
        Self::new(BP_SNAPSHOT_ERROR_NULL, what)
    }

    pub fn no_memory(what: String) -> Self {
        let text = format!("no memory for {what}").into();
        Self { code: BP_SNAPSHOT_ERROR_SYSTEM, number: libc::ENOMEM, text }
    }

    pub fn full<T>(_: T) -> Self {
        Self::new(BP_SNAPSHOT_ERROR_FULL, "there are too many handles of this kind: close some")
    }
}

impl From<Wrong> for Refusal {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Null(what) => Self::null(what),
            Wrong::Invalid(text) => Self::invalid(text),
        }
    }
}

impl From<Bad> for Refusal {
    fn from(bad: Bad) -> Self {
        let (code, text) = match bad {
            Bad::Unknown => (BP_SNAPSHOT_ERROR_HANDLE, "there never was such a handle, or not of this kind"),
            Bad::Closed => (BP_SNAPSHOT_ERROR_CLOSED, "the handle was closed"),
            Bad::Forked => (
                BP_SNAPSHOT_ERROR_FORKED,
                "the handle is the parent process's: this process makes memories and snapshots of its own",
            ),
            Bad::Broken | Bad::Busy => {
                (BP_SNAPSHOT_ERROR_INTERNAL, "something went wrong with this handle before: close it")
            }
        };
        Self::new(code, text)
    }
}

/// Names of the Rust interface in reasons, with those of this interface.
const NAMES: [(&str, &str); 3] = [
    ("Memory::spawn", "bp_snapshot_spawn"),
    ("leave out Builder::reserve", "leave bp_snapshot_options.reserve 0"),
    ("Builder::", "bp_snapshot_options."),
];

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (code, number) = match &error {
            Error::System { source, .. } => (BP_SNAPSHOT_ERROR_SYSTEM, source.raw_os_error()),
            Error::Unavailable { .. } => (BP_SNAPSHOT_ERROR_UNAVAILABLE, 0),
            Error::Size { .. } => (BP_SNAPSHOT_ERROR_INVALID, 0),
            Error::Full { .. } => (BP_SNAPSHOT_ERROR_NO_ROOM, 0),
            Error::TooManySnapshots { .. } => (BP_SNAPSHOT_ERROR_TOO_MANY, 0),
            Error::NotTracked => {
                let text =
                    "this memory keeps no track of its changes: create it with BP_SNAPSHOT_TRACK_CHANGES";
                return Self::new(BP_SNAPSHOT_ERROR_NOT_TRACKED, text);
            }
            Error::NotEarlier => (BP_SNAPSHOT_ERROR_NOT_EARLIER, 0),
            Error::OfASnapshot => (BP_SNAPSHOT_ERROR_OF_A_SNAPSHOT, 0),
            Error::Incomplete => (BP_SNAPSHOT_ERROR_INCOMPLETE, 0),
            Error::Task(_) => (BP_SNAPSHOT_ERROR_TASK, 0),
            _ => (BP_SNAPSHOT_ERROR_INTERNAL, 0),
        };
        Self { code, number, text: in_c(error.to_string()).into() }
    }
}

/// A text with the names of this interface.
pub fn in_c(text: String) -> String {
    NAMES.iter().fold(text, |text, (rust, c)| text.replace(rust, c))
}

/// The result of a function's body.
pub type Answer = Result<bp_snapshot_code, Refusal>;

/// Returns the error text of this thread's last call that failed; "" if none did. It is valid until the next such call.
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_error() -> *const c_char {
    last::text()
}

/// Returns the error number (errno) of this thread's last call that failed; 0 if no system call failed.
#[unsafe(no_mangle)]
pub extern "C" fn bp_snapshot_error_number() -> c_int {
    last::number()
}

/// Runs the body of a function. No panic leaves this call.
pub fn answer(work: impl FnOnce() -> Answer) -> c_int {
    let failure = |Refusal { code, number, text }| Failure { code: code as c_int, number, text };
    last::answer(BP_SNAPSHOT_ERROR_INTERNAL as c_int, || work().map(|code| code as c_int).map_err(failure))
}
