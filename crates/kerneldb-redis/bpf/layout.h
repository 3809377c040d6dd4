/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The memory that the server's eBPF programs and its event loop share. This is its only definition: the Rust
 * side is generated from this file. Fields named `*_ns` are nanoseconds of CLOCK_MONOTONIC.
 *
 * At any time only one of these sides writes a field, so no field except `turn` needs an atomic update. The
 * groups of fields below are named after their usual writer:
 *   verdict  runs with the socket's lock held, hence once at a time per connection
 *   sk_msg   the same, so the verdict and sk_msg of one connection never overlap
 *   server   the event loop's thread
 *   local    the local fast path, which takes srv_conn.lock and then acts in the verdict's place
 */
#ifndef BEDPLATE_SERVER_LAYOUT_H
#define BEDPLATE_SERVER_LAYOUT_H

#define SRV_FIFO 32u             /* replies of one connection that may be under way; power of two */
#define SRV_INLINE 4u            /* of them in the connection's own small buffers; power of two */
#define SRV_INLINE_BYTES 1024u   /* longest reply in a small buffer */
#define SRV_REPLY_MAX 32768u     /* longest reply to one packet; more goes through the event loop */
#define SRV_REPLY_BUF 65536u
#define SRV_CARRIER_MAX 32768u   /* longest packet that can carry a reply */
#define SRV_CHUNK 65536u         /* positions in request bytes are below this; power of two */
#define SRV_CHUNK_BUF (2 * SRV_CHUNK + 128)
#define SRV_QUEUE_BYTES 16384u   /* longest requests between MULTI and EXEC */
#define SRV_NO_PARTITION 0xffffffffu
#define SRV_PARTITIONS 0xfffffffeu
#define SRV_NO_SESSION 0xffffffffu /* no session has this index: the programs answer nothing and pass every packet */
#define SRV_NO_SLOT 0xffffffffu  /* the reply is in the connection's small buffer */

/* A reply under way: its packet was queued, sk_msg will put the reply into it. */
struct srv_reply {
	__u32 slot;               /* index into srv_large, or SRV_NO_SLOT */
	__u32 carrier;            /* bytes of the packet that carries it */
	__u32 len;                /* bytes of the reply */
	__u32 _pad;
};

/* The reasons for which the kernel gives a connection up; the event loop closes it. A slow event loop or a
 * slow client is never a reason. */
enum srv_broken {
	SRV_OK = 0,
	SRV_CARRIER_SIZE = 2,     /* a packet came to sk_msg that is not the expected one */
	SRV_SHORT_SEND = 3,       /* TCP did not take a whole reply */
	SRV_NO_PAGES = 4,         /* a packet could not be made as long as its reply */
	SRV_LOAD = 5,             /* a packet could not be read */
	SRV_NO_JUMP = 6,          /* a transaction that was over could not release its locks in other partitions */
};

/* A connection's two ends, seen from the client: IPv6 addresses as in the packet (an IPv4 address in its
 * IPv6 form, ::ffff:a.b.c.d), ports as numbers. */
struct srv_peer {
	__u32 client_ip[4];
	__u32 server_ip[4];
	__u16 client_port;
	__u16 server_port;
	__u32 _pad;
};

/*
 * A connection. Its index is also that of its socket in srv_socks.
 *
 * The turn: exactly one side at a time runs the session's commands. `turn` says which one, and how many request
 * bytes the verdict has passed to the event loop so far; both are one word, so they change together:
 *
 *	turn = 2 * passed bytes + (1 if it is the event loop's turn)
 *
 *   - In its own turn, the verdict executes the commands of a packet. If it cannot execute all of them, it
 *     passes the packet (SK_PASS): it adds 2 * length + 1 to `turn` and raises the connection's signal.
 *   - In the event loop's turn, the verdict passes every packet: it adds 2 * length by compare-and-swap. If
 *     the compare-and-swap fails, the event loop has just ended its turn, so the packet is the verdict's.
 *   - The event loop ends its turn by compare-and-swap from 2 * n + 1 to 2 * n. It has read and completely
 *     answered n bytes. The operation fails if the verdict has passed more bytes since.
 *   - The local fast path follows the verdict's rules, but only runs while the connection is at rest (local.h).
 *
 * Passed bytes are in the socket's receive buffer, where the event loop reads them. They count against that
 * buffer. So TCP's window closes when the event loop does not read, which slows the client down.
 *
 * The event loop has its turn until all commands of a packet that was passed are answered, although the
 * verdict may have executed the first ones. The verdict claims everything that this needs before the first
 * command has an effect. The replies to those commands stay in the output that the verdict has claimed
 * (`replies`, `replies_len`). `skip` is the number of their request bytes, which the event loop reads
 * first. The queue of MULTI (`queue`) changes hands in the same way. The verdict sets these fields before it
 * adds to `turn`; the event loop takes them and clears them before it ends its turn.
 *
 * The event loop sends only in its turn and while `queued == sent`. Therefore sk_msg knows that data is
 * a carrier if, and only if, `queued != sent`. With the last reply, sk_msg can end the event loop's turn
 * on its behalf (`give`, `give_len`), so that the request that follows that reply is the verdict's.
 */
