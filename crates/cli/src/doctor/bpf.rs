//! The few bpf(2) calls that the probes need. Programs of a few instructions are assembled by hand, so that
//! doctor needs neither a compiler nor the database's own programs.
//!
//! A file descriptor owns every object that this module creates; the object disappears with it.

use std::ffi::CStr;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use libbpf_rs::libbpf_sys as sys;

/// The reason why the kernel refused a program: its error, and the verifier's last line.
pub struct Refused {
    /// The error of the system call.
    pub error: io::Error,
    /// The line of the verifier's log that names the problem; empty if it has none.
    pub verifier: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.error)?;
        if self.verifier.is_empty() { Ok(()) } else { write!(f, " (verifier: {})", self.verifier) }
    }
}

/// Takes a result of libbpf, which is -errno or a descriptor.
fn owned(result: i32) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: a non-negative result is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// One instruction, in the encoding of the kernel's documentation.
pub fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> sys::bpf_insn {
    let mut insn = sys::bpf_insn { code, off, imm, ..Default::default() };
    insn.set_dst_reg(dst);
    insn.set_src_reg(src);
    insn
}

/// `dst = imm`
pub fn mov_imm(dst: u8, imm: i32) -> sys::bpf_insn {
    insn(0xb7, dst, 0, 0, imm)
}

/// `dst = src`
pub fn mov(dst: u8, src: u8) -> sys::bpf_insn {
    insn(0xbf, dst, src, 0, 0)
}

/// `dst = frame pointer + off`
pub fn stack_address(dst: u8, off: i32) -> [sys::bpf_insn; 2] {
    [mov(dst, 10), insn(0x07, dst, 0, 0, off)]
}

/// `*(u64 *)(dst + off) = imm`
pub fn store(dst: u8, off: i16, imm: i32) -> sys::bpf_insn {
    insn(0x7a, dst, 0, off, imm)
}

/// `dst = &map`
pub fn map_address(dst: u8, map: BorrowedFd<'_>) -> [sys::bpf_insn; 2] {
    [insn(0x18, dst, sys::BPF_PSEUDO_MAP_FD as u8, 0, map.as_raw_fd()), insn(0, 0, 0, 0, 0)]
}

/// Calls a helper by its number.
pub fn call(helper: i32) -> sys::bpf_insn {
    insn(0x85, 0, 0, 0, helper)
}

/// Calls a kernel function by its type identifier.
pub fn call_kfunc(id: i32) -> sys::bpf_insn {
    insn(0x85, 0, sys::BPF_PSEUDO_KFUNC_CALL as u8, 0, id)
}

/// `return r0`
pub fn exit() -> sys::bpf_insn {
    insn(0x95, 0, 0, 0, 0)
}

/// Loads a program.
pub fn load(kind: sys::bpf_prog_type, insns: &[sys::bpf_insn]) -> Result<OwnedFd, Refused> {
    let mut log = vec![0u8; 64 << 10];
    let mut opts = sys::bpf_prog_load_opts {
        sz: mem::size_of::<sys::bpf_prog_load_opts>() as _,
        log_buf: log.as_mut_ptr().cast(),
        log_size: log.len() as u32,
        ..Default::default()
    };
    // SAFETY: every pointer is valid for the call: a C string, `insns`, and `opts` with a writable log.
    let fd = unsafe {
        sys::bpf_prog_load(
            kind,
            c"bedplate_doctor".as_ptr(),
            c"GPL".as_ptr(),
            insns.as_ptr(),
            insns.len() as _,
            &mut opts,
        )
    };
    owned(fd).map_err(|error| Refused { error, verifier: last_words(&log) })
}

/// The last line before the statistics at the end of the verifier's log, which names the problem.
fn last_words(log: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(log).map(CStr::to_string_lossy).unwrap_or_default();
    let statistics = |l: &&str| l.starts_with("processed ") || l.starts_with("verification time");
    text.lines().map(str::trim).rfind(|l| !l.is_empty() && !statistics(l)).unwrap_or("").to_owned()
}

/// Creates a map.
pub fn create_map(
    kind: sys::bpf_map_type,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    create(kind, key, value, entries, &map_opts(flags))
}

fn map_opts(map_flags: u32) -> sys::bpf_map_create_opts {
    sys::bpf_map_create_opts {
        sz: mem::size_of::<sys::bpf_map_create_opts>() as _,
        map_flags,
        ..Default::default()
    }
}

