//! Limits on address space. The error names the setting, and a pool with automatic choice takes an engine that works.

use std::process::Command;
use std::sync::Mutex;

use bedplate_bufpool::{Choice, Error, Kind, Pool};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Held by tests that change a setting of the whole machine, and by tests that such a change would disturb.
static MACHINE: Mutex<()> = Mutex::new(());

/// The environment variable that says which child a process is.
const CHILD: &str = "BEDPLATE_TEST_LIMITS";

/// Whether this process is the child `name`.
fn is_child(name: &str) -> bool {
    std::env::var_os(CHILD).is_some_and(|child| child == name)
}

/// Runs a test of this file in its own process, while no test changes a setting of the machine.
fn run_child(name: &str) {
    let _alone = MACHINE.lock();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads=1"])
        .env(CHILD, name)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

/// This needs its own process, because the limit applies to the whole process.
#[test]
fn child_with_little_address_space() {
    if !is_child("child_with_little_address_space") {
        return;
    }
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some(2 << 30), maximum }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let builder = || Pool::builder(folder.path().join("pool")).memory(1 << 20).capacity(16 << 40);
    let kinds = [
        Kind::Array,
        Kind::Stock,
        #[cfg(feature = "bench")]
        Kind::Vmcache,
    ];
    for kind in kinds {
        let error = builder().engine(Choice::Only(kind)).open().map(drop).unwrap_err();
        assert!(
            matches!(error, Error::AddressSpace { .. }) && error.to_string().contains("RLIMIT_AS"),
            "{error}"
        );
    }
    let pool = builder().open().unwrap();
    assert_eq!(pool.kind(), Kind::Hashtable);
    assert!(pool.reason().contains("RLIMIT_AS"), "{}", pool.reason());
    let page = pool.allocate().unwrap().page();
    pool.close().unwrap();
    drop(pool);
    // The translation array takes a 1024th of the capacity.
    let pool = builder().capacity(1 << 40).open().unwrap();
    assert_eq!(pool.kind(), Kind::Array);
    pool.close().unwrap();
    drop(pool);
    // An engine whose addresses fit is used, and the file format is the same.
    let pool = builder().capacity(1 << 30).engine(Choice::Only(Kind::Stock)).open().unwrap();
    assert_eq!(pool.pin_shared(page).unwrap().page(), page);
}

/// The setting applies to the whole machine, so the test runs only in the test machine.
#[test]
fn strict_accounting_is_named_or_gone_around() {
    if std::env::var_os(bedplate_vm::MARK).is_none() {
        eprintln!("skipped: changes vm.overcommit_memory, so it needs the test machine (BEDPLATE_VM=1)");
        return;
    }
    let _alone = MACHINE.lock();
    let setting = "/proc/sys/vm/overcommit_memory";
    let before = std::fs::read_to_string(setting).unwrap();
    std::fs::write(setting, "2").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let builder = || Pool::builder(folder.path().join("pool")).memory(1 << 20).capacity(16 << 40);
    let error = builder().engine(Choice::Only(Kind::Stock)).open().map(drop).unwrap_err();
    let chosen = builder().open();
    let small = Pool::builder(folder.path().join("small")).memory(1 << 20).capacity(64 << 20);
    let small = small.engine(Choice::Only(Kind::Stock)).open();
    std::fs::write(setting, before).unwrap();
    assert!(error.to_string().contains("vm.overcommit_memory"), "{error}");
    let chosen = chosen.unwrap();
    assert_eq!(chosen.kind(), Kind::Hashtable);
    assert!(chosen.reason().contains("vm.overcommit_memory"), "{}", chosen.reason());
    // A pool that fits into memory works.
    drop(small.unwrap().allocate().unwrap());
}

#[test]
fn a_limit_on_address_space_is_named_or_gone_around() {
    run_child("child_with_little_address_space");
}

/// Makes the kernel refuse `process_madvise` to this process from now on, like kernels before Linux 6.13.
fn refuse_process_madvise() {
    // See `<linux/bpf_common.h>` and `<linux/seccomp.h>`. The program loads the number of the system call. If the
    // number is different, it skips an instruction.
    let filter =
        |code: u32, skip: u8, value: u32| libc::sock_filter { code: code as u16, jt: 0, jf: skip, k: value };
    let number = libc::SYS_process_madvise as u32;
    let mut program = [
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number),
        filter(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program lives until the kernel has copied it. It blocks one system call in this thread and its
    // children, until the process ends.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
}

#[test]
fn child_without_process_madvise() {
    if !is_child("child_without_process_madvise") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let open = |choice| {
        Pool::builder(folder.path().join("pool")).memory(1 << 20).capacity(1 << 30).engine(choice).open()
    };
    let batches = open(Choice::Only(Kind::Stock)).unwrap().reason().to_owned();
    refuse_process_madvise();
    let pool = open(Choice::Only(Kind::Stock)).unwrap();
    let reason = pool.reason();
    assert!(reason.contains("does not batch") && reason.contains("array engine"), "{reason}");
    assert!(reason.contains("Linux 6.13") && reason.contains("process_madvise"), "{reason}");
    assert_ne!(reason, batches);
    // The engine works nevertheless, with one call for each page.
    let pages = 2 * pool.statistics().frames;
    for _ in 0..pages {
        drop(pool.allocate().unwrap());
    }
    let done = pool.statistics();
    assert!(done.evicted > 0 && done.release_calls >= done.evicted, "{done:?}");
    pool.close().unwrap();
    drop(pool);
    // Automatic choice does not select this engine.
    let pool = open(Choice::Auto).unwrap();
    assert_eq!(pool.kind(), Kind::Array);
    assert!(!pool.reason().contains("does not batch"), "{}", pool.reason());
}

#[test]
fn stock_says_that_it_does_not_batch_on_old_kernels() {
    run_child("child_without_process_madvise");
}