struct srv_conn {
	/* line 0: verdict */
	__u64 turn;               /* see above */
	__u64 queued;             /* replies queued */
	__u64 queued_bytes;       /* their bytes */
	__u64 last_ns;            /* when bytes last arrived; 0 = never */
	__u64 commands;           /* answered in the kernel */
	__u32 broken;             /* enum srv_broken; never reset by a program */
	__u32 input;              /* srv_input + 1 of the run under way */
	__u64 bytes_in;           /* request bytes dealt with, counted when that is done */
	__u32 queue;              /* srv_queue + 1 between MULTI and EXEC; 0 = none */
	__u32 replies;            /* srv_output + 1 with the replies to executed bytes; 0 = none */
	/* line 1: sk_msg */
	__u64 sent;               /* replies given to TCP */
	__u64 sent_bytes;
	__u64 next_seq;           /* 1 << 32 | TCP's write_seq after the last reply; 0 = unknown */
	__u64 out_seq;            /* 1 << 32 | write_seq after all that was ever sent; 0 = nothing was */
	__u64 give;               /* by the server, while it sends: the turn that ends with the reply */
	__u32 give_len;           /* by the server: length of that reply; 0 = the turn does not end */
	__u32 _pad2;
	__u64 _pad3[2];
	/* line 2: server, except for the first two, which the verdict sets with `replies` */
	__u32 skip;               /* executed bytes at the start of the next passed bytes */
	__u32 replies_len;        /* bytes of their replies */
	__u32 generation;         /* of this index; changes with every connection */
	__u32 flags;              /* SRV_CONN_* */
	__u32 want_drained;       /* 1: raise the signal when queued == sent */
	__u32 session;            /* index of the session's kdb_ctx, or SRV_NO_SESSION */
	struct srv_peer peer;     /* of the local fast path */
	/* by verdict at queued % SRV_FIFO, read by sk_msg at sent % SRV_FIFO */
	struct srv_reply fifo[SRV_FIFO];
	/* Held by the local fast path while it works on this connection, and by the event loop while it
	 * takes the connection apart; compare-and-swap from 0. The last field: it outlives the others. */
	__u32 lock;
	__u32 _pad5[15];
};
#define SRV_TURN_SERVER 1ull     /* bit of srv_conn.turn: it is the event loop's turn */
#define SRV_TURN_BYTE 2ull       /* added to srv_conn.turn for each byte that is passed */
#define SRV_CONN_OPEN 1u         /* in use */
#define SRV_CONN_RESP3 4u        /* replies are in RESP3 */
#define SRV_CONN_SYNC 2u         /* replies reveal only commits that are on disk; writes wait, so are not the verdict's */

/* Replies of one verdict run; if they are long, until sk_msg has copied them; if the event loop sends them,
 * until it has copied them. */
struct srv_output {
	__u32 claimed;            /* 0 = free, else index + 1 */
	__u32 _pad[15];
	__u8 bytes[SRV_REPLY_BUF];
};

/* Requests between MULTI and EXEC. It belongs to the side whose turn it is on the connection. */
struct srv_queue {
	__u32 claimed;            /* 0 = free, else index + 1 */
	__u32 len;                /* bytes */
	__u32 count;              /* requests */
	__u32 writes;             /* one of them writes */
	__u32 partition;          /* of all their keys; SRV_NO_PARTITION: no keys; SRV_PARTITIONS: several */
	__u32 procedures;         /* number of CALLs */
	__u32 _pad[10];
	__u8 bytes[2 * SRV_QUEUE_BYTES];
};

