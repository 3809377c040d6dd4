//! The figures of a process, and the names of each for people, in JSON and in Prometheus.

use bedplate_snapshot::statistics::processes::Process;
use bedplate_snapshot::{Kind, PAGE};

use crate::units;

/// The unit of a figure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Count,
    Bytes,
    Nanoseconds,
}

/// A figure.
pub struct Figure {
    /// The label in tables.
    pub label: &'static str,
    /// Its name for machines, without its unit.
    pub name: &'static str,
    pub unit: Unit,
    /// Whether it only grows, as long as the process lives.
    pub is_counter: bool,
    /// Whether an engine has it.
    pub is_of: fn(Option<Kind>) -> bool,
    /// The description, one sentence.
    pub help: &'static str,
    pub get: fn(&Process) -> u64,
}

impl Figure {
    /// Its name in JSON.
    pub fn key(&self) -> String {
        let unit = match self.unit {
            Unit::Count => "",
            Unit::Bytes => "_bytes",
            Unit::Nanoseconds => "_ns",
        };
        format!("{}{unit}", self.name)
    }

    /// Its value as people read it.
    pub fn text(&self, process: &Process) -> String {
        let value = (self.get)(process);
        match self.unit {
            Unit::Count => units::count(value),
            Unit::Bytes => units::size(value),
            Unit::Nanoseconds => units::duration(value),
        }
    }
}

/// The figures that a process has.
pub fn of(process: &Process) -> impl Iterator<Item = &'static Figure> {
    FIGURES.iter().filter(|figure| (figure.is_of)(process.page.engine))
}

/// The bytes of `pages` pages.
fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE as u64)
}

fn every(_: Option<Kind>) -> bool {
    true
}

fn any(engine: Option<Kind>) -> bool {
    engine.is_some()
}

fn remap(engine: Option<Kind>) -> bool {
    engine == Some(Kind::Remap)
}

fn uffd(engine: Option<Kind>) -> bool {
    engine == Some(Kind::Uffd)
}

fn ring0(engine: Option<Kind>) -> bool {
    engine == Some(Kind::Ring0)
}

fn handles_faults(engine: Option<Kind>) -> bool {
    uffd(engine) || ring0(engine)
}

/// A counter of an engine's.
const COUNTER: Figure =
    Figure { label: "", name: "", unit: Unit::Count, is_counter: true, is_of: any, help: "", get: |_| 0 };
/// A value of an engine's that rises and falls.
const GAUGE: Figure = Figure { is_counter: false, ..COUNTER };

