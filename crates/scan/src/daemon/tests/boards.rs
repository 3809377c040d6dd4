//! Boards that a process other than a correct worker writes to: random stores while the service reads, and breaches that would
//! give an advantage to their author.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::*;
use crate::board::{Board, Closed, State};
use crate::memory::{Access, Mapping};

/// A channel whose board belongs to a malicious process.
struct Vandal {
    socket: Socket,
    board: Board,
    memory: Mapping,
}

impl Vandal {
    fn new(scene: &Scene, request: &Request) -> Self {
        let socket = scene.client();
        let file = std::fs::File::open(scene.file()).unwrap();
        let Received { message: Reply::Channel { .. }, descriptors } = begin(&socket, request, &file) else {
            panic!("no channel")
        };
        let [board, _frames]: [OwnedFd; 2] = descriptors.try_into().unwrap();
        let bytes = rustix::fs::fstat(&board).unwrap().st_size as usize;
        let memory = Mapping::of(&board, 0, bytes, Access::ReadWrite).unwrap();
        Self { socket, board: Board::open(board).unwrap(), memory }
    }

    fn member(scene: &Scene, pool: &Pool) -> Self {
        Self::new(scene, &Request::Join { key: pool.key().to_bytes(), page_size: 4096, files: 1 })
    }

    fn private(scene: &Scene) -> Self {
        Self::new(
            scene,
            &Request::Open { page_size: 4096, ring_bytes: 4 << 20, terms: TERMS, ranges: None, files: 1 },
        )
    }

    /// Writes random values to random places. Small numbers, which are states, and the first words are frequent.
    fn scribble(&self, random: u64) {
        let words = self.memory.bytes() / 4;
        let at = match random % 3 {
            0 => (random >> 8) as usize % words,
            _ => (random >> 8) as usize % (2048 / 4),
        };
        let value = match (random >> 40) % 4 {
            0 => random >> 42,
            1 => u64::MAX,
            2 => 1 << ((random >> 42) % 64),
            _ => (random >> 42) % 8,
        };
        if random >> 63 == 0 {
            // SAFETY: aligned and within the mapping; all of it is only accessed as atomics.
            unsafe { AtomicU32::from_ptr(self.memory.start().cast::<u32>().add(at)) }
                .store(value as u32, Relaxed);
        } else {
            // SAFETY: as above.
            let word = unsafe { AtomicU64::from_ptr(self.memory.start().cast::<u64>().add(at / 2)) };
            word.store(value, Relaxed);
        }
        if random.is_multiple_of(64) {
            self.socket.send_now(&Request::Ring, &[]);
        }
    }
}

#[test]
fn random_stores_harm_nobody_else() {
    let scene = Scene::new(6);
    let pool = scene.pool(12);
    let mut seed = u64::from(std::process::id()) << 20 | 0x5eed;
    println!("seed {seed}");
    for round in 0..24 {
        let vandals: Vec<_> = (0..3)
            .map(|number| if number == 0 { Vandal::private(&scene) } else { Vandal::member(&scene, &pool) })
            .collect();
        std::thread::scope(|scope| {
            let honest = scope.spawn(|| scene.honest(&pool));
            while !honest.is_finished() {
                for vandal in &vandals {
                    // The number of writes varies, so that some of them go unnoticed for a while.
                    for _ in 0..1 + (round % 4) * 20 {
                        seed ^= seed << 13;
                        seed ^= seed >> 7;
                        seed ^= seed << 17;
                        vandal.scribble(seed);
                    }
                }
                std::thread::sleep(Duration::from_micros(300));
            }
        });
    }
    drop(pool);
    scene.nothing_is_left();
}

/// Waits until the service has reported why a channel is over.
fn ended(vandal: &Vandal) -> Option<Closed> {
    let end = Instant::now() + PATIENCE;
    while vandal.board.closed().is_none() && Instant::now() < end {
        vandal.socket.send_now(&Request::Ring, &[]);
        std::thread::sleep(Duration::from_millis(2));
    }
    vandal.board.closed()
}

#[test]
fn who_says_it_uses_everything_has_nothing() {
    let scene = Scene::new(20);
    let pool = scene.pool(8);
    let vandal = Vandal::member(&scene, &pool);
    let end = Instant::now() + PATIENCE;
    // This worker takes every page and returns none, so it has more than one page at a time.
    let mut taken = 0;
    while taken < 2 && Instant::now() < end {
        taken += vandal.board.entries().iter().filter(|entry| entry.word.take()).count();
    }
    assert!(taken >= 2);
    assert_eq!(ended(&vandal), Some(Closed::Broken));
    assert_eq!(scene.service.statistics().channels, 0);
    scene.honest(&pool);
}

#[test]
fn a_private_channel_that_is_broken_ends() {
    let scene = Scene::new(20);
    let vandal = Vandal::private(&scene);
    let end = Instant::now() + PATIENCE;
    while vandal.board.entries()[0].word.state() != State::Ready && Instant::now() < end {
        std::thread::yield_now();
    }
    vandal.board.entries()[0].word.publish();
    assert_eq!(ended(&vandal), Some(Closed::Broken));
    drop(vandal);
    scene.nothing_is_left();
}
