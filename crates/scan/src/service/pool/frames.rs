//! A pool's frames: they are given to members, taken back, freed, and no longer shared when they are old.

use super::super::member::Why;
use super::{AGE, Frame, Pool};
use crate::error;
use crate::source::Stamp;

impl Pool {
    /// Pre-mapping: gives every member the chunks that it has not seen.
    pub(super) fn share(&mut self) {
        for (index, frame) in self.state.iter_mut().enumerate() {
            let Frame::Shared(shared) = frame else { continue };
            if !shared.current {
                continue;
            }
            for member in self.members.values_mut() {
                if !member.seen.has(shared.chunk) && member.has_room() {
                    let chunk = &self.chunks[shared.chunk];
                    member.give(shared.chunk, chunk, index, &shared.outcome);
                    shared.members += 1;
                }
            }
        }
    }

    /// A frame to load into: a free one below the capacity, one that no member needs, or an expired one.
    pub(super) fn frame(&mut self, capacity: usize, now: u64) -> Option<usize> {
        self.recycle();
        if self.is_full(capacity) {
            // Takes the oldest first, and only the necessary number. Members may still begin the others.
            let expired = self.state.iter().enumerate().filter_map(|(index, frame)| match frame {
                Frame::Shared(shared) if shared.expires <= now => Some((shared.expires, index)),
                _ => None,
            });
            let mut expired: Vec<_> = expired.collect();
            expired.sort_unstable();
            for (_, index) in expired {
                self.recycle_one(index, true);
                if !self.is_full(capacity) {
                    break;
                }
            }
        }
        if self.is_full(capacity) { None } else { self.free.pop() }
    }

    fn is_full(&self, capacity: usize) -> bool {
        self.free.is_empty() || self.state.len() - self.free.len() >= capacity
    }

    /// Frees frames that no member has or needs.
    fn recycle(&mut self) {
        (0..self.state.len()).for_each(|index| self.recycle_one(index, false));
    }

    /// Frees a frame that no member has or needs. With `expired`, frees it unless a worker uses it right now.
    fn recycle_one(&mut self, index: usize, expired: bool) {
        let frame = &mut self.state[index];
        let Frame::Shared(shared) = frame else { return };
        let over = expired || !shared.current;
        if over && shared.members > 0 {
            let old = Why::Old(&self.chunks[shared.chunk], &shared.outcome.faults);
            let why = if expired { Why::Expired } else { old };
            shared.members -=
                self.members.values_mut().filter_map(|m| m.reclaim(index, why).then_some(())).count();
        }
        let needed =
            shared.current && !over && self.members.values().any(|member| !member.seen.has(shared.chunk));
        if shared.members == 0 && !needed {
            if shared.current {
                self.present.clear(shared.chunk);
            }
            *frame = Frame::Free;
            self.free.push(index);
        }
    }

    /// Checks every second, and when a worker joins, for chunks of files that have changed. Such chunks are no longer shared.
    pub(super) fn check_age(&mut self, now: u64, force: bool) {
        if !force && now < self.aged_at + AGE {
            return;
        }
        self.aged_at = now;
        let mut files: Vec<u32> = Vec::new();
        for frame in &self.state {
            if let Frame::Shared(shared) = frame {
                files.extend(shared.outcome.stamps.iter().map(|(file, _)| *file));
            }
        }
        files.sort_unstable();
        files.dedup();
        let stamps: Vec<_> =
            files.iter().filter_map(|file| Some((*file, self.files.stamp(*file)?))).collect();
        self.forget_older(&stamps);
    }

    /// Stops sharing chunks whose files have another stamp now, and takes them back from members that have not begun them.
    pub(super) fn forget_older(&mut self, stamps: &[(u32, Stamp)]) {
        let now = |file| stamps.iter().find(|(other, _)| *other == file).map(|(_, stamp)| *stamp);
        let mut any = false;
        for frame in &mut self.state {
            let Frame::Shared(shared) = frame else { continue };
            let changed = shared.outcome.changed(now);
            if changed.is_empty() {
                continue;
            }
            // This is for members that keep it nevertheless.
            changed
                .iter()
                .for_each(|file| shared.outcome.lose(&self.chunks[shared.chunk], *file, error::CHANGING));
            if shared.current {
                shared.current = false;
                self.present.clear(shared.chunk);
            }
            any = true;
        }
        if any {
            self.recycle();
        }
    }

    /// Stops sharing chunks with unreadable parts, because another read may succeed by now.
    pub(super) fn try_again(&mut self) {
        for frame in &mut self.state {
            if let Frame::Shared(shared) = frame
                && shared.current
                && shared.outcome.faults.is_some()
            {
                shared.current = false;
                self.present.clear(shared.chunk);
            }
        }
        self.recycle();
    }
}
