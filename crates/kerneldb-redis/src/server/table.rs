//! The connection table that is shared with the eBPF programs: `struct srv_conn` by index.
//!
//! `bpf/layout.h` states which side writes which field, and why that needs no lock. Only the event loop's
//! thread uses this side. It may call [`Table::close`] only when the connection's socket is
//! closed, because then no program works on the connection any more.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::layout::{
    SRV_CONN_OPEN, SRV_CONN_RESP3, SRV_CONN_SYNC, SRV_FIFO, SRV_NO_SESSION, SRV_NO_SLOT, SRV_PARTITIONS,
    SRV_QUEUE_BYTES, SRV_REPLY_MAX, srv_conn, srv_output, srv_peer, srv_queue,
};
use super::turn::{Turn, TurnWords};
use crate::resp::Protocol;
use bedplate_kerneldb::attach::ArrayMapping;

pub(super) struct Table {
    conns: ArrayMapping<srv_conn>,
    outputs: ArrayMapping<srv_output>,
    queues: ArrayMapping<srv_queue>,
}

/// One connection's shared state.
#[derive(Clone, Copy)]
pub(super) struct ConnSlot<'a> {
    conn: *mut srv_conn,
    table: &'a Table,
}

/// The state that the verdict has left to the event loop at the beginning of its turn.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Requests that the verdict has queued since a MULTI; none if the connection is not within one.
    pub(super) queue: Option<Vec<u8>>,
    /// Request bytes that the verdict has executed; they come first in what the event loop reads.
    pub(super) skip: usize,
    /// Replies to those bytes.
    pub(super) replies: Vec<u8>,
}

/// The properties of a connection that decide how the kernel answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnMode {
    /// Its commits are acknowledged when they are on disk.
    pub(super) waits_for_disk: bool,
    /// The protocol of its replies.
    pub(super) protocol: Protocol,
}

fn flags(mode: ConnMode) -> u32 {
    let sync = if mode.waits_for_disk { SRV_CONN_SYNC } else { 0 };
    let resp3 = if mode.protocol == Protocol::Resp3 { SRV_CONN_RESP3 } else { 0 };
    SRV_CONN_OPEN | sync | resp3
}

macro_rules! field {
    ($self:ident, $type:ident, $field:ident) => {{
        // SAFETY: Within the mapped table, which the lifetime keeps; aligned by the layout.
        unsafe { $type::from_ptr(&raw mut (*$self.conn).$field) }
    }};
}

impl Table {
    pub(super) fn new(
        conns: ArrayMapping<srv_conn>,
        outputs: ArrayMapping<srv_output>,
        queues: ArrayMapping<srv_queue>,
    ) -> Self {
        Table { conns, outputs, queues }
    }

    pub(super) fn conn(&self, index: u32) -> ConnSlot<'_> {
        ConnSlot { conn: self.conns.get(index), table: self }
    }

    /// Prepares a free index for a connection and returns its generation. `turn` is the side that answers first.
    pub(super) fn open(&self, index: u32, session: u32, turn: Turn, mode: ConnMode, peer: srv_peer) -> u32 {
        let conn = self.conn(index);
        // SAFETY: Within the mapped table; programs look at it only in an open connection.
        unsafe { (*conn.conn).peer = peer };
        field!(conn, AtomicU32, session).store(session, Ordering::Relaxed);
        field!(conn, AtomicU64, turn).store(turn.0, Ordering::Relaxed);
        field!(conn, AtomicU32, flags).store(flags(mode), Ordering::Release);
        field!(conn, AtomicU32, generation).load(Ordering::Relaxed)
    }

    /// Gives a connection the session of another database. The gate is closed, so no program uses the session.
    pub(super) fn set_session(&self, index: u32, session: u32, mode: ConnMode) {
        let conn = self.conn(index);
        if let Some(queue) = field!(conn, AtomicU32, queue).load(Ordering::Acquire).checked_sub(1) {
            // The keys of MULTI's queue may be in other partitions now, so the event loop runs EXEC.
            // SAFETY: Within the mapped array. The connection holds the claim, and the gate is closed.
            unsafe { (&raw mut (*self.queues.get(queue)).partition).write_volatile(SRV_PARTITIONS) };
        }
        field!(conn, AtomicU32, session).store(session, Ordering::Relaxed);
        field!(conn, AtomicU32, flags).store(flags(mode), Ordering::Release);
    }

    /// Keeps the local fast path out of a connection, and programs from calling one another on its behalf
    /// (`srv_announce`). Waits until both have finished. That takes as long as the procedure that a call runs.
    pub(super) fn lock(&self, index: u32) {
        let conn = self.conn(index);
        let lock = field!(conn, AtomicU32, lock);
        while lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
        field!(conn, AtomicU32, flags).store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while field!(conn, AtomicU32, input).load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
    }

    /// Frees a locked index after its socket was closed, and unlocks it. Buffers that the connection has claimed
    /// become free, with the replies and requests in them.
    pub(super) fn close(&self, index: u32) {
        let conn = self.conn(index);
        let (sent, queued) = (conn.sent(), conn.queued());
        for at in sent..queued {
            // SAFETY: Within the mapped table; no program uses a closed connection.
            let reply = unsafe { (*conn.conn).fifo[at as usize % SRV_FIFO as usize] };
            if reply.slot != SRV_NO_SLOT {
                self.release_output(reply.slot);
            }
        }
        if let Some(output) = field!(conn, AtomicU32, replies).load(Ordering::Acquire).checked_sub(1) {
            self.release_output(output);
        }
        if let Some(queue) = field!(conn, AtomicU32, queue).load(Ordering::Acquire).checked_sub(1) {
            self.release_queue(queue);
        }
        let generation = field!(conn, AtomicU32, generation).load(Ordering::Relaxed).wrapping_add(1);
        // SAFETY: As above, no other side works on this element now. Zeros are a closed connection. The lock,
        // which is the last field, stays held until all of it is done.
        unsafe { conn.conn.cast::<u8>().write_bytes(0, offset_of!(srv_conn, lock)) };
        field!(conn, AtomicU32, generation).store(generation, Ordering::Relaxed);
        field!(conn, AtomicU32, lock).store(0, Ordering::Release);
    }

    fn release_output(&self, index: u32) {
        // SAFETY: Within the mapped array. The caller's connection has claimed the element.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.outputs.get(index)).claimed) }
            .store(0, Ordering::Release);
    }

    fn release_queue(&self, index: u32) {
        // SAFETY: Within the mapped array. The caller's connection has claimed the element.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.queues.get(index)).claimed) }
            .store(0, Ordering::Release);
    }

    /// Number of claimed reply buffers and queues, for leak checks.
    pub(super) fn claimed_buffers(&self) -> u32 {
        // SAFETY: Within the mapped arrays, as `get` checks.
        let in_use = |claimed| unsafe { AtomicU32::from_ptr(claimed) }.load(Ordering::Acquire) != 0;
        // SAFETY: As above. This takes addresses and accesses nothing.
        let outputs = (0..self.outputs.len()).map(|i| unsafe { &raw mut (*self.outputs.get(i)).claimed });
        // SAFETY: As above.
        let queues = (0..self.queues.len()).map(|i| unsafe { &raw mut (*self.queues.get(i)).claimed });
        outputs.chain(queues).filter(|claimed| in_use(*claimed)).count() as u32
    }
}

