/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * What the server's eBPF programs and its event loop share. The only definition of it: the Rust side
 * is generated from this file. `*_ns` are nanoseconds of CLOCK_MONOTONIC.
 *
 * Who writes what (one writer per field at any time, so no field needs a lock; the lines are named for the
 * usual one):
 *   verdict  runs with the socket's lock held, hence once at a time per connection
 *   sk_msg   the same, so verdict and sk_msg of one connection never overlap
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
#define SRV_CHUNK 65536u         /* most request bytes in one record */
#define SRV_CHUNK_BUF (2 * SRV_CHUNK + 128)
#define SRV_QUEUE_BYTES 16384u   /* longest requests between MULTI and EXEC */
#define SRV_NO_PARTITION 0xffffffffu
#define SRV_PARTITIONS 0xfffffffeu
#define SRV_NO_SLOT 0xffffffffu  /* the reply is in the connection's small buffer */

/* A reply under way: its packet was queued, sk_msg will put the reply into it. */
struct srv_reply {
	__u32 slot;               /* index into srv_large, or SRV_NO_SLOT */
	__u32 carrier;            /* bytes of the packet that carries it */
	__u32 len;                /* bytes of the reply */
	__u32 _pad;
};

/* Why the kernel gave a connection up; the event loop closes it. */
enum srv_broken {
	SRV_OK = 0,
	SRV_RECORDS_FULL = 1,     /* request bytes were lost: no room for their record */
	SRV_CARRIER_SIZE = 2,     /* a packet came to sk_msg that is not the expected one */
	SRV_SHORT_SEND = 3,       /* TCP did not take a whole reply */
	SRV_NO_PAGES = 4,         /* a packet could not be made as long as its reply */
	SRV_LOAD = 5,             /* a packet could not be read */
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
 * Hand-over: while `handed == done` the verdict answers; otherwise every byte that arrives is handed
 * to the event loop. Only the verdict, or the local path while nothing else is under way (`lock`), changes
 * `handed`; only the event loop changes `done`, and only
 * to a value of `handed` that it has seen and dealt with completely; or sk_msg on its behalf, in the moment
 * in which its last reply leaves, so that the answer to that is the kernel's. So exactly one side at a time
 * runs the session's commands. The event loop sends only while `handed != done` and `queued == sent`;
 * therefore sk_msg knows that data it sees is a carrier if, and only if, `queued != sent`.
 */
struct srv_conn {
	/* line 0: verdict */
	__u64 handed;             /* records handed to the event loop */
	__u64 queued;             /* replies queued */
	__u64 queued_bytes;       /* their bytes */
	__u64 last_ns;            /* when bytes last arrived; 0 = never */
	__u64 commands;           /* answered in the kernel */
	__u32 broken;             /* enum srv_broken; never reset by a program */
	__u32 input;              /* srv_input + 1 of the run under way */
	__u64 bytes_in;           /* request bytes dealt with, counted when that is done */
	__u32 queue;              /* srv_queue + 1 between MULTI and EXEC; 0 = none */
	__u32 _pad1;
	/* line 1: sk_msg */
	__u64 sent;               /* replies given to TCP */
	__u64 sent_bytes;
	__u64 next_seq;           /* 1 << 32 | TCP's write_seq after the last reply; 0 = unknown */
	__u64 out_seq;            /* 1 << 32 | write_seq after all that was ever sent; 0 = nothing was */
	__u64 give;               /* by the server, while it sends: what `done` becomes with the reply */
	__u32 give_len;           /* by the server: length of that reply; 0 = `done` stays */
	__u32 _pad2;
	__u64 _pad3[2];
	/* line 2: server */
	__u64 done;
	__u32 generation;         /* of this index; changes with every connection */
	__u32 flags;              /* SRV_CONN_* */
	__u32 want_drained;       /* 1: tell when queued == sent */
	__u32 session;            /* index of the session's kdb_ctx */
	struct srv_peer peer;     /* of the local fast path */
	/* by verdict at queued % SRV_FIFO, read by sk_msg at sent % SRV_FIFO */
	struct srv_reply fifo[SRV_FIFO];
	/* Held by the local fast path while it works on this connection, and by the event loop while it
	 * takes the connection apart; compare-and-swap from 0. The last field: it outlives the others. */
	__u32 lock;
	__u32 _pad5[15];
};
#define SRV_CONN_OPEN 1u         /* in use */
#define SRV_CONN_SYNC 2u         /* writes are acknowledged when they are on disk: not by the verdict */

/* Replies of one verdict run; if long, until sk_msg has copied them. */
struct srv_output {
	__u32 claimed;            /* 0 = free, else index + 1 */
	__u32 _pad[7];
	__u8 head[32];            /* for a struct srv_record in front of the replies */
	__u8 bytes[SRV_REPLY_BUF];
};

/* Requests between MULTI and EXEC. The one of a connection belongs to whom its requests are answered by. */
struct srv_queue {
	__u32 claimed;            /* 0 = free, else index + 1 */
	__u32 len;                /* bytes */
	__u32 count;              /* requests */
	__u32 writes;             /* one of them writes */
	__u32 partition;          /* of all their keys; SRV_NO_PARTITION: no keys; SRV_PARTITIONS: several */
	__u32 _pad[3];
	__u8 head[32];            /* for a struct srv_record in front of the requests */
	__u8 bytes[2 * SRV_QUEUE_BYTES];
};

enum srv_record_kind {
	SRV_BYTES = 1,            /* request bytes follow after this header */
	SRV_DRAINED = 2,          /* queued == sent, as asked for */
	SRV_BROKEN = 3,           /* srv_conn.broken was set */
	/* The local fast path has executed the first `skip` bytes of what comes next over TCP, but not
	 * all of it: their replies follow after this header. */
	SRV_EXECUTED = 4,
	SRV_QUEUED = 5,           /* the connection is within MULTI: the queued requests follow */
};

/* A record of the ring buffer. */
struct srv_record {
	__u32 conn;
	__u32 generation;
	__u32 kind;
	__u32 len;                /* bytes after this header that count */
	__u64 handed;             /* this record's number */
	__u32 skip;               /* SRV_EXECUTED */
	__u32 _pad;
};

/* Configuration of a loaded object (section .rodata.srv). */
struct srv_config {
	__u32 cpus;               /* possible CPUs, at least 1 */
	__u32 inputs;             /* elements of srv_inputs; at least one per CPU, as for the others */
	__u32 outputs;
	__u32 queues;
	__u32 port;               /* that the server listens on */
	__u32 _pad;
	__u64 netns;              /* cookie of the server's network namespace */
};

/* Counters, per CPU. */
struct srv_stats {
	__u64 packets;            /* verdict runs */
	__u64 bytes;              /* request bytes */
	__u64 commands;           /* answered in the kernel */
	__u64 replies;            /* packets that carried replies */
	__u64 reply_bytes;
	__u64 handed;             /* records handed to the event loop */
	__u64 handed_bytes;
	__u64 no_buffer;          /* handed up for want of a free buffer */
	__u64 back_pressure;      /* handed up because the send buffer was too full */
	__u64 broken;             /* connections given up */
	__u64 local;              /* commands answered by the local fast path (also in `commands`) */
};

#endif
