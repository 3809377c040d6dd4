//! Checks the turn of one connection with loom, in every order in which the two sides are interrupted at most three times.
//!
//! The event loop's operations on the words are the product's file ([`words`]), here once more with loom's atomics. The
//! eBPF programs are written down again in Rust, word by word: [`Kernel`] models `receive.h`, `handover.h` and
//! `send.h`. [`EventLoop`] models `Client::advance` and `Signals::take`.
//!
//! The translation from C follows the rules of x86. A plain access is an acquire load or a release store. An
//! atomic operation is also a full barrier.
//!
//! The model has the verdict, the sender, and the event loop. It has the socket's lock, under which both programs run,
//! and the receive buffer, which passed bytes reach some time after they were counted. It also has the signal with its
//! bell, and the watch for arriving data. It lacks the local fast path, MULTI, and the sweep, which would hide a lost
//! signal. On the side of the programs, it lacks memory models weaker than that of x86.
//!
//! The tests check that:
//!  - One side at a time executes commands: the session is a loom cell.
//!  - Every command is executed once, in order, and its reply leaves once, in order.
//!  - Passed bytes are read before the verdict executes again.
//!  - No signal is lost: at the end no request waits, and it is the verdict's turn.
//!
//! A [`Mutant`] is a mistake that the model must notice.

#![allow(clippy::duplicate_mod, reason = "with other atomics")]

mod atomics {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
mod event_loop;
mod kernel;
#[path = "../words.rs"]
mod words;

use std::collections::VecDeque;

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::Turn;
use atomics::{AtomicU32, AtomicU64};
use event_loop::EventLoop;
use kernel::{Kernel, locked};
use words::TurnWords;

/// The sides that can execute a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Both sides.
    Simple,
    /// The event loop alone.
    Complex,
}

/// A command, which is one byte of a request. Its number is its position in the client's data, and also its reply.
type Command = (u32, Kind);

/// A step of the kernel.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A packet with these commands arrives.
    Packet(&'static [Kind]),
    /// The replies that are queued leave.
    Send,
}

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// No mistake.
    None,
    /// The event loop ends its turn whether or not more bytes were passed.
    EndTurnWithoutComparing,
    /// The sender ends the event loop's turn whether or not more bytes were passed.
    GiveWithoutComparing,
    /// The verdict adds the bytes that it passes in the event loop's turn whether or not that turn has just ended.
    PassWithoutComparing,
    /// The event loop clears a signal after it has looked at the connection.
    ClearSignalAfterLooking,
    /// The sender checks whether the event loop waits for replies before it counts its reply.
    CheckWantDrainedBeforeCounting,
    /// The verdict begins the event loop's turn before it leaves the replies to executed commands.
    LeaveRepliesAfterTurn,
}

/// The socket. Its lock is held by the verdict, by the sender, and while the event loop reads or sends.
#[derive(Default)]
struct Socket {
    /// Passed bytes that were not read yet.
    receive_buffer: VecDeque<Command>,
    /// Redirected packets, with the replies that they will carry.
    carriers: VecDeque<Vec<u32>>,
    /// Everything that the client receives.
    received: Vec<u32>,
}

/// The state that wakes the event loop.
#[derive(Default)]
struct Events {
    bell: bool,
    readable: bool,
    /// The event loop watches the connection for arriving data.
    watched: bool,
    /// The kernel has done all of its steps.
    ended: bool,
}

/// The replies that the verdict leaves to the event loop. Their commands come first in the bytes that the event loop reads.
#[derive(Default)]
struct Left {
    skip: usize,
    replies: Vec<u32>,
}

/// The state that both sides share.
struct ConnModel {
    mutant: Mutant,
    /// Whether TCP has room for a reply that ends the turn.
    has_room: bool,
    turn: AtomicU64,
    queued: AtomicU64,
    sent: AtomicU64,
    want_drained: AtomicU32,
    flags: AtomicU32,
    give: AtomicU64,
    give_len: AtomicU32,
    signal: AtomicU64,
    left: UnsafeCell<Left>,
    /// The next command to be executed.
    session: UnsafeCell<u32>,
    socket: Mutex<Socket>,
    events: Mutex<Events>,
    woken: Condvar,
}

impl ConnModel {
    fn new(mutant: Mutant, has_room: bool, watched: bool) -> Arc<ConnModel> {
        Arc::new(ConnModel {
            mutant,
            has_room,
            turn: AtomicU64::new(Turn::VERDICT.0),
            queued: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            want_drained: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            give: AtomicU64::new(0),
            give_len: AtomicU32::new(0),
            signal: AtomicU64::new(0),
            left: UnsafeCell::new(Left::default()),
            session: UnsafeCell::new(0),
            socket: Mutex::new(Socket::default()),
            events: Mutex::new(Events { watched, ..Events::default() }),
            woken: Condvar::new(),
        })
    }

