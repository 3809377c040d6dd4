//! A pool's invariants, for its model.

#![allow(dead_code, reason = "the pool is there twice in tests, and only the model's is checked")]

use std::collections::BTreeSet;

use super::{Frame, Pool};
use crate::source::Stamp;

impl Pool {
    /// Reports that files have these stamps now.
    pub fn changed(&mut self, stamps: &[(u32, Stamp)]) {
        self.forget_older(stamps);
    }

    /// Panics unless the frames and chunks are consistent.
    pub fn check(&self) {
        let free: BTreeSet<usize> = self.free.iter().copied().collect();
        assert_eq!(free.len(), self.free.len(), "a frame is free twice");
        let mut there = BTreeSet::new();
        let mut loading = 0;
        for (index, frame) in self.state.iter().enumerate() {
            let given = self.members.values().flat_map(|member| member.given());
            let holders = given.filter(|given| given.frame == index).count();
            assert_eq!(
                free.contains(&index),
                matches!(frame, Frame::Free),
                "frame {index} is lost, or in use and free"
            );
            match frame {
                Frame::Free => assert_eq!(holders, 0, "frame {index} is free, and a member has it"),
                Frame::Loading => {
                    loading += 1;
                    assert_eq!(holders, 0, "frame {index} is loaded into, and a member has it");
                }
                Frame::Shared(shared) => {
                    assert_eq!(holders, shared.members, "frame {index} is counted wrongly");
                    if shared.current {
                        assert!(there.insert(shared.chunk), "chunk {} is there twice", shared.chunk);
                    }
                }
            }
        }
        assert_eq!(loading, self.flying, "loads are counted wrongly");
        assert!(there.iter().all(|chunk| self.present.has(*chunk)), "a chunk is there, and not present");
        assert_eq!(self.present.count(), there.len() + loading, "a chunk is present, and not there");
        for (id, member) in &self.members {
            let given: Vec<usize> = member.given().map(|given| given.chunk).collect();
            assert!(
                given.iter().all(|chunk| member.seen.has(*chunk)),
                "member {id} has what it was not given"
            );
            let distinct: BTreeSet<usize> = given.iter().copied().collect();
            assert_eq!(distinct.len(), given.len(), "member {id} has a chunk twice");
        }
    }

    /// Number of frames that no member has.
    pub fn unused(&self) -> usize {
        let unused = |frame: &&Frame| match frame {
            Frame::Free => true,
            Frame::Loading => false,
            Frame::Shared(shared) => shared.members == 0,
        };
        self.state.iter().filter(unused).count()
    }

    /// Whether a member has had its round.
    pub fn is_derailed(&self, id: usize) -> bool {
        self.members[&id].passed >= self.chunks.len()
    }
}
