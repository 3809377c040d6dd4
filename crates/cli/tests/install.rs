//! `make install` puts each file in its place, and the installed command works.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use bedplate_suite_support::programs;
use tempfile::TempDir;

/// The files that are installed below the prefix.
const FILES: [&str; 40] = [
    "bin/bedplate",
    "include/bedplate/ring0.h",
    "include/bedplate/scan.h",
    "include/bedplate/snapshot.h",
    "include/bedplate/store.h",
    "lib/libbedplate_ring0.a",
    "lib/libbedplate_ring0.so",
    "lib/libbedplate_ring0_preload.so",
    "lib/libbedplate_scan.a",
    "lib/libbedplate_scan.so",
    "lib/libbedplate_scan_preload.so",
    "lib/libbedplate_snapshot.a",
    "lib/libbedplate_snapshot.so",
    "lib/libbedplate_snapshot_malloc.so",
    "lib/libbedplate_snapshot_preload.so",
    "lib/libbedplate_store.a",
    "lib/libbedplate_store.so",
    "lib/pkgconfig/bedplate-scan.pc",
    "lib/pkgconfig/bedplate-snapshot.pc",
    "lib/pkgconfig/bedplate-store.pc",
    "lib/sysusers.d/bedplate.conf",
    "lib/udev/rules.d/60-bedplate.rules",
    "share/bedplate/examples/exec-audit/Makefile",
    "share/bedplate/examples/exec-audit/README.md",
    "share/bedplate/examples/exec-audit/exec_audit.bpf.c",
    "share/bedplate/examples/orders/Makefile",
    "share/bedplate/examples/orders/README.md",
    "share/bedplate/examples/orders/orders.bpf.c",
    "share/bedplate/examples/packet-quota/Makefile",
    "share/bedplate/examples/packet-quota/README.md",
    "share/bedplate/examples/packet-quota/packet_quota.bpf.c",
    "share/bedplate/redis-server-snapshots.conf",
    "share/man/man1/bedplate-kv-procedure.1",
    "share/man/man1/bedplate-scan-run.1",
    "share/man/man1/bedplate-snapshot-run.1",
    "share/man/man1/bedplate-snapshot-stats.1",
    "share/man/man1/bedplate-store.1",
    "share/man/man3/bedplate-scan.3",
    "share/man/man3/bedplate-snapshot.3",
    "share/man/man3/bedplate-store.3",
];

/// A folder that everybody can read.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

/// Installs the files of the build to which this test belongs.
fn install(destination: Option<&Path>, prefix: &Path) {
    static BUILD: Once = Once::new();
    BUILD.call_once(|| {
        let packages = [
            "ring0-preload",
            "ring0-c",
            "snapshot-preload",
            "snapshot-malloc",
            "scan-c",
            "scan-preload",
            "snapshot-c",
            "store-c",
        ];
        programs::build(&packages).unwrap();
    });
    let built = Path::new(env!("CARGO_BIN_EXE_bedplate")).parent().unwrap();
    let assignment = |name: &str, value: &Path| {
        let mut text = std::ffi::OsString::from(name);
        text.push("=");
        text.push(value);
        text
    };
    let mut command = Command::new("make");
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    command.arg("install").arg(assignment("BUILT", built)).arg(assignment("PREFIX", prefix));
    if let Some(destination) = destination {
        command.arg(assignment("DESTDIR", destination));
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// All files below a folder, by their paths in it.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    let mut files = BTreeSet::new();
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.insert(path.strip_prefix(folder).unwrap().to_owned());
            }
        }
    }
    files
}

#[test]
fn packages_get_everything_below_their_folder() {
    let package = folder();
    install(Some(package.path()), Path::new("/usr"));
    let installed = package.path().join("usr");
    assert_eq!(files(package.path()), FILES.iter().map(|file| Path::new("usr").join(file)).collect());
    for file in FILES {
        let mode = std::fs::metadata(installed.join(file)).unwrap().permissions().mode() & 0o777;
        let is_program = file.starts_with("bin/") || file.ends_with(".so");
        assert_eq!(mode, if is_program { 0o755 } else { 0o644 }, "{file}");
    }
    let text = |file: &str| std::fs::read_to_string(installed.join(file)).unwrap();
    const CONFIGURATIONS: [&str; 3] = [
        "lib/pkgconfig/bedplate-scan.pc",
        "lib/pkgconfig/bedplate-snapshot.pc",
        "lib/pkgconfig/bedplate-store.pc",
    ];
    for file in CONFIGURATIONS {
        assert!(text(file).starts_with("prefix=/usr\n"), "{file}");
    }
    let dropin = text("share/bedplate/redis-server-snapshots.conf");
    for line in [
        "Environment=LD_PRELOAD=/usr/lib/libbedplate_snapshot_preload.so",
        "ExecPaths=-/usr/lib/libbedplate_snapshot_preload.so",
    ] {
        assert!(dropin.lines().any(|other| other == line), "no {line}");
    }
    for file in CONFIGURATIONS.into_iter().chain(["share/bedplate/redis-server-snapshots.conf"]) {
        assert!(!text(file).contains("@PREFIX@"), "{file}");
        assert!(!text(file).contains(package.path().to_str().unwrap()), "{file}");
    }
}

