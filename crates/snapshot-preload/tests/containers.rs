//! Servers in containers: an OCI runtime runs the distribution's redis-server as an ordinary user without capabilities,
//! under a filter of system calls, with the device for userfaultfd or without it.
//!
//! The container has the host's programs and libraries, read-only. It has the host's network, which tests use to talk to it.

mod common;

use std::fs::Permissions;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Engine, Server, bgsave, exact_prefix, fill, free_port, library, saved, under_load};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The container's user and its own group, as in Redis's image.
const USER: u32 = 999;
const OWN_GROUP: u32 = 1000;
/// The group that may open the device.
const DEVICE_GROUP: u32 = 12_345;

/// The properties in which containers differ.
#[derive(Clone, Copy)]
struct Shape {
    engine: Engine,
    has_device: bool,
    /// Whether the user is in the device's group.
    is_member: bool,
    filter: fn() -> Value,
    /// Options for `/proc`.
    proc_options: &'static [&'static str],
    /// Paths that are hidden.
    masked: &'static [&'static str],
}

impl Shape {
    fn new(engine: Engine) -> Self {
        let (has_device, is_member) = (true, true);
        Self { engine, has_device, is_member, filter: docker_default, proc_options: &[], masked: &[] }
    }
}

/// The system calls that the default profiles of Docker and Podman refuse to a process without capabilities, as far as they
/// concern memory, processes or mounts.
fn docker_default() -> Value {
    let refused = [
        "userfaultfd",
        "fsopen",
        "fsconfig",
        "fsmount",
        "fspick",
        "move_mount",
        "open_tree",
        "mount",
        "umount2",
        "unshare",
        "setns",
        "bpf",
        "perf_event_open",
        "kcmp",
        "pidfd_getfd",
        "process_madvise",
        "mbind",
        "set_mempolicy",
        "get_mempolicy",
    ];
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            { "names": refused, "action": "SCMP_ACT_ERRNO", "errnoRet": libc::EPERM },
            { "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": libc::ENOSYS },
        ],
    })
}

/// A filter such as systemd's, which ends processes: `SystemCallFilter=@system-service`, `~@privileged @resources`. It also ends
/// them for userfaultfd.
fn deadly() -> Value {
    let deadly = [
        "userfaultfd",
        "fsopen",
        "fsconfig",
        "fsmount",
        "move_mount",
        "mount",
        "umount2",
        "pidfd_getfd",
        "mbind",
        "move_pages",
        "set_mempolicy",
        "sched_setaffinity",
        "sched_setattr",
        "sched_setparam",
        "sched_setscheduler",
        "setpriority",
    ];
    json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": deadly, "action": "SCMP_ACT_KILL_PROCESS" }],
    })
}

/// A container with a server.
struct Container {
    server: Server,
    /// The bundle and the runtime's state.
    folder: TempDir,
}

/// The runtime, with its state in a folder.
fn runtime(folder: &Path) -> Command {
    // The runtime does not manage cgroups, but looks for them all the same. It only knows version 2.
    const RUN: &str =
        r#"mount -t cgroup2 none /sys/fs/cgroup && exec crun --cgroup-manager=disabled --root "$0" "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", RUN]).arg(folder.join("state"));
    command
}

impl Container {
    /// Starts a container.
    fn start(shape: Shape) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["rootfs", "data", "library"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::set_permissions(at("data"), Permissions::from_mode(0o777)).unwrap();
        std::fs::copy(library(), at("library/preload.so")).unwrap();
        let port = free_port();
        std::fs::write(at("config.json"), Self::config(folder.path(), shape, port).to_string()).unwrap();
        let mut command = runtime(folder.path());
        command.args(["run", "--bundle"]).arg(folder.path()).arg("bedplate-test");
        let process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Self { server: Server::around(process, port), folder }
    }

