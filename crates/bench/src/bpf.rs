//! The kernel's data about loaded eBPF programs: run time, size, the verifier's work.

use std::os::fd::{FromRawFd, OwnedFd};
use std::{io, mem};

pub use libbpf_rs::ProgramType;

use crate::{Error, Result};
use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapHandle, MapType, libbpf_sys};

/// One loaded program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Kernel's identifier.
    pub id: u32,
    /// Name, at most 15 characters.
    pub name: String,
    /// Program type.
    pub kind: ProgramType,
    /// Nanoseconds in the program since statistics were switched on; a tail call's time belongs to the
    /// program that was entered first.
    pub run_ns: u64,
    /// Runs since statistics were switched on.
    pub runs: u64,
    /// Instructions that the verifier processed (states × instructions).
    pub verified_insns: u32,
    /// Instructions of the program as translated by the kernel.
    pub insns: usize,
}

/// All programs loaded in the kernel; empty without the privilege to see them.
pub fn programs() -> Vec<Program> {
    let options = ProgInfoQueryOptions::default().include_xlated_prog_insns(true);
    ProgInfoIter::with_query_opts(options)
        .map(|p| Program {
            id: p.id,
            name: p.name.to_string_lossy().into_owned(),
            kind: p.ty,
            run_ns: p.run_time_ns,
            runs: p.run_cnt,
            verified_insns: p.verified_insns,
            insns: p.xlated_prog_insns.len() / 8,
        })
        .collect()
}

/// Identifiers of all programs loaded in the kernel.
pub fn program_ids() -> Vec<u32> {
    ProgInfoIter::default().map(|p| p.id).collect()
}

/// Returns the hash maps used by programs that are not in `before`; an error if there are none.
pub fn hash_maps_of_programs_since(before: &[u32]) -> Result<Vec<MapHandle>> {
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let mut ids: Vec<u32> = ProgInfoIter::with_query_opts(options)
        .filter(|p| !before.contains(&p.id))
        .flat_map(|p| p.map_ids)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    // A map may be gone by now; then it belonged to another database.
    let maps = ids.into_iter().filter_map(|id| MapHandle::from_map_id(id).ok());
    let maps: Vec<_> = maps.filter(|m| m.map_type() == MapType::Hash).collect();
    if maps.is_empty() {
        return Err(Error::Missing {
            what: "the hash-map engine has no hash maps here".to_owned(),
            hint: "run as root, with a build that has the hash-map engine",
        });
    }
    Ok(maps)
}

/// Switches run-time statistics of all programs on while it lives. They cost two clock reads per run,
/// so throughput is never measured with them on.
#[derive(Debug)]
pub struct RunTimeStats {
    _switch: OwnedFd,
}

impl RunTimeStats {
    /// Switches them on.
    pub fn enable() -> io::Result<Self> {
        // SAFETY: plain system call without pointers; a negative result is an error.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: the descriptor was just opened and nothing else owns it.
        Ok(RunTimeStats { _switch: unsafe { OwnedFd::from_raw_fd(fd) } })
    }
}

/// Run time in nanoseconds, between two listings, of the programs for which `counts` holds.
pub fn run_ns_between(before: &[Program], after: &[Program], counts: impl Fn(&Program) -> bool) -> u64 {
    let earlier = |id| before.iter().find(|p| p.id == id).map_or(0, |p| p.run_ns);
    after.iter().filter(|p| counts(p)).map(|p| p.run_ns.saturating_sub(earlier(p.id))).sum()
}

/// Whether two program types are the same (the type has no equality across versions of the library).
pub fn same_kind(a: ProgramType, b: ProgramType) -> bool {
    mem::discriminant(&a) == mem::discriminant(&b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(id: u32, run_ns: u64, kind: ProgramType) -> Program {
        Program { id, name: String::new(), kind, run_ns, runs: 0, verified_insns: 0, insns: 0 }
    }

    #[test]
    fn only_what_ran_in_between_counts() {
        let before = [program(1, 100, ProgramType::SkSkb), program(2, 50, ProgramType::SkMsg)];
        let after = [
            program(1, 170, ProgramType::SkSkb),
            program(2, 90, ProgramType::SkMsg),
            program(3, 7, ProgramType::SkSkb),
        ];
        assert_eq!(run_ns_between(&before, &after, |p| same_kind(p.kind, ProgramType::SkSkb)), 77);
        assert_eq!(run_ns_between(&before, &after, |_| true), 117);
    }
}