    fn words(&self) -> TurnWords<'_> {
        TurnWords {
            turn: &self.turn,
            queued: &self.queued,
            sent: &self.sent,
            want_drained: &self.want_drained,
            flags: &self.flags,
            give: &self.give,
            give_len: &self.give_len,
        }
    }

    /// Executes a command in the session and returns its reply.
    fn execute(&self, (number, _): Command) -> u32 {
        self.session.with_mut(|next| {
            // SAFETY: loom fails the test if another thread accesses the cell.
            let next = unsafe { &mut *next };
            assert_eq!(number, *next, "commands are executed once, in order");
            *next += 1;
        });
        number
    }

    fn with_left<T>(&self, f: impl FnOnce(&mut Left) -> T) -> T {
        // SAFETY: loom fails the test if another thread accesses the cell.
        self.left.with_mut(|left| f(unsafe { &mut *left }))
    }

    fn wake(&self, change: impl FnOnce(&mut Events)) {
        change(&mut self.events.lock().unwrap());
        self.woken.notify_one();
    }
}

/// Explores all orders of the two sides with at most three interruptions. `LOOM_MAX_PREEMPTIONS` asks for another
/// number.
fn check(mutant: Mutant, has_room: bool, steps: &'static [Step]) {
    let length = |step: &Step| if let Packet(kinds) = step { kinds.len() as u32 } else { 0 };
    let commands: u32 = steps.iter().map(length).sum();
    // The event loop may still watch the connection because of an earlier turn.
    for watched in [false, true] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = model.preemption_bound.or(Some(3));
        model.check(move || {
            let conn = ConnModel::new(mutant, has_room, watched);
            let event_loop = EventLoop::new(conn.clone());
            let event_loop = thread::spawn(move || event_loop.run());
            Kernel::new(conn.clone()).run(steps);
            event_loop.join().unwrap();
            let received = std::mem::take(&mut conn.socket.lock().unwrap().received);
            assert_eq!(received, (0..commands).collect::<Vec<_>>(), "every reply leaves once, in order");
            assert!(!conn.words().turn().is_event_loop(), "the event loop's turn never ends");
        });
    }
}

use Kind::{Complex, Simple};
use Step::{Packet, Send};

/// A packet for the event loop behind one that the kernel has answered, whose reply is still under way; then one more.
const REPLY_UNDER_WAY: &[Step] = &[Packet(&[Simple]), Packet(&[Complex]), Send, Packet(&[Simple]), Send];
/// The same without a further packet, whose arrival would wake the event loop as well.
const LAST_REPLY_UNDER_WAY: &[Step] = &[Packet(&[Simple]), Packet(&[Complex]), Send];
/// A packet of which the kernel executes the first command.
const HALF_EXECUTED: &[Step] = &[Packet(&[Simple, Complex]), Packet(&[Simple]), Send];
/// Two turns of the event loop, or one.
const TWO_TURNS: &[Step] = &[Packet(&[Complex]), Packet(&[Complex]), Packet(&[Simple]), Send];

/// A packet of which the kernel executes the first command, after the event loop was woken more often than needed.
const HALF_EXECUTED_LATER: &[Step] = &[Packet(&[Complex]), Packet(&[Complex]), Packet(&[Simple, Complex])];

/// Checks the steps with a reply that ends the turn, and with a turn that ends after the reply.
fn check_both_ends(steps: &'static [Step]) {
    check(Mutant::None, true, steps);
    check(Mutant::None, false, steps);
}

#[test]
fn a_reply_under_way_leaves_before_the_event_loop_sends() {
    check_both_ends(REPLY_UNDER_WAY);
    check_both_ends(LAST_REPLY_UNDER_WAY);
}

#[test]
fn the_event_loop_answers_the_rest_of_a_packet() {
    check_both_ends(HALF_EXECUTED);
    check_both_ends(HALF_EXECUTED_LATER);
}

#[test]
fn the_turn_goes_back_and_forth() {
    check_both_ends(TWO_TURNS);
}

#[test]
#[should_panic(expected = "every reply leaves once, in order")]
fn it_notices_an_event_loop_that_ends_its_turn_without_comparing() {
    check(Mutant::EndTurnWithoutComparing, false, TWO_TURNS);
}

#[test]
#[should_panic(expected = "every reply leaves once, in order")]
fn it_notices_a_sender_that_ends_the_turn_without_comparing() {
    check(Mutant::GiveWithoutComparing, true, TWO_TURNS);
}

#[test]
#[should_panic(expected = "every reply leaves once, in order")]
fn it_notices_a_verdict_that_passes_bytes_without_comparing() {
    check(Mutant::PassWithoutComparing, false, TWO_TURNS);
}

#[test]
#[should_panic(expected = "every reply leaves once, in order")]
fn it_notices_a_signal_that_is_cleared_too_late() {
    check(Mutant::ClearSignalAfterLooking, true, TWO_TURNS);
}

#[test]
#[should_panic(expected = "the event loop's turn never ends")]
fn it_notices_a_sender_that_looks_before_it_counts() {
    check(Mutant::CheckWantDrainedBeforeCounting, true, LAST_REPLY_UNDER_WAY);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn it_notices_replies_that_are_left_too_late() {
    check(Mutant::LeaveRepliesAfterTurn, true, HALF_EXECUTED_LATER);
}