/// The unit, the group and the rule name the same group and the same device.
#[test]
fn the_rule_and_the_unit_are_of_one_group() {
    let package = folder();
    install(Some(package.path()), Path::new("/usr"));
    let settings = |file: &str| -> Vec<String> {
        let text = std::fs::read_to_string(package.path().join("usr").join(file)).unwrap();
        text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
    };
    assert_eq!(settings("lib/sysusers.d/bedplate.conf"), ["g bedplate -"]);
    let rule = settings("lib/udev/rules.d/60-bedplate.rules").concat();
    for part in [r#"KERNEL=="userfaultfd""#, r#"GROUP="bedplate""#, r#"MODE="0660""#] {
        assert!(rule.split(", ").any(|other| other == part), "{rule}: no {part}");
    }
    let unit = settings("share/bedplate/redis-server-snapshots.conf");
    assert_eq!(unit[0], "[Service]");
    for line in ["SupplementaryGroups=bedplate", "DeviceAllow=/dev/userfaultfd rw"] {
        assert!(unit.iter().any(|other| other == line), "no {line}");
    }
}

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn patiently<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_installed_command_finds_its_libraries() {
    let folder = folder();
    let prefix = folder.path().join("prefix");
    install(None, &prefix);
    let (socket, statistics) = (folder.path().join("socket"), folder.path().join("statistics"));
    let mut command = Command::new(prefix.join("bin/bedplate"));
    command.args(["snapshot", "run", "--required", "--statistics"]).arg(&statistics);
    command.args([
        "--",
        "redis-server",
        "--port",
        "0",
        "--save",
        "",
        "--loglevel",
        "warning",
        "--unixsocket",
    ]);
    command.arg(&socket).arg("--dir").arg(folder.path()).stdout(Stdio::null()).current_dir("/");
    let mut server = Server(command.spawn().unwrap());
    let client = redis::Client::open(format!("unix://{}", socket.display())).unwrap();
    let mut connection = patiently("the server does not answer", || {
        assert_eq!(server.0.try_wait().unwrap(), None, "the server has ended");
        client.get_connection().ok()
    });
    let _: () = redis::cmd("SET").arg("a").arg("b".repeat(4 << 20)).query(&mut connection).unwrap();
    let _: String = redis::cmd("BGSAVE").query(&mut connection).unwrap();
    patiently("the server does not save", || {
        let text: String = redis::cmd("INFO").arg("persistence").query(&mut connection).unwrap();
        let ended = text.contains("rdb_bgsave_in_progress:0");
        assert!(!ended || text.contains("rdb_last_bgsave_status:ok"), "{text}");
        ended.then_some(())
    });
    let _: Result<(), _> = redis::cmd("SHUTDOWN").arg("NOSAVE").query(&mut connection);
    assert!(server.0.wait().unwrap().success());
    let text = std::fs::read_to_string(&statistics).unwrap();
    assert!(text.contains(" snapshots=1 "), "{text}");

    // The program also runs without ring 0, so this only tests that its library is found.
    let mut command = Command::new(prefix.join("bin/bedplate"));
    let output = command.args(["ring0", "run", "--", "true"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("libbedplate"), "{output:?}");
}

/// `doctor` gives an ordinary user the reason that a server gives.
#[test]
fn doctor_and_servers_have_one_reason() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become somebody else");
        return;
    }
    let device = std::fs::metadata("/dev/userfaultfd");
    if device.is_ok_and(|device| device.permissions().mode() & 0o6 == 0o6)
        || std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd")
            .is_ok_and(|text| text.trim() == "1")
    {
        println!("skipped: everybody may use userfaultfd");
        return;
    }
    let folder = folder();
    install(None, folder.path());
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(folder.path().join("bin/bedplate")).args(args.iter().map(OsStr::new));
        command.current_dir("/").output().unwrap()
    };
    let output = as_nobody(&["doctor", "--json", "--component", "snapshot"]);
    assert!(!output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let component = &report["components"][0];
    let checks = component["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["id"] == "userfaultfd").unwrap();
    assert_eq!((&check["answer"], &component["verdict"]), (&"no".into(), &"no".into()), "{report}");
    let reason = check["reason"].as_str().unwrap();
    assert!(reason.contains("/dev/userfaultfd"), "{reason}");
    for engine in ["auto", "remap", "uffd"] {
        let output = as_nobody(&["snapshot", "run", "--required", "--engine", engine, "--", "true"]);
        assert_eq!(output.status.code(), Some(126), "{engine}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(reason) && said.lines().count() == 1, "{engine}: {said}");
        let output = as_nobody(&["snapshot", "run", "--engine", engine, "--", "true"]);
        assert!(output.status.success(), "{engine}: {output:?}");
    }
}
