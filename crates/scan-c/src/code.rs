//! The results of functions: a code, and for the last error of each thread a text and an error number.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};

use bedplate_c_support::input::Wrong;
use bedplate_c_support::last::{self, Failure};
use bedplate_c_support::table::Bad;
use bedplate_scan::Error;

use bp_scan_code::*;

/// The results of functions. Errors are negative.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bp_scan_code {
    /// Success. From bp_scan_get_page(): `page` is filled in.
    BP_SCAN_OK = 0,
    /// No page is ready yet.
    BP_SCAN_NOT_YET = 1,
    /// The scan is over, unless the program adds ranges.
    BP_SCAN_END = 2,

    /// A page cannot be read: bp_scan_error_number() gives the reason. The scan can continue with the next one, as after the next
    /// three codes.
    BP_SCAN_ERROR_READ = -1,
    /// The file has become shorter since the scan began. The page's `offset` is its first byte that does not exist.
    BP_SCAN_ERROR_TRUNCATED = -2,
    /// The file is written faster than it can be read.
    BP_SCAN_ERROR_CHANGING = -3,
    /// The file was replaced or deleted since the scan began.
    BP_SCAN_ERROR_REPLACED = -4,

    /// A system call failed: bp_scan_error_number() gives the error.
    BP_SCAN_ERROR_SYSTEM = -16,
    /// A file cannot be scanned: bp_scan_error_number() gives the reason.
    BP_SCAN_ERROR_FILE = -17,
    /// The engine does not work on this machine.
    BP_SCAN_ERROR_UNAVAILABLE = -18,
    /// The service that reads has ended.
    BP_SCAN_ERROR_GONE = -19,
    /// The other side does not speak this protocol.
    BP_SCAN_ERROR_PROTOCOL = -20,
    /// There are too many handles.
    BP_SCAN_ERROR_FULL = -21,
    /// The service of another process refuses the request.
    BP_SCAN_ERROR_REFUSED = -22,

    /// The request is not possible.
    BP_SCAN_ERROR_INVALID = -32,
    /// A pointer is NULL that must not be NULL.
    BP_SCAN_ERROR_NULL = -33,
    /// The handle was never given out, or is of another kind.
    BP_SCAN_ERROR_HANDLE = -34,
    /// The handle was closed.
    BP_SCAN_ERROR_CLOSED = -35,
    /// Another thread is using this channel.
    BP_SCAN_ERROR_BUSY = -36,
    /// The maximum number of pages is out, or pages are out that must be returned first.
    BP_SCAN_ERROR_HELD = -37,
    /// No page is out, because this one was returned before.
    BP_SCAN_ERROR_NOT_HELD = -38,
    /// The page is not out: it is an earlier one, or belongs to another channel.
    BP_SCAN_ERROR_PAGE = -39,
    /// The handle belongs to the parent process, and nothing reads for it in this one. Open another one.
    BP_SCAN_ERROR_FORKED = -40,
    /// An error within the library. A handle in which this happens can only be closed.
    BP_SCAN_ERROR_INTERNAL = -64,
}

impl bp_scan_code {
    const ALL: [(Self, &CStr); 24] = [
        (BP_SCAN_OK, c"done"),
        (BP_SCAN_NOT_YET, c"there is no page yet"),
        (BP_SCAN_END, c"the scan is over"),
        (BP_SCAN_ERROR_READ, c"a page cannot be read"),
        (BP_SCAN_ERROR_TRUNCATED, c"a file was truncated since the scan began"),
        (BP_SCAN_ERROR_CHANGING, c"a file is written faster than it can be read"),
        (BP_SCAN_ERROR_REPLACED, c"a file was replaced or deleted since the scan began"),
        (BP_SCAN_ERROR_SYSTEM, c"a system call failed"),
        (BP_SCAN_ERROR_FILE, c"a file cannot be scanned"),
        (BP_SCAN_ERROR_UNAVAILABLE, c"the engine does not work here"),
        (BP_SCAN_ERROR_GONE, c"the scan service has ended"),
        (BP_SCAN_ERROR_PROTOCOL, c"the other side does not speak this protocol"),
        (BP_SCAN_ERROR_FULL, c"there are too many handles"),
        (BP_SCAN_ERROR_REFUSED, c"the scan service refuses"),
        (BP_SCAN_ERROR_INVALID, c"what was asked for cannot be"),
        (BP_SCAN_ERROR_NULL, c"a pointer is NULL that must not be"),
        (BP_SCAN_ERROR_HANDLE, c"there is no such handle"),
        (BP_SCAN_ERROR_CLOSED, c"the handle was closed"),
        (BP_SCAN_ERROR_BUSY, c"another thread is in this channel"),
        (BP_SCAN_ERROR_HELD, c"pages of the channel have not been returned"),
        (BP_SCAN_ERROR_NOT_HELD, c"the channel has no page to return"),
        (BP_SCAN_ERROR_PAGE, c"this is not a page that is out"),
        (BP_SCAN_ERROR_FORKED, c"the handle is the parent process's"),
        (BP_SCAN_ERROR_INTERNAL, c"something went wrong within the library"),
    ];
}