fn create(
    kind: sys::bpf_map_type,
    key: u32,
    value: u32,
    entries: u32,
    opts: &sys::bpf_map_create_opts,
) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string and `opts` is a valid options structure of its stated size.
    owned(unsafe { sys::bpf_map_create(kind, c"bedplate_doctor".as_ptr(), key, value, entries, opts) })
}

/// Creates an array map of one `struct bpf_res_spin_lock`, with the type information that the verifier
/// wants for locks.
pub fn create_lock_map() -> io::Result<OwnedFd> {
    const STRINGS: &[u8] = b"\0u32\0bpf_res_spin_lock\0val\0value\0lock\0";
    // The offset of a name in the string section: it starts after a zero and ends before one.
    let name = |text: &[u8]| {
        let quoted = [b"\0", text, b"\0"].concat();
        let at = STRINGS.windows(quoted.len()).position(|window| window == quoted);
        at.expect("the name is one of the strings") as u32 + 1
    };
    let (int, structure) = (1 << 24, 4 << 24 | 1);
    #[rustfmt::skip]
    let types: [u32; 16] = [
        name(b"u32"), int, 4, 32,
        name(b"bpf_res_spin_lock"), structure, 4, name(b"val"), 1, 0,
        name(b"value"), structure, 4, name(b"lock"), 2, 0,
    ];
    let types_len = (types.len() * 4) as u32;
    let header: [u32; 6] = [0x0001_eb9f, 24, 0, types_len, types_len, STRINGS.len() as u32];
    let mut blob: Vec<u8> = header.iter().chain(&types).flat_map(|word| word.to_ne_bytes()).collect();
    blob.extend_from_slice(STRINGS);
    // SAFETY: `blob` is valid for its length; no options.
    let btf = owned(unsafe { sys::bpf_btf_load(blob.as_ptr().cast(), blob.len() as _, ptr::null_mut()) })?;
    let mut opts = map_opts(0);
    opts.btf_fd = btf.as_raw_fd() as u32;
    opts.btf_key_type_id = 1;
    opts.btf_value_type_id = 3;
    create(sys::BPF_MAP_TYPE_ARRAY, 4, 4, 1, &opts)
}

/// Stores a value; `key` and `value` must have the sizes the map was created with.
pub fn update_map(map: BorrowedFd<'_>, key: u64, value: u64) -> io::Result<()> {
    let (key, value) = (&raw const key, &raw const value);
    // SAFETY: maps of this module have keys and values of at most 8 bytes; both pointers are to 8 bytes.
    done(unsafe { sys::bpf_map_update_elem(map.as_raw_fd(), key.cast(), value.cast(), 0) })
}

/// Attaches a program to a map of sockets; it is detached when the map is freed.
pub fn attach_to_map(prog: &OwnedFd, map: &OwnedFd, kind: sys::bpf_attach_type) -> io::Result<()> {
    // SAFETY: two valid descriptors.
    done(unsafe { sys::bpf_prog_attach(prog.as_raw_fd(), map.as_raw_fd(), kind, 0) })
}

/// Attaches a program to a cgroup for as long as the returned link lives.
pub fn link_to_cgroup(prog: &OwnedFd, cgroup: impl AsFd, kind: sys::bpf_attach_type) -> io::Result<OwnedFd> {
    let cgroup = cgroup.as_fd().as_raw_fd();
    // SAFETY: two valid descriptors and no options.
    owned(unsafe { sys::bpf_link_create(prog.as_raw_fd(), cgroup, kind, ptr::null()) })
}

/// Runs a traffic-control program once on an empty packet; returns its result.
pub fn run_on_packet(prog: &OwnedFd) -> io::Result<u32> {
    let packet = [0u8; 64];
    let mut opts = sys::bpf_test_run_opts {
        sz: mem::size_of::<sys::bpf_test_run_opts>() as _,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        repeat: 1,
        ..Default::default()
    };
    // SAFETY: `opts` is valid and its input buffer lives across the call.
    done(unsafe { sys::bpf_prog_test_run_opts(prog.as_raw_fd(), &mut opts) })?;
    Ok(opts.retval)
}

/// Bytes of machine code that the kernel compiled the program to; 0 if it interprets the program.
pub fn compiled_bytes(prog: &OwnedFd) -> io::Result<u32> {
    let mut info = sys::bpf_prog_info::default();
    let mut len = mem::size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: `info` is writable for `len` bytes.
    done(unsafe { sys::bpf_prog_get_info_by_fd(prog.as_raw_fd(), &mut info, &mut len) })?;
    Ok(info.jited_prog_len)
}
