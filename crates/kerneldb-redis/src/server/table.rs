//! The connection table that is shared with the eBPF programs: `struct srv_conn` by index.
//!
//! Who writes which field, and why that needs no lock, is said in `bpf/layout.h`. This side is
//! the event loop's thread alone; [`Table::close`] may only be called when the connection's socket is
//! closed, because then no program works on the connection any more.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::layout::{
    SRV_CONN_OPEN, SRV_CONN_SYNC, SRV_FIFO, SRV_NO_SLOT, srv_conn, srv_output, srv_peer, srv_queue,
};
use bedplate_kerneldb::attach::ArrayMapping;

/// `done` of a connection that the kernel must not answer: `handed` never gets there.
pub(super) const NEVER: u64 = u64::MAX;

pub(super) struct Table {
    conns: ArrayMapping<srv_conn>,
    outputs: ArrayMapping<srv_output>,
    queues: ArrayMapping<srv_queue>,
}

/// One connection's shared state.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    conn: *mut srv_conn,
    _table: &'a Table,
}

fn flags(sync: bool) -> u32 {
    SRV_CONN_OPEN | if sync { SRV_CONN_SYNC } else { 0 }
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

    pub(super) fn conn(&self, index: u32) -> Shared<'_> {
        Shared { conn: self.conns.get(index), _table: self }
    }

    /// Prepares a free index for a connection and returns its generation. `sync`: its writes are
    /// acknowledged when they are on disk.
    pub(super) fn open(&self, index: u32, session: u32, done: u64, sync: bool, peer: srv_peer) -> u32 {
        let conn = self.conn(index);
        // SAFETY: Within the mapped table; programs look at it only in an open connection.
        unsafe { (*conn.conn).peer = peer };
        field!(conn, AtomicU32, session).store(session, Ordering::Relaxed);
        field!(conn, AtomicU64, done).store(done, Ordering::Relaxed);
        field!(conn, AtomicU32, flags).store(flags(sync), Ordering::Release);
        field!(conn, AtomicU32, generation).load(Ordering::Relaxed)
    }

    /// Keeps the local fast path out of a connection, and programs from calling one another on its behalf
    /// (srv_jump), and waits until they are out: they never stay for long.
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

    /// Frees a locked index after its socket was closed, and unlocks it: replies that were not sent give
    /// their buffers back.
    pub(super) fn close(&self, index: u32) {
        let conn = self.conn(index);
        let (sent, queued) = (conn.sent(), conn.queued());
        for at in sent..queued {
            // SAFETY: Within the mapped table; no program uses a closed connection.
            let reply = unsafe { (*conn.conn).fifo[at as usize % SRV_FIFO as usize] };
            if reply.slot != SRV_NO_SLOT {
                let output = self.outputs.get(reply.slot);
                // SAFETY: Within the mapped array; this connection held the claim.
                let claimed = unsafe { AtomicU32::from_ptr(&raw mut (*output).claimed) };
                claimed.store(0, Ordering::Release);
            }
        }
        if let Some(queue) = field!(conn, AtomicU32, queue).load(Ordering::Acquire).checked_sub(1) {
            // SAFETY: Within the mapped array; this connection held the claim.
            let claimed = unsafe { AtomicU32::from_ptr(&raw mut (*self.queues.get(queue)).claimed) };
            claimed.store(0, Ordering::Release);
        }
        let generation = field!(conn, AtomicU32, generation).load(Ordering::Relaxed).wrapping_add(1);
        // SAFETY: As above: nobody else works on this element now, and zeros are a closed one. The lock,
        // which is the last field, stays held until all of it is done.
        unsafe { conn.conn.cast::<u8>().write_bytes(0, offset_of!(srv_conn, lock)) };
        field!(conn, AtomicU32, generation).store(generation, Ordering::Relaxed);
        field!(conn, AtomicU32, lock).store(0, Ordering::Release);
    }

    /// Number of claimed reply buffers and queues, for leak checks.
    pub(super) fn claimed_buffers(&self) -> u32 {
        // SAFETY: Within the mapped arrays, as `get` checks.
        let in_use = |claimed| unsafe { AtomicU32::from_ptr(claimed) }.load(Ordering::Acquire) != 0;
        // SAFETY: As above: places, not accesses.
        let outputs = (0..self.outputs.len()).map(|i| unsafe { &raw mut (*self.outputs.get(i)).claimed });
        // SAFETY: As above.
        let queues = (0..self.queues.len()).map(|i| unsafe { &raw mut (*self.queues.get(i)).claimed });
        outputs.chain(queues).filter(|claimed| in_use(*claimed)).count() as u32
    }
}

impl Shared<'_> {
    /// Replies that the kernel has queued so far.
    pub(super) fn queued(self) -> u64 {
        field!(self, AtomicU64, queued).load(Ordering::Acquire)
    }

    /// Replies of the kernel that TCP has taken so far.
    pub(super) fn sent(self) -> u64 {
        field!(self, AtomicU64, sent).load(Ordering::Acquire)
    }

    /// Records handed over so far.
    pub(super) fn handed(self) -> u64 {
        field!(self, AtomicU64, handed).load(Ordering::Acquire)
    }

    /// Whether every reply of the kernel has been sent. If not, a record of kind SRV_DRAINED follows
    /// when it has.
    pub(super) fn drained(self) -> bool {
        if self.sent() == self.queued() {
            return true;
        }
        let want = field!(self, AtomicU32, want_drained);
        want.store(1, Ordering::Relaxed);
        // sk_msg counts, then looks at `want_drained`; one of both sides notices the other.
        fence(Ordering::SeqCst);
        if self.sent() != self.queued() {
            return false;
        }
        want.store(0, Ordering::Relaxed);
        true
    }

    /// Gives the connection back to the kernel: everything up to record `handed` is dealt with. If more
    /// was handed over in the meantime, the connection stays with user space.
    pub(super) fn give_back(self, handed: u64, sync: bool) {
        field!(self, AtomicU32, want_drained).store(0, Ordering::Relaxed);
        field!(self, AtomicU32, flags).store(flags(sync), Ordering::Relaxed);
        field!(self, AtomicU64, done).store(handed, Ordering::Release);
    }

    /// Like [`Shared::give_back`], in the moment in which a reply of so many bytes, which is sent next, leaves.
    pub(super) fn offer(self, handed: u64, sync: bool, reply: u32) {
        field!(self, AtomicU32, want_drained).store(0, Ordering::Relaxed);
        field!(self, AtomicU32, flags).store(flags(sync), Ordering::Relaxed);
        field!(self, AtomicU64, give).store(handed, Ordering::Relaxed);
        field!(self, AtomicU32, give_len).store(reply, Ordering::Release);
    }

    /// Ends an offer; whether it was taken, so that the connection is the kernel's.
    pub(super) fn taken(self) -> bool {
        field!(self, AtomicU32, give_len).swap(0, Ordering::AcqRel) == 0
    }

    /// Why the kernel gave the connection up; 0 if it did not.
    pub(super) fn broken(self) -> u32 {
        field!(self, AtomicU32, broken).load(Ordering::Acquire)
    }

    /// When bytes last arrived, in ns of CLOCK_MONOTONIC; 0 = never.
    pub(super) fn last_ns(self) -> u64 {
        field!(self, AtomicU64, last_ns).load(Ordering::Relaxed)
    }
}