    fn config(folder: &Path, shape: Shape, port: u16) -> Value {
        let bind = |from: &Path, to: &str, access| json!({ "destination": to, "type": "bind", "source": from, "options": ["rbind", access] });
        let proc_options = [&["nosuid", "noexec", "nodev"], shape.proc_options].concat();
        let mut mounts = vec![
            json!({ "destination": "/proc", "type": "proc", "source": "proc", "options": proc_options }),
            json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] }),
            json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", "nosuid", "noexec"] }),
            bind(&folder.join("data"), "/data", "rw"),
            bind(&folder.join("library"), "/library", "ro"),
        ];
        let of_the_host = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"];
        let there = of_the_host.into_iter().filter(|path| Path::new(path).exists());
        mounts.extend(there.map(|path| bind(Path::new(path), path, "ro")));
        let port = port.to_string();
        let server = [
            "redis-server",
            "--port",
            &port,
            "--save",
            "",
            "--loglevel",
            "warning",
            "--dir",
            "/data",
            "--enable-debug-command",
            "yes",
        ];
        json!({
            "ociVersion": "1.0.0",
            "process": {
                "user": {
                    "uid": USER,
                    "gid": OWN_GROUP,
                    "additionalGids": if shape.is_member { vec![DEVICE_GROUP] } else { vec![] },
                },
                "args": server,
                "env": [
                    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    "LD_PRELOAD=/library/preload.so",
                    format!("BEDPLATE_SNAPSHOT_ENGINE={}", shape.engine),
                    "BEDPLATE_SNAPSHOT_STATISTICS=/data/statistics",
                ],
                "cwd": "/",
                "capabilities": {},
            },
            "root": { "path": "rootfs", "readonly": true },
            "mounts": mounts,
            "linux": {
                "namespaces": [{ "type": "pid" }, { "type": "mount" }, { "type": "ipc" }, { "type": "uts" }],
                "devices": if shape.has_device { vec![device()] } else { vec![] },
                "seccomp": (shape.filter)(),
                "maskedPaths": shape.masked,
                "readonlyPaths": ["/proc/sys"],
            },
        })
    }

    /// Saves an exact image during writes.
    fn saves(&self) {
        fill(&self.server);
        under_load(&self.server, || {
            let mut connection = self.server.connect();
            bgsave(&mut connection);
            assert_eq!(saved(&mut connection), "ok");
        });
        let stock = self.server.stock(&self.folder.path().join("data"), &[]);
        exact_prefix(&mut stock.connect());
    }

    /// Ends the server. Returns the library's messages, and its statistics, if it wrote any.
    fn stop(mut self) -> (Vec<String>, Option<String>) {
        let _: Result<(), _> = redis::cmd("SHUTDOWN").arg("NOSAVE").query(&mut self.server.connect());
        let mut said = String::new();
        self.server.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = self.server.process.wait().unwrap();
        assert!(status.success(), "{status}: {said}");
        let lines = said.lines().filter(|line| line.contains("bedplate")).map(str::to_owned).collect();
        let statistics = std::fs::read_to_string(self.folder.path().join("data/statistics")).ok();
        // The file has a line for each process. The server is the container's first one.
        let of_server =
            |text: String| text.lines().find(|line| line.starts_with("pid=1 ")).map(str::to_owned);
        (lines, statistics.and_then(of_server))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // The server continues if a test only ends its runtime.
        let _ = runtime(self.folder.path())
            .args(["delete", "--force", "bedplate-test"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        let process = &mut self.server.process;
        let _ = process.kill();
        let _ = process.wait();
        // These are messages of the runtime, the library and the server, for a test that fails.
        if let Some(mut errors) = process.stderr.take().filter(|_| std::thread::panicking()) {
            let mut said = String::new();
            let _ = errors.read_to_string(&mut said);
            println!("{said}");
        }
    }
}

/// The host's device, with a group.
fn device() -> Value {
    let numbers = std::fs::read_to_string(NUMBERS).unwrap();
    let (major, minor) = numbers.trim().split_once(':').unwrap();
    let number = |text: &str| text.parse::<u32>().unwrap();
    json!({
        "path": "/dev/userfaultfd",
        "type": "c",
        "major": number(major),
        "minor": number(minor),
        "fileMode": 0o660,
        "uid": 0,
        "gid": DEVICE_GROUP,
    })
}

const NUMBERS: &str = "/sys/class/misc/userfaultfd/dev";

/// Whether containers with the device cannot be made here. Prints the reason if so.
fn skipped() -> bool {
    // SAFETY: only queries the user.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can make a container with a device");
        return true;
    }
    if !Path::new(NUMBERS).exists() {
        println!("skipped: this kernel has no /dev/userfaultfd");
        return true;
    }
    false
}