/// Returns the meaning of a code as text, never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn bp_scan_strerror(code: c_int) -> *const c_char {
    let text = bp_scan_code::ALL.iter().find(|(known, _)| *known as c_int == code).map(|(_, text)| *text);
    text.unwrap_or(c"no such code").as_ptr()
}

/// The reason why a call fails: a code, an error number (0: none), and a text.
#[derive(Debug)]
pub struct Refusal {
    pub code: bp_scan_code,
    number: c_int,
    text: Cow<'static, str>,
}

impl Refusal {
    pub fn new(code: bp_scan_code, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, number: 0, text: text.into() }
    }

    /// The refusal after a system call that has just failed.
    pub fn system(code: bp_scan_code, what: &str) -> Self {
        let error = std::io::Error::last_os_error();
        let number = error.raw_os_error().unwrap_or(0);
        Self { code, number, text: format!("{what}: {error}").into() }
    }
}

impl From<Bad> for Refusal {
    fn from(bad: Bad) -> Self {
        let (code, text) = match bad {
            Bad::Unknown => (BP_SCAN_ERROR_HANDLE, "there never was such a handle, or not of this kind"),
            Bad::Closed => (BP_SCAN_ERROR_CLOSED, "the handle was closed"),
            Bad::Busy => {
                (BP_SCAN_ERROR_BUSY, "another thread is in this channel: every worker opens its own")
            }
            Bad::Forked => {
                (BP_SCAN_ERROR_FORKED, "the handle is the parent process's: open another in this process")
            }
            Bad::Broken => (BP_SCAN_ERROR_INTERNAL, "something went wrong with this handle before: close it"),
        };
        Self::new(code, text)
    }
}

impl From<Wrong> for Refusal {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Null(what) => Self::new(BP_SCAN_ERROR_NULL, what),
            Wrong::Invalid(text) => Self::new(BP_SCAN_ERROR_INVALID, text),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (code, number) = match &error {
            Error::Read { source, .. } => (BP_SCAN_ERROR_READ, source.raw_os_error()),
            Error::Truncated { .. } => (BP_SCAN_ERROR_TRUNCATED, 0),
            Error::Changing { .. } => (BP_SCAN_ERROR_CHANGING, 0),
            Error::Replaced { .. } => (BP_SCAN_ERROR_REPLACED, 0),
            Error::System { source, .. } => (BP_SCAN_ERROR_SYSTEM, source.raw_os_error()),
            Error::File { source, .. } => (BP_SCAN_ERROR_FILE, source.raw_os_error().unwrap_or(0)),
            Error::Unavailable { .. } => (BP_SCAN_ERROR_UNAVAILABLE, 0),
            Error::Invalid(_) => (BP_SCAN_ERROR_INVALID, 0),
            Error::Held => (BP_SCAN_ERROR_HELD, 0),
            Error::NotHeld => (BP_SCAN_ERROR_NOT_HELD, 0),
            Error::Gone => (BP_SCAN_ERROR_GONE, 0),
            Error::Forked => (BP_SCAN_ERROR_FORKED, 0),
            Error::Refused(_) => (BP_SCAN_ERROR_REFUSED, 0),
            Error::Protocol(_) => (BP_SCAN_ERROR_PROTOCOL, 0),
            _ => (BP_SCAN_ERROR_INTERNAL, 0),
        };
        Self { code, number, text: error.to_string().into() }
    }
}

/// The result of a function's body.
pub type Answer = Result<bp_scan_code, Refusal>;

/// Returns the error text of this thread's last call that failed; "" if none did. It is valid until the next such call.
#[unsafe(no_mangle)]
pub extern "C" fn bp_scan_error() -> *const c_char {
    last::text()
}

/// Returns the error number (errno) of this thread's last call that failed; 0 if no system call failed.
#[unsafe(no_mangle)]
pub extern "C" fn bp_scan_error_number() -> c_int {
    last::number()
}

/// Runs the body of a function. No panic leaves this call.
pub fn answer(work: impl FnOnce() -> Answer) -> c_int {
    let failure = |Refusal { code, number, text }| Failure { code: code as c_int, number, text };
    last::answer(BP_SCAN_ERROR_INTERNAL as c_int, || work().map(|code| code as c_int).map_err(failure))
}
