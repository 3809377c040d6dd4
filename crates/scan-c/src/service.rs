//! Services, which read for channels. A service of zeroes is that of the process itself.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::Duration;

use bedplate_c_support::input::{Sized, sized};
use bedplate_c_support::output;
use bedplate_c_support::table::{Bad, Table};
use bedplate_scan::{Choice, DEFAULT_PATIENCE, Kind, Service};

use crate::code::bp_scan_code::*;
use crate::code::{Answer, Refusal, answer, bp_scan_code};
use crate::input::null;

static SERVICES: Table<Service> = Table::new(b'S');
/// The handle of the process's own service, or a handle that does not exist.
static OWN: AtomicU64 = AtomicU64::new(0);

/// A service, which reads for channels. It ends when it is stopped and its last channel is closed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_scan_service {
    /// Its number; 0: the process's own service.
    pub handle: u64,
}

/// The mechanism that reads.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bp_scan_engine {
    /// The best one that works here. The service tries them.
    BP_SCAN_ENGINE_AUTO = 0,
    /// io_uring.
    BP_SCAN_ENGINE_URING = 1,
    /// Threads that call pread(). They work everywhere.
    BP_SCAN_ENGINE_THREADS = 2,
}

/// The options of a service.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_scan_service_options {
    /// sizeof(struct bp_scan_service_options)
    pub size: usize,
    /// One of bp_scan_engine.
    pub engine: u32,
    /// Other than 0: measures time with the kernel's clock, even if the processor's counter can be trusted.
    pub kernel_clock: u32,
    /// Other than 0: memory may consist of huge pages that the administrator reserved, if there are enough.
    pub reserved_pages: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: the structure has only integers, without padding.
unsafe impl Sized for bp_scan_service_options {
    const FIRST: usize = 16;
}

/// The counts of a service since it began.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bp_scan_service_statistics {
    /// Bytes that were read from files.
    pub bytes_read: u64,
    /// Number of times that its control loop woke.
    pub rounds: u64,
}

/// The service of a handle.
pub fn service(service: bp_scan_service) -> Result<Service, Refusal> {
    if service.handle != 0 {
        return Ok(SERVICES.enter_in_turn(service.handle)?.clone());
    }
    loop {
        let known = OWN.load(Acquire);
        if let Ok(service) = SERVICES.enter_in_turn(known) {
            return Ok(service.clone());
        }
        // The process has no service yet, or the known one is the parent process's.
        let service = Service::start()?;
        let handle = insert(service.clone())?;
        if OWN.compare_exchange(known, handle, AcqRel, Acquire).is_ok() {
            return Ok(service);
        }
        let _ = SERVICES.remove::<Bad>(handle, |_| Ok(()));
    }
}

fn insert(service: Service) -> Result<u64, Refusal> {
    SERVICES.insert(service).map_err(|_| Refusal::new(BP_SCAN_ERROR_FULL, "there are too many services"))
}

/// Starts a service in addition to BP_SCAN_DEFAULT. `options` may be NULL.
///
/// Most programs use BP_SCAN_DEFAULT, which needs no call and lives as long as the process. Start a service to choose its engine,
/// or to end its thread with bp_scan_stop(). Each service has a thread, and channels of two services share nothing, so a process
/// needs one service.
///
/// # Safety
/// `options` is NULL or as long as its size says, and `started` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_start(
    options: *const bp_scan_service_options,
    started: *mut bp_scan_service,
) -> c_int {
    answer(|| {
        if started.is_null() {
            return Err(null("no place for the service"));
        }
        let mut builder = Service::builder();
        if !options.is_null() {
            // SAFETY: the caller guarantees this.
            let options = unsafe { sized(options, "the options") }?;
            builder = builder.engine(match options.engine {
                0 => Choice::Auto,
                1 => Choice::Only(Kind::Uring),
                2 => Choice::Only(Kind::Threads),
                other => {
                    return Err(Refusal::new(BP_SCAN_ERROR_INVALID, format!("there is no engine {other}")));
                }
            });
            if options.kernel_clock != 0 {
                builder = builder.kernel_clock();
            }
            if options.reserved != 0 {
                let text = "the options: what is reserved is 0";
                return Err(Refusal::new(BP_SCAN_ERROR_INVALID, text));
            }
            builder = builder.reserved_pages(options.reserved_pages != 0);
        }
        let handle = insert(builder.build()?)?;
        // SAFETY: the caller guarantees this.
        unsafe { started.write_unaligned(bp_scan_service { handle }) };
        Ok(BP_SCAN_OK)
    })
}