/// Whether every user has userfaultfd. Prints a line if so.
fn everybody_may() -> bool {
    let everybody =
        std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|text| text.trim() == "1");
    if everybody {
        println!("skipped: vm.unprivileged_userfaultfd is 1: nobody is without userfaultfd");
    }
    everybody
}

/// Checks that the server saves with snapshots, and that the library prints nothing.
#[track_caller]
fn has_snapshots(shape: Shape) {
    let container = Container::start(shape);
    container.saves();
    let (said, statistics) = container.stop();
    assert_eq!(said, [""; 0]);
    let statistics = statistics.expect("statistics");
    let instantaneous = usize::from(shape.engine == "remap");
    let expected = [
        format!(" engine={} ", shape.engine),
        format!(" snapshots=1 active=0 instantaneous={instantaneous} incomplete=0 "),
    ];
    assert!(expected.iter().all(|words| statistics.contains(words)), "{statistics}");
}

/// Checks that the server saves as without the library, which prints the reason in one line.
#[track_caller]
fn runs_as_before(shape: Shape, why: &[&str]) {
    let container = Container::start(shape);
    container.saves();
    let (said, statistics) = container.stop();
    assert_eq!(said.len(), 1, "{said:?}");
    let why = ["bedplate snapshot: running without snapshots: "].iter().chain(why);
    assert!(why.clone().all(|why| said[0].contains(why)), "{said:?}");
    assert_eq!(statistics, None);
}

with_each_engine!(
    with_the_device_an_ordinary_user_has_snapshots,
    without_the_device_the_server_runs_as_before,
    who_is_not_in_the_group_is_told,
    filters_that_end_processes_end_nothing,
    processes_may_be_hidden_from_each_other,
);

fn with_the_device_an_ordinary_user_has_snapshots(engine: Engine) {
    if !skipped() {
        has_snapshots(Shape::new(engine));
    }
}

fn without_the_device_the_server_runs_as_before(engine: Engine) {
    if !skipped() && !everybody_may() {
        let shape = Shape { has_device: false, ..Shape::new(engine) };
        let why = ["there is no /dev/userfaultfd here", "`--device /dev/userfaultfd`"];
        runs_as_before(shape, &why);
        runs_as_before(Shape { filter: deadly, ..shape }, &why);
    }
}

fn who_is_not_in_the_group_is_told(engine: Engine) {
    if !skipped() && !everybody_may() {
        let shape = Shape { is_member: false, ..Shape::new(engine) };
        runs_as_before(shape, &["this user may not open /dev/userfaultfd: add the user to the file's group"]);
    }
}

fn filters_that_end_processes_end_nothing(engine: Engine) {
    if !skipped() {
        has_snapshots(Shape { filter: deadly, ..Shape::new(engine) });
    }
}

fn processes_may_be_hidden_from_each_other(engine: Engine) {
    if !skipped() {
        has_snapshots(Shape { proc_options: &["hidepid=2"], ..Shape::new(engine) });
    }
}

#[test]
fn without_proc_the_server_runs_as_before() {
    if !skipped() {
        let shape = Shape { masked: &["/proc"], ..Shape::new("remap") };
        runs_as_before(shape, &["/proc/self/pagemap"]);
    }
}
