//! The `ring0` engine: page tables of this process's own.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use bedplate_ring0::Process;

use super::{Engine, Kind, Shape, Statistics, Work};
use crate::ring0::{Background, Space};
use crate::running::Snapshot;
use crate::{Error, ring0};

/// A memory that only ring 0 can use.
pub(crate) struct Ring0 {
    // Dropped first: it works on the memory.
    background: Background,
    space: Arc<Space>,
}

impl Ring0 {
    pub(crate) fn new(shape: Shape) -> Result<Self, Error> {
        let space = Space::new(process()?, shape)?;
        Ok(Self { background: Background::start(&space, shape.copiers)?, space })
    }
}

/// This process in ring 0, built if it is not.
pub(crate) fn process() -> Result<&'static Process, Error> {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(process) = Process::current() {
        return Ok(process);
    }
    if !virtualizes() {
        return Err(unavailable(
            "this processor shows no VT-x or AMD-V; `bedplate doctor` tells what ring 0 needs",
        ));
    }
    Process::builder().build().map_err(unavailable)
}

fn unavailable(reason: impl std::fmt::Display) -> Error {
    Error::Unavailable { engine: Kind::Ring0, reason: reason.to_string() }
}

/// Whether the processor has VT-x or AMD-V, without which KVM emulates ring 0, and cannot run what a program has.
fn virtualizes() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
}

impl Engine for Ring0 {
    fn kind(&self) -> Kind {
        Kind::Ring0
    }

    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.space.base() as *mut u8).expect("no memory is at address 0")
    }

    fn spawn(&self, work: Work) -> Result<Snapshot, Error> {
        ring0::spawn(&self.space, work)
    }

    fn settle(&self) {
        self.background.settle();
    }

    fn statistics(&self) -> Statistics {
        self.space.statistics()
    }
}