/// All figures, in the order in which they are shown.
pub const FIGURES: &[Figure] = &[
    Figure {
        label: "snapshots taken",
        name: "taken",
        help: "Snapshots taken.",
        get: |process| process.page.statistics.snapshots,
        ..COUNTER
    },
    Figure {
        label: "snapshots that failed",
        name: "failed",
        help: "Snapshots that could not be taken.",
        get: |process| process.page.statistics.failed,
        ..COUNTER
    },
    Figure {
        label: "snapshots given up",
        name: "given_up",
        is_of: uffd,
        help: "Snapshots that were given up because a page could not be kept for them.",
        get: |process| process.page.statistics.incomplete,
        ..COUNTER
    },
    Figure {
        label: "snapshots active",
        name: "active",
        help: "Snapshots that have not ended.",
        get: |process| process.page.statistics.active,
        ..GAUGE
    },
    Figure {
        label: "snapshots in constant time",
        name: "instantaneous",
        is_of: |engine| remap(engine) || ring0(engine),
        help: "Snapshots that copied no page tables when they began.",
        get: |process| process.page.statistics.instantaneous,
        ..COUNTER
    },
    Figure {
        label: "snapshots copied as usual",
        name: "copied_as_usual",
        is_of: remap,
        help: "Snapshots for which fork copied page tables of the memory, because another snapshot was active or not all was merged.",
        get: |process| process.page.statistics.copied_as_usual,
        ..COUNTER
    },
    Figure {
        label: "latest pause",
        name: "latest_pause",
        unit: Unit::Nanoseconds,
        help: "How long the latest snapshot held up writers.",
        get: |process| process.page.statistics.latest_pause_ns,
        ..GAUGE
    },
    Figure {
        label: "longest pause",
        name: "longest_pause",
        unit: Unit::Nanoseconds,
        help: "How long a snapshot held up writers at most.",
        get: |process| process.page.statistics.longest_pause_ns,
        ..GAUGE
    },
    Figure {
        label: "memory in use",
        name: "memory",
        unit: Unit::Bytes,
        help: "Memory of the program's of which snapshots are taken; fork copies the rest as usual.",
        get: |process| bytes(process.page.statistics.pages_claimed),
        ..GAUGE
    },
    Figure {
        label: "memory not merged yet",
        name: "private",
        unit: Unit::Bytes,
        is_of: remap,
        help: "Memory that is mapped privately, for active snapshots or until it is merged.",
        get: |process| bytes(process.page.statistics.pages_private),
        ..GAUGE
    },
    Figure {
        label: "memory copied",
        name: "copied",
        unit: Unit::Bytes,
        help: "Pages that were copied because they were written to while a snapshot needed them; with remap they count when they are merged.",
        get: |process| bytes(process.page.statistics.pages_copied),
        ..COUNTER
    },
    Figure {
        label: "merges",
        name: "merges",
        is_of: remap,
        help: "Times at which all memory was merged after snapshots had ended.",
        get: |process| process.page.statistics.merges,
        ..COUNTER
    },
    Figure {
        label: "latest merge",
        name: "latest_merge",
        unit: Unit::Nanoseconds,
        is_of: remap,
        help: "How long it took to merge all memory the latest time.",
        get: |process| process.page.statistics.latest_merge_ns,
        ..GAUGE
    },
    Figure {
        label: "all merges",
        name: "merge",
        unit: Unit::Nanoseconds,
        is_of: remap,
        help: "How long it took to merge all memory, all times together.",
        get: |process| process.page.statistics.merges_ns,
        ..COUNTER
    },
    Figure {
        label: "write faults",
        name: "faults",
        is_of: handles_faults,
        help: "Write faults that the engine handled.",
        get: |process| process.page.statistics.faults,
        ..COUNTER
    },
    Figure {
        label: "memory not protected",
        name: "unprotected",
        unit: Unit::Bytes,
        is_of: uffd,
        help: "Memory that the next snapshot has to protect against writes.",
        get: |process| bytes(process.page.statistics.pages_unarmed),
        ..GAUGE
    },
    Figure {
        label: "protected at snapshots",
        name: "protected_at_snapshots",
        unit: Unit::Bytes,
        is_of: handles_faults,
        help: "Memory that was protected against writes while snapshots held up writers.",
        get: |process| bytes(process.page.statistics.pages_armed_at_snapshots),
        ..COUNTER
    },
    Figure {
        label: "protected ahead",
        name: "protected_ahead",
        unit: Unit::Bytes,
        is_of: ring0,
        help: "Memory that was protected against writes ahead of snapshots.",
        get: |process| bytes(process.page.statistics.pages_armed_ahead),
        ..COUNTER
    },
    Figure {
        label: "extra memory",
        name: "extra",
        unit: Unit::Bytes,
        is_of: ring0,
        help: "Memory that snapshots take beside the program's, with what is made ahead for them.",
        get: |process| process.page.statistics.extra_bytes,
        ..GAUGE
    },
    Figure {
        label: "resident, its own",
        name: "resident_anonymous",
        unit: Unit::Bytes,
        is_of: every,
        help: "Resident memory that belongs to the process alone: with remap its copies of pages, and all that is not in large mappings.",
        get: |process| process.anonymous_bytes,
        ..GAUGE
    },
    Figure {
        label: "resident, shared",
        name: "resident_shared",
        unit: Unit::Bytes,
        is_of: every,
        help: "Resident shared memory, which is the memory that snapshots are taken of.",
        get: |process| process.shared_bytes,
        ..GAUGE
    },
];