impl ConnSlot<'_> {
    /// The words that the turn depends on.
    pub(super) fn words(&self) -> TurnWords<'_> {
        TurnWords {
            turn: field!(self, AtomicU64, turn),
            queued: field!(self, AtomicU64, queued),
            sent: field!(self, AtomicU64, sent),
            want_drained: field!(self, AtomicU32, want_drained),
            flags: field!(self, AtomicU32, flags),
            give: field!(self, AtomicU64, give),
            give_len: field!(self, AtomicU32, give_len),
        }
    }

    /// Replies that the kernel has queued so far.
    pub(super) fn queued(self) -> u64 {
        self.words().queued()
    }

    /// Replies of the kernel that TCP has taken so far.
    pub(super) fn sent(self) -> u64 {
        self.words().sent()
    }

    /// The side whose turn it is now, and the number of passed bytes.
    pub(super) fn turn(self) -> Turn {
        self.words().turn()
    }

    /// Takes the state that the verdict has left. The event loop must call it once in each of its turns.
    pub(super) fn take_over(self) -> Taken {
        let mut taken = Taken::default();
        if let Some(index) = field!(self, AtomicU32, queue).swap(0, Ordering::Acquire).checked_sub(1) {
            let queue = self.table.queues.get(index);
            // SAFETY: Within the mapped array; this connection holds the claim, so that no program writes it.
            let requests = unsafe {
                let len = ((*queue).len as usize).min(SRV_QUEUE_BYTES as usize);
                std::slice::from_raw_parts((&raw const (*queue).bytes).cast::<u8>(), len)
            };
            taken.queue = Some(requests.to_vec());
            self.table.release_queue(index);
        }
        if let Some(index) = field!(self, AtomicU32, replies).swap(0, Ordering::Acquire).checked_sub(1) {
            let len = field!(self, AtomicU32, replies_len).load(Ordering::Relaxed).min(SRV_REPLY_MAX);
            let output = self.table.outputs.get(index);
            // SAFETY: Within the mapped array; this connection holds the claim, so that no program writes it.
            let replies = unsafe {
                std::slice::from_raw_parts((&raw const (*output).bytes).cast::<u8>(), len as usize)
            };
            taken.replies = replies.to_vec();
            taken.skip = field!(self, AtomicU32, skip).load(Ordering::Relaxed) as usize;
            self.table.release_output(index);
        }
        taken
    }

    /// Lets the kernel answer no further request of this connection: it passes every packet. Requests that are running go on.
    pub(super) fn take_session(self) {
        self.give_session(SRV_NO_SESSION);
    }

    /// Gives the kernel the connection's session again. It must be the event loop's turn.
    pub(super) fn give_session(self, session: u32) {
        field!(self, AtomicU32, session).store(session, Ordering::SeqCst);
    }

    /// See [`TurnWords::drained`].
    pub(super) fn drained(self) -> bool {
        self.words().drained()
    }

    /// See [`TurnWords::end_turn`].
    pub(super) fn end_turn(self, turn: Turn, mode: ConnMode) -> bool {
        self.words().end_turn(turn, flags(mode))
    }

    /// See [`TurnWords::end_turn_with_reply`].
    pub(super) fn end_turn_with_reply(self, turn: Turn, mode: ConnMode, reply_bytes: u32) {
        self.words().end_turn_with_reply(turn, flags(mode), reply_bytes);
    }

    /// See [`TurnWords::turn_ended_with_reply`].
    pub(super) fn turn_ended_with_reply(self) -> bool {
        self.words().turn_ended_with_reply()
    }

    /// The reason for which the kernel gave the connection up; 0 if it did not.
    pub(super) fn broken(self) -> u32 {
        field!(self, AtomicU32, broken).load(Ordering::Acquire)
    }

    /// Time at which bytes last arrived, in ns of CLOCK_MONOTONIC; 0 = never.
    pub(super) fn last_ns(self) -> u64 {
        field!(self, AtomicU64, last_ns).load(Ordering::Relaxed)
    }
}
