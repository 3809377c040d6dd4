//! Little address space: the error names the setting, and a pool that may choose takes what works.

use std::process::Command;
use std::sync::Mutex;

use bedplate_bufpool::{Choice, Error, Kind, Pool};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For who changes a setting of the whole machine, and who would notice.
static MACHINE: Mutex<()> = Mutex::new(());

const CHILD: &str = "BEDPLATE_TEST_LIMITS";

/// In a process of its own, for the limit is the process's.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some(2 << 30), maximum }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let builder = || Pool::builder(folder.path().join("pool")).memory(1 << 20).capacity(1 << 40);
    for kind in [Kind::Stock, Kind::Vmcache] {
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
    // What fits is taken, and the file is the same.
    let pool = builder().capacity(1 << 30).engine(Choice::Only(Kind::Stock)).open().unwrap();
    assert_eq!(pool.pin_shared(page).unwrap().page(), page);
}

/// The setting is the whole machine's, so only a machine of its own is told so.
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
    let builder = || Pool::builder(folder.path().join("pool")).memory(1 << 20).capacity(1 << 40);
    let error = builder().engine(Choice::Only(Kind::Stock)).open().map(drop).unwrap_err();
    let chosen = builder().open();
    let small = Pool::builder(folder.path().join("small")).memory(1 << 20).capacity(64 << 20);
    let small = small.engine(Choice::Only(Kind::Stock)).open();
    std::fs::write(setting, before).unwrap();
    assert!(error.to_string().contains("vm.overcommit_memory"), "{error}");
    let chosen = chosen.unwrap();
    assert_eq!(chosen.kind(), Kind::Hashtable);
    assert!(chosen.reason().contains("vm.overcommit_memory"), "{}", chosen.reason());
    // What fits is taken.
    drop(small.unwrap().allocate().unwrap());
}

#[test]
fn a_limit_on_address_space_is_named_or_gone_around() {
    let _alone = MACHINE.lock();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
