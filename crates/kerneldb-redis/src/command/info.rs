//! INFO: statistics for monitoring tools, under Redis's names.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering::Relaxed;

use super::exec::{Ctx, Run, is};
use super::format_bytes;
use super::operators::Operators;
use super::request::Core;
use super::services::{Keyspace, Services};
use crate::REDIS_VERSION;
use crate::resp::Args;
use bedplate_kerneldb::{Durability, EngineKind};

const SECTIONS: [&str; 12] = [
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "cpu",
    "bedplate",
    "commandstats",
    "errorstats",
    "cluster",
    "keyspace",
];

pub(super) fn run<S: Operators, V: Services>(core: &Core, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let everything = args.from(1).any(|a| is(a, "all") || is(a, "everything"));
    let default = everything || args.len() == 1 || args.from(1).any(|a| is(a, "default"));
    let mut text = Text::default();
    for section in SECTIONS {
        if everything || default && section != "commandstats" || args.from(1).any(|a| is(a, section)) {
            write_section(core, ctx, section, &mut text);
        }
    }
    ctx.out.verbatim(text.0.as_bytes());
    Ok(())
}

/// Lines `name:value` under headlines.
#[derive(Default)]
struct Text(String);

impl Text {
    fn headline(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push_str("\r\n");
        }
        let (first, rest) = name.split_at(1);
        let _ = write!(self.0, "# {}{rest}\r\n", first.to_ascii_uppercase());
    }

    fn line(&mut self, name: &str, value: impl Display) {
        let _ = write!(self.0, "{name}:{value}\r\n");
    }
}

