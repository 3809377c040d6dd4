//! The common parts of the tests.
#![allow(dead_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_snapshot::{Builder, Choice, Error, Kind, Memory};

/// An engine and the way in which it is used.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub kind: Kind,
    pub in_child: bool,
    pub huge_pages: bool,
}

/// The engines of a stock kernel, and `ring0` where there is ring 0.
pub fn settings() -> impl Iterator<Item = Setting> {
    let ring0 = std::env::var_os("BEDPLATE_VM").is_some();
    let mapped = [Kind::Remap, Kind::Uffd].into_iter();
    mapped
        .flat_map(|kind| [false, true].map(|in_child| (kind, in_child)))
        .chain([(Kind::Fork, true)])
        .chain(ring0.then_some((Kind::Ring0, false)))
        .flat_map(|(kind, in_child)| [false, true].map(|huge_pages| Setting { kind, in_child, huge_pages }))
}

/// A memory, or `None` after a printed line that says why the test is skipped.
pub fn memory(bytes: usize, setting: Setting) -> Option<Memory> {
    build(Memory::builder(bytes), setting)
}

/// A memory with this setting and builder, or `None` after a printed line that says why the test is skipped.
pub fn build(builder: Builder, setting: Setting) -> Option<Memory> {
    let builder = builder.engine(Choice::Only(setting.kind));
    match builder.in_child(setting.in_child).huge_pages(setting.huge_pages).build() {
        Ok(memory) => Some(memory),
        Err(Error::Unavailable { engine, reason }) => {
            println!("skipped: the {engine} engine does not work here: {reason}");
            None
        }
        Err(error) => panic!("{setting:?}: {error}"),
    }
}

/// Tells other threads to end when it is dropped, even after a failed assertion, because a scope waits for its threads.
pub struct EndOnDrop<'a>(pub &'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A random number generator that needs no crate: xorshift.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
