//! The needs of kerneldb: the right to load eBPF programs, arenas, maps of sockets, and memory.

use std::fs;
use std::path::PathBuf;

use bedplate_kerneldb::{Config, Database, EngineKind, SetOptions};
use libbpf_rs::btf::Btf;
use libbpf_rs::libbpf_sys as sys;

use super::system::{capabilities, is_denied, setting};
use super::{Check, Component, bpf, kerneldb_programs as programs};
use crate::units;

/// The advice about a refused bpf(2).
pub const PRIVILEGES: &str = "run as root, or grant CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (systemd: \
    AmbientCapabilities=, containers: --cap-add and a seccomp profile that allows bpf)";

/// Probes kerneldb.
pub fn probe() -> Component {
    // libbpf's own warnings would repeat the report in other words.
    let printer = libbpf_rs::set_print(None);
    let mut checks = vec![system_call()];
    let allowed = checks[0].answer == super::Answer::Yes;
    checks.push(privileges(allowed));
    let btf = Btf::from_vmlinux();
    checks.push(match &btf {
        Ok(_) => Check::yes("btf", "type information of the kernel", "/sys/kernel/btf/vmlinux is readable"),
        Err(error) => Check::no("btf", "type information of the kernel", format!("{error:#}"))
            .advice("use a kernel with CONFIG_DEBUG_INFO_BTF=y (every distribution kernel since 2021)"),
    });
    if allowed {
        // A kernel without arenas may have a database on hash maps, which needs less.
        let hash_maps = engine(HASH_MAPS, EngineKind::HashMap, "use Linux 6.1 or newer");
        let by_hash_maps = matches!(EngineKind::of_this_kernel(), Ok(EngineKind::HashMap));
        let is_required = !(by_hash_maps && hash_maps.answer == super::Answer::Yes);
        checks.extend(programs::probe(btf.as_ref().ok(), is_required));
        let otherwise = if is_required {
            "see the answers above; if they are all yes, report it with the output of BEDPLATE_LOG=debug, and use kv serve --engine \
             hash-map meanwhile"
        } else {
            "use Linux 6.14 or newer; on this kernel the database is on hash maps, and user space executes every command"
        };
        checks.push(engine(ENGINE, EngineKind::Arena, otherwise).required_if(is_required));
        checks.push(hash_maps);
        checks.push(fast_path());
    } else {
        checks.extend(programs::unknown());
        checks.push(Check::unknown(ENGINE.0, ENGINE.1, NOT_ALLOWED).required());
        checks.push(Check::unknown(HASH_MAPS.0, HASH_MAPS.1, NOT_ALLOWED));
        checks.push(Check::unknown(FAST_PATH.0, FAST_PATH.1, NOT_ALLOWED));
    }
    checks.push(accounting(allowed));
    checks.push(memory());
    libbpf_rs::set_print(printer);
    Component {
        name: "kerneldb",
        purpose: "an ACID key-value database inside eBPF, with a Redis-protocol server answered in the kernel",
        included: true,
        checks,
    }
}

/// The reason of every check that could not be tried.
pub const NOT_ALLOWED: &str = "needs root: bpf(2) is refused to this user";

fn system_call() -> Check {
    const ID: (&str, &str) = ("bpf-syscall", "bpf system call");
    match bpf::create_map(sys::BPF_MAP_TYPE_ARRAY, 4, 4, 1, 0) {
        Ok(_) => Check::yes(ID.0, ID.1, "a map could be created"),
        Err(error) if is_denied(&error) => {
            let unprivileged = setting("/proc/sys/kernel/unprivileged_bpf_disabled");
            let why = match unprivileged.as_deref() {
                Some("0") | None => {
                    "refused (by a security module, a seccomp filter or a container)".to_owned()
                }
                Some(value) => format!("refused (kernel.unprivileged_bpf_disabled={value})"),
            };
            Check::no(ID.0, ID.1, why).advice(PRIVILEGES)
        }
        Err(error) => Check::no(ID.0, ID.1, error.to_string())
            .advice("use a kernel with CONFIG_BPF_SYSCALL=y (every distribution kernel has it)"),
    }
    .required()
}

fn privileges(bpf_allowed: bool) -> Check {
    const ID: (&str, &str) = ("capabilities", "privileges");
    let missing = capabilities().missing_for_bpf();
    if missing.is_empty() {
        Check::yes(ID.0, ID.1, "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are effective")
    } else {
        Check::no(ID.0, ID.1, format!("missing: {}", missing.join(", "))).advice(if bpf_allowed {
            PRIVILEGES
        } else {
            "as above"
        })
    }
    .required()
}

const ENGINE: (&str, &str) = ("engine", "the database on arenas, with answers in the kernel");
const HASH_MAPS: (&str, &str) = ("engine-hash-maps", "the database on hash maps, with answers in user space");