/*
 * Signals to the event loop. A signal says "look at connection N" and nothing else. The connection itself has the
 * reason: the event loop's turn began, `want_drained` came true, or the connection is broken. So a signal is one
 * bit, which cannot be lost for lack of room, and raising it twice is the same as raising it once.
 *
 * A program sets the bit of connection N in word N / SRV_SIGNAL_BITS of srv_signals. If the bit was clear, it
 * writes a record into srv_bell, which wakes the event loop. The event loop empties the bell before it clears and
 * reads the words, so a bell that is full is as good as one more record.
 */
#define SRV_SIGNAL_BITS 64u
#define SRV_BELL_BYTES 4096u     /* size of the ring buffer srv_bell */

/* Configuration of a loaded object (section .rodata.srv). */
struct srv_config {
	__u32 cpus;               /* possible CPUs, at least 1 */
	__u32 inputs;             /* elements of srv_inputs; at least one per CPU, as for the others */
	__u32 outputs;
	__u32 queues;
	__u32 port;               /* that the server listens on */
	__u32 call_buffers;       /* elements of kdb_ios; 0 = the event loop runs all calls */
	__u64 netns;              /* cookie of the server's network namespace */
};

/* Until these times the event loop gets the commands; 0 = the kernel answers them. The event loop lets them wait (CLIENT PAUSE,
 * SHUTDOWN), or executes them because each one is to be reported (SLOWLOG). */
struct srv_gate {
	__u64 all_until_ns;       /* every command */
	__u64 writes_until_ns;    /* commands that write */
};

/* The commands that the kernel answers, as indexes of srv_stats.calls. */
enum srv_call {
	SRV_CALL_GET = 0,
	SRV_CALL_SET = 1,
	SRV_CALL_DEL = 2,
	SRV_CALL_PING = 3,
	SRV_CALL_BEGIN = 4,
	SRV_CALL_COMMIT = 5,
	SRV_CALL_ROLLBACK = 6,
	SRV_CALL_MULTI = 7,
	SRV_CALL_EXEC = 8,
	SRV_CALL_DISCARD = 9,
	SRV_CALL_CALL = 10,
	SRV_CALL_INCR = 11,
	SRV_CALL_DECR = 12,
	SRV_CALL_INCRBY = 13,
	SRV_CALL_DECRBY = 14,
	SRV_CALL_EXISTS = 15,
	SRV_CALL_TOUCH = 16,
	SRV_CALL_STRLEN = 17,
	SRV_CALL_TTL = 18,
	SRV_CALL_PTTL = 19,
	SRV_CALL_EXPIRE = 20,
	SRV_CALL_PEXPIRE = 21,
	SRV_CALL_EXPIREAT = 22,
	SRV_CALL_SETNX = 23,
	SRV_CALL_SETEX = 24,
	SRV_CALL_PSETEX = 25,
	SRV_CALL_GETSET = 26,
	SRV_CALL_GETDEL = 27,
	SRV_CALL_GETEX = 28,
	SRV_CALL_MGET = 29,
	SRV_CALL_MSET = 30,
	SRV_CALL_UNLINK = 31,
	SRV_CALLS = 32,
};

/* Counters, per CPU. */
struct srv_stats {
	__u64 packets;            /* verdict runs */
	__u64 bytes;              /* request bytes */
	__u64 commands;           /* answered in the kernel */
	__u64 replies;            /* packets that carried replies */
	__u64 reply_bytes;
	__u64 passed;             /* packets passed to the event loop */
	__u64 passed_bytes;
	__u64 no_buffer;          /* passed because no buffer was free */
	__u64 back_pressure;      /* passed because the send buffer was too full */
	__u64 broken;             /* connections given up */
	__u64 local;              /* commands answered by the local fast path (also in `commands`) */
	__u64 local_bytes;        /* request bytes of these */
	__u64 local_reply_bytes;
	__u64 lookups;            /* keys that commands have looked for in order to reply with what they found */
	__u64 misses;             /* those of them that had no value */
	__u64 refusals;           /* CALLs that the procedure refused */
	__u64 calls[SRV_CALLS];   /* executions of each command */
};

#endif
