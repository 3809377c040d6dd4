//! The files of a channel, as the control loop has them.

use crate::Result;
use crate::engine::Engine;
use crate::extents::Extents;
use crate::source::{File, Stamp};

/// Files that the engine knows.
pub struct Files {
    files: Vec<File>,
    ids: Vec<usize>,
    extents: Vec<Extents>,
    is_watched: bool,
}

impl Files {
    /// Makes the engine know files: all of them, or none.
    pub fn add(
        engine: &mut dyn Engine,
        files: Vec<File>,
        extents: Vec<Extents>,
        is_watched: bool,
    ) -> Result<Self> {
        let mut ids = Vec::with_capacity(files.len());
        for file in &files {
            match engine.add_file(file.descriptor().clone()) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    ids.into_iter().for_each(|id| engine.remove_file(id));
                    return Err(error);
                }
            }
        }
        Ok(Self { files, ids, extents, is_watched })
    }

    /// None, for tests that read nothing.
    #[cfg(test)]
    pub fn none() -> Self {
        Self { files: Vec::new(), ids: Vec::new(), extents: Vec::new(), is_watched: true }
    }

    /// Makes the engine forget them.
    pub fn remove(&self, engine: &mut dyn Engine) {
        self.ids.iter().for_each(|id| engine.remove_file(*id));
    }

    /// The engine's name of a file.
    pub fn id(&self, file: u32) -> usize {
        self.ids[file as usize]
    }

    /// The alignment of reads of the file.
    pub fn unit(&self, file: u32) -> usize {
        self.files[file as usize].unit as usize
    }

    /// The device it is on.
    pub fn device(&self, file: u32) -> u64 {
        self.files[file as usize].device
    }

    /// Its stamp now; `None` of what has none. If the kernel does not say it, the file counts as changed.
    pub fn stamp(&self, file: u32) -> Option<Stamp> {
        let file = &self.files[file as usize];
        file.stamp_now().unwrap_or_else(|_| Some(Stamp::unknown()))
    }

    /// Whether what is read of files that change meanwhile, or later, is read again.
    pub fn are_watched(&self) -> bool {
        self.is_watched
    }

    /// Its stamp now; `None` also if that cannot be had.
    pub fn known_stamp(&self, file: u32) -> Option<Stamp> {
        self.files[file as usize].stamp_now().ok().flatten()
    }

    /// Whether a stamp that is the same before and after a read proves that nobody wrote meanwhile. Reads through the page
    /// cache do not wait for writes that go on, nor do direct reads of some file systems.
    pub fn waits_for_writes(&self, file: u32) -> bool {
        let file = &self.files[file as usize];
        file.direct.is_ok() && file.waits_for_writes
    }

    /// Whether it lost a name since the scan began.
    pub fn replaced(&self, file: u32, now: &Stamp) -> bool {
        self.files[file as usize].stamp.is_some_and(|first| now.lost_a_name_since(&first))
    }

    /// Where a request of it should end.
    pub fn cut(&self, file: u32, from: u64, to: u64) -> u64 {
        self.extents[file as usize].cut(from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;

    /// The stamp from when it was opened would be equal to the one from before a read, whatever was written meanwhile.
    #[test]
    fn a_file_whose_stamp_cannot_be_had_counts_as_changed() {
        let file = tempfile::tempfile().unwrap();
        let file = File::open(&Source::from(file)).unwrap();
        let before = file.stamp_now().unwrap().unwrap();
        let files = Files { files: vec![file.unanswered()], ..Files::none() };
        let now = files.stamp(0).unwrap();
        assert!(now != before && now != now, "{now:?}");
        assert!(!before.proves_unchanged(&now) && !now.proves_unchanged(&now));
        assert!(!files.replaced(0, &now), "it has its name, as far as one can see");
        assert!(files.known_stamp(0).is_none());
    }
}
