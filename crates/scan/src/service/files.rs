//! The files of a channel in the control loop.

use crate::Result;
use crate::engine::Engine;
use crate::extents::Extents;
use crate::source::{File, Stamp};

/// Files that are registered with the engine.
pub struct Files {
    files: Vec<File>,
    ids: Vec<usize>,
    extents: Vec<Extents>,
    is_watched: bool,
}

impl Files {
    /// Registers files with the engine: all of them, or none.
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

    /// No files, for tests that read nothing.
    #[cfg(test)]
    pub fn none() -> Self {
        Self { files: Vec::new(), ids: Vec::new(), extents: Vec::new(), is_watched: true }
    }

    /// Unregisters the files.
    pub fn remove(&self, engine: &mut dyn Engine) {
        self.ids.iter().for_each(|id| engine.remove_file(*id));
    }

    /// The engine's number of a file.
    pub fn id(&self, file: u32) -> usize {
        self.ids[file as usize]
    }

    /// The alignment of reads of the file.
    pub fn unit(&self, file: u32) -> usize {
        self.files[file as usize].unit as usize
    }

    /// The device that has the file.
    pub fn device(&self, file: u32) -> u64 {
        self.files[file as usize].device
    }

    /// The file's stamp now; `None` if it has none. If the kernel does not report the stamp, the file counts as changed.
    pub fn stamp(&self, file: u32) -> Option<Stamp> {
        let file = &self.files[file as usize];
        file.stamp_now().unwrap_or_else(|_| Some(Stamp::unknown()))
    }

    /// Whether the service reads files again that change during a read or later.
    pub fn are_watched(&self) -> bool {
        self.is_watched
    }

    /// The file's stamp now; `None` also if the kernel does not report it.
    pub fn known_stamp(&self, file: u32) -> Option<Stamp> {
        self.files[file as usize].stamp_now().ok().flatten()
    }

    /// Whether a stamp that is the same before and after a read proves that no process wrote in between. Reads through the page
    /// cache do not wait for writes in progress. Direct reads of some file systems do not either.
    pub fn waits_for_writes(&self, file: u32) -> bool {
        let file = &self.files[file as usize];
        file.direct.is_ok() && file.waits_for_writes
    }

    /// Whether the file lost a name since the scan began.
    pub fn replaced(&self, file: u32, now: &Stamp) -> bool {
        self.files[file as usize].stamp.is_some_and(|first| now.lost_a_name_since(&first))
    }

    /// The offset where a request for the file should end.
    pub fn cut(&self, file: u32, from: u64, to: u64) -> u64 {
        self.extents[file as usize].cut(from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;

    /// The stamp from the opening would equal that from before a read, whatever was written meanwhile.
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