fn write_section<S: Operators, V: Services>(
    core: &Core,
    ctx: &Ctx<'_, S, V>,
    section: &str,
    text: &mut Text,
) {
    text.headline(section);
    let services = ctx.services;
    let server = &core.server;
    let settings = &server.settings;
    match section {
        "server" => {
            let uptime_s = ctx.now_ms.saturating_sub(server.started_ms) / 1000;
            text.line("redis_version", REDIS_VERSION);
            text.line("bedplate_version", env!("CARGO_PKG_VERSION"));
            text.line("redis_mode", "standalone");
            text.line("os", kernel());
            text.line("arch_bits", usize::BITS);
            text.line("multiplexing_api", "ebpf+epoll");
            text.line("process_id", std::process::id());
            text.line("run_id", &server.run_id);
            text.line("tcp_port", settings.startup().port);
            text.line("server_time_usec", services.now().as_micros());
            text.line("uptime_in_seconds", uptime_s);
            text.line("uptime_in_days", uptime_s / 86_400);
        }
        "clients" => {
            text.line("connected_clients", server.clients.len());
            text.line("maxclients", settings.max_clients());
            text.line("blocked_clients", 0);
            text.line("tracking_clients", 0);
        }
        "memory" => {
            let memory = services.memory();
            text.line("used_memory", memory.used);
            text.line("used_memory_human", format_bytes(memory.used));
            text.line("maxmemory", memory.limit);
            text.line("maxmemory_human", format_bytes(memory.limit));
            text.line("maxmemory_policy", settings.eviction().name());
            text.line("allocator_allocated", memory.heap.allocated_bytes);
            text.line("allocator_active", memory.heap.slab_bytes);
            text.line("mem_fragmentation_ratio", format_args!("{:.2}", memory.heap.fragmentation_ratio()));
            text.line(
                "mem_fragmentation_bytes",
                memory.heap.slab_bytes.saturating_sub(memory.heap.allocated_bytes),
            );
            text.line("number_of_cached_scripts", server.scripts.len());
            let functions = server.functions.catalog();
            text.line("number_of_functions", functions.functions());
            text.line("number_of_libraries", functions.libraries().len());
            text.line("used_memory_functions", functions.bytes());
            text.line("used_memory_scripts", server.scripts.bytes() + functions.bytes());
            text.line("bedplate_free_slabs", memory.heap.free_slabs());
            text.line("bedplate_evacuated_bytes", memory.heap.evacuated_bytes);
        }
        "persistence" => {
            let (last, succeeded) = services.last_save();
            let status = |ok| if ok { "ok" } else { "err" };
            text.line("loading", 0);
            text.line("rdb_bgsave_in_progress", u8::from(services.saving()));
            text.line("rdb_last_save_time", last);
            text.line("rdb_last_bgsave_status", status(succeeded));
            text.line("aof_enabled", u8::from(services.logged()));
            text.line("aof_rewrite_in_progress", 0);
            text.line("aof_last_write_status", status(!services.log_failed()));
        }
        "stats" => {
            let kernel = services.kernel_activity();
            for (name, counter) in server.counters.all() {
                let of_kernel = match name {
                    "total_commands_processed" => kernel.commands,
                    "total_net_input_bytes" => kernel.input_bytes,
                    "total_net_output_bytes" => kernel.output_bytes,
                    "keyspace_hits" => kernel.hits,
                    "keyspace_misses" => kernel.misses,
                    "total_error_replies" => kernel.refusals,
                    _ => 0,
                };
                text.line(name, counter.load(Relaxed) + of_kernel);
            }
            text.line("instantaneous_ops_per_sec", kernel.ops_per_second);
            text.line("expired_keys", kernel.expired);
            text.line("expired_stale_perc", format_args!("{:.2}", kernel.expired_stale_percent));
            text.line("expired_time_cap_reached_count", kernel.expired_time_cap_reached);
            text.line("evicted_keys", kernel.evicted);
            text.line("pubsub_channels", 0);
        }
        "replication" => {
            text.line("role", "master");
            text.line("connected_slaves", 0);
            text.line("master_repl_offset", 0);
        }
        "cpu" => {
            let (user, system) = cpu_time();
            text.line("used_cpu_sys", format_args!("{system:.6}"));
            text.line("used_cpu_user", format_args!("{user:.6}"));
        }
        "bedplate" => {
            let durability = match settings.database_options().durability {
                Durability::Off => "off",
                Durability::Async => "async",
                Durability::Sync => "sync",
            };
            let engine = match services.storage_engine() {
                EngineKind::Arena => "arena",
                EngineKind::HashMap => "hash-map",
            };
            text.line("storage_engine", engine);
            text.line("durability", durability);
            let timeouts = &settings.startup().timeouts;
            text.line("transaction_timeout_ms", timeouts.transaction_ms.load(Relaxed));
            text.line("transaction_idle_timeout_ms", timeouts.idle_ms.load(Relaxed));
            text.line("snapshot_grace_ms", timeouts.snapshot_grace_ms.load(Relaxed));
            text.line("scan_grace_ms", timeouts.scan_grace_ms.load(Relaxed));
            text.line("transaction_bytes_max", bedplate_kerneldb::limits::TX_BYTES_MAX);
            text.line("database_rebuilds", services.rebuilds());
            for (name, value) in services.statistics() {
                text.line(name, value);
            }
        }
        "commandstats" => {
            let kernel = services.kernel_activity();
            for (name, line) in server.counters.calls.lines(&kernel.calls, kernel.refusals) {
                text.line(&name, line);
            }
        }
        "errorstats" => {
            for (name, line) in server.counters.errors_by_code.lines() {
                text.line(&name, line);
            }
        }
        "cluster" => text.line("cluster_enabled", 0),
        _ => {
            let Keyspace { keys, expiring, average_ttl_ms } = services.keyspace();
            if keys > 0 {
                text.line("db0", format_args!("keys={keys},expires={expiring},avg_ttl={average_ttl_ms}"));
            }
        }
    }
}

fn kernel() -> String {
    let uname = rustix::system::uname();
    let part = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    format!("{} {} {}", part(uname.sysname()), part(uname.release()), part(uname.machine()))
}

/// Seconds of processor time of this process: user, system.
fn cpu_time() -> (f64, f64) {
    // SAFETY: `getrusage` fills the structure it is given; all zeros is a valid value of it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}