/// Connects to the service of another process, which listens at a path. That process reads for all objects that are opened
/// through it, and its clients share the reads. Each step may take 30 s: see bp_scan_connect_within().
///
/// # Safety
/// `path` is a C string or NULL, and `connected` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_connect(path: *const c_char, connected: *mut bp_scan_service) -> c_int {
    // SAFETY: the caller guarantees this.
    answer(|| unsafe { connect(path, connected, DEFAULT_PATIENCE) })
}

/// Does the same as bp_scan_connect(), with a time limit in nanoseconds for each step: to connect, to send one message, and to
/// receive the answer to it. The limit is from 1 ms to an hour (otherwise BP_SCAN_ERROR_INVALID). It applies to all uses of the
/// service and its channels. Signals do not extend it. A step that takes longer fails with the error number ETIMEDOUT. If a
/// request of a channel is not answered in time, the channel's calls return BP_SCAN_ERROR_GONE from then on. Waits for pages have
/// no such limit.
///
/// # Safety
/// `path` is a C string or NULL, and `connected` is writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_connect_within(
    path: *const c_char,
    patience_ns: u64,
    connected: *mut bp_scan_service,
) -> c_int {
    // SAFETY: the caller guarantees this.
    answer(|| unsafe { connect(path, connected, Duration::from_nanos(patience_ns)) })
}

/// # Safety
/// The same as for [`bp_scan_connect`].
unsafe fn connect(path: *const c_char, connected: *mut bp_scan_service, patience: Duration) -> Answer {
    if path.is_null() || connected.is_null() {
        return Err(null("no path, or no place for the service"));
    }
    // SAFETY: the caller guarantees this.
    let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
    let handle = insert(Service::connect_within(path, patience)?)?;
    // SAFETY: the caller guarantees this.
    unsafe { connected.write_unaligned(bp_scan_service { handle }) };
    Ok(BP_SCAN_OK)
}

/// Stops a service. Nothing more can be opened through it, and open objects continue. The process's own service cannot be
/// stopped.
#[unsafe(no_mangle)]
pub extern "C" fn bp_scan_stop(service: bp_scan_service) -> c_int {
    answer(|| {
        if service.handle == OWN.load(Acquire) {
            return Err(Bad::Unknown.into());
        }
        // Another thread may be opening a channel or pool of the service, which takes a moment.
        drop(SERVICES.remove_in_turn(service.handle)?);
        Ok(BP_SCAN_OK)
    })
}

/// Gives a description of the engine and of its operation here, cut off after `bytes` bytes, with a zero at the end.
///
/// # Safety
/// `text` has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_about(service: bp_scan_service, text: *mut c_char, bytes: usize) -> c_int {
    answer(|| {
        if text.is_null() {
            return Err(null("no place for the text"));
        }
        let service = self::service(service)?;
        // SAFETY: the caller guarantees this.
        unsafe { output::text(&format!("{}: {}", service.engine(), service.about()), text, bytes) };
        Ok(BP_SCAN_OK)
    })
}

/// Gives the counts of a service. `size` is sizeof the structure.
///
/// # Safety
/// `statistics` has `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bp_scan_get_service_statistics(
    service: bp_scan_service,
    statistics: *mut bp_scan_service_statistics,
    size: usize,
) -> c_int {
    answer(|| -> Result<bp_scan_code, Refusal> {
        if statistics.is_null() {
            return Err(null("no place for the statistics"));
        }
        let now = self::service(service)?.statistics();
        let now = bp_scan_service_statistics { bytes_read: now.bytes_read, rounds: now.rounds };
        // SAFETY: the caller guarantees this. The structure has no padding.
        unsafe { output::sized(&now, statistics, size) };
        Ok(BP_SCAN_OK)
    })
}