/// Creates a small database, writes to it and reads from it. It disappears with its handle.
fn engine((id, subject): (&'static str, &'static str), engine: EngineKind, otherwise: &str) -> Check {
    let attempt = || -> bedplate_kerneldb::Result<bool> {
        let config = Config { engine, memory_bytes: 16 << 20, max_sessions: 4, ..Config::default() };
        let database = Database::create(config)?;
        let mut session = database.session()?;
        session.set(b"doctor", b"well", SetOptions::default())?;
        Ok(session.get(b"doctor")?.is_some_and(|value| value.data == b"well"))
    };
    match attempt() {
        Ok(true) => Check::yes(id, subject, "its programs were loaded, a key was written and read"),
        Ok(false) => Check::no(id, subject, "a key that was written was not found")
            .advice("report it, with the output of `bedplate doctor --json`"),
        Err(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default().to_owned();
            Check::no(id, subject, first).advice(otherwise)
        }
    }
}

const FAST_PATH: (&str, &str) = ("local-fast-path", "cgroup2 for the fast path of local clients");

/// Links a program that does nothing to this process's own cgroup for a moment.
fn fast_path() -> Check {
    let Some(cgroup) = own_cgroup2() else {
        return Check::no(FAST_PATH.0, FAST_PATH.1, "no cgroup2 file system is mounted").advice(
            "mount -t cgroup2 none /sys/fs/cgroup/unified; without it only --local-fast-path is missing",
        );
    };
    let attempt = || -> Result<(), String> {
        let noop = [bpf::mov_imm(0, 1), bpf::exit()];
        let prog = bpf::load(sys::BPF_PROG_TYPE_SOCK_OPS, &noop).map_err(|e| e.to_string())?;
        let directory = fs::File::open(&cgroup).map_err(|e| format!("{}: {e}", cgroup.display()))?;
        bpf::link_to_cgroup(&prog, &directory, sys::BPF_CGROUP_SOCK_OPS).map_err(|e| e.to_string())?;
        Ok(())
    };
    match attempt() {
        Ok(()) => Check::yes(FAST_PATH.0, FAST_PATH.1, format!("attached at {}", cgroup.display())),
        Err(why) => Check::no(FAST_PATH.0, FAST_PATH.1, why)
            .advice("use a kernel with CONFIG_CGROUP_BPF=y; without it only --local-fast-path is missing"),
    }
}

/// Directory of this process's cgroup in the unified hierarchy.
fn own_cgroup2() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let root = mounts.lines().find_map(cgroup2_mount_point)?;
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|l| l.strip_prefix("0::/")).unwrap_or("");
    let directory = PathBuf::from(&root).join(path);
    // In a cgroup namespace the path may lead out of the mounted part.
    Some(if directory.is_dir() { directory } else { PathBuf::from(root) })
}

/// The mount point in a line of /proc/self/mountinfo if it is of a cgroup2 file system.
fn cgroup2_mount_point(line: &str) -> Option<String> {
    let (before, after) = line.split_once(" - ")?;
    (after.split(' ').next() == Some("cgroup2")).then(|| before.split(' ').nth(4))?.map(str::to_owned)
}

fn accounting(allowed: bool) -> Check {
    const ID: (&str, &str) = ("memory-accounting", "accounting of eBPF memory");
    if !allowed {
        return Check::unknown(ID.0, ID.1, NOT_ALLOWED);
    }
    // libbpf raises the limit on locked memory as far as the process may. So the check only reports which limit
    // applies: kernels since 5.11 charge the memory control group.
    match bpf::create_map(sys::BPF_MAP_TYPE_ARRAY, 4, 4096, 4096, 0) {
        Ok(_) => Check::yes(ID.0, ID.1, "16 MiB could be had in one map"),
        Err(error) => Check::no(ID.0, ID.1, format!("a map of 16 MiB: {error}"))
            .advice("raise the limit: memory.max of the control group, or `ulimit -l unlimited` before 5.11"),
    }
}

/// Checks the memory. The server takes it when it starts: 1 GiB by default.
fn memory() -> Check {
    const ID: (&str, &str) = ("memory", "memory for the default of 1 GiB");
    const DEFAULT: u64 = 1 << 30;
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|path| setting(path)?.parse::<u64>().ok())
        .unwrap_or(u64::MAX);
    match bedplate_kerneldb::available_memory() {
        Some(available) if available.min(group) > DEFAULT + DEFAULT / 4 => {
            Check::yes(ID.0, ID.1, format!("{} available", units::size(available.min(group))))
        }
        Some(available) => {
            Check::partly(ID.0, ID.1, format!("only {} available", units::size(available.min(group))))
                .advice("start the server with a smaller --memory")
        }
        None => Check::unknown(ID.0, ID.1, "/proc/meminfo cannot be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_cgroup2_mount() {
        let v2 = "30 23 0:26 / /sys/fs/cgroup/unified rw,relatime shared:4 - cgroup2 cgroup2 rw";
        let v1 = "31 23 0:27 / /sys/fs/cgroup/cpu rw,relatime shared:5 - cgroup cgroup rw,cpu";
        assert_eq!(cgroup2_mount_point(v2).as_deref(), Some("/sys/fs/cgroup/unified"));
        assert_eq!(cgroup2_mount_point(v1), None);
        assert_eq!(cgroup2_mount_point("nonsense"), None);
    }
}
