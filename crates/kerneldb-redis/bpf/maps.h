/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The server's maps. They outlive the programs: a reload reuses them, so nothing here may be a global
 * variable. Sizes marked "set by the loader" are placeholders.
 */
#ifndef BEDPLATE_SERVER_MAPS_H
#define BEDPLATE_SERVER_MAPS_H

#include <bedplate/connection.h>
#include "layout.h"

#define SRV_BATCH KDB_AHEAD /* commands that are parsed, and looked ahead for, before they run */

/* A command as parsed: positions in the request bytes. */
struct srv_command {
	__u64 hash;               /* of the key; valid if commands were looked ahead for */
	__u32 next;               /* the command behind this one */
	__u32 nargs;
	__u32 arg[4], arglen[4];  /* the first arguments */
	__u32 command;            /* enum srv_call, or SRV_CALLS */
	__u32 _pad[3];
};

/* Request bytes of one verdict run. Claimed by compare-and-swap: a run can be interrupted, or
 * preempted, by another one on the same CPU. */
struct srv_input {
	__u32 claimed;
	__u32 pos;                /* next byte to execute */
	__u32 len;                /* bytes in the packet */
	__u32 opos;               /* bytes of replies so far */
	__u32 limit;              /* most bytes of replies */
	__u32 commands;
	__u32 flags;              /* the connection's flags */
	__u32 conn, session;      /* indexes */
	__u32 out;                /* index + 1 of the claimed output; 0 = none */
	__u32 batch;              /* commands parsed */
	__u32 cmd;                /* index of the command being executed */
	__u32 parsed;             /* next byte to parse */
	__u32 step;               /* position of a loop */
	__u32 queue;              /* srv_conn.queue */
	__u32 jump;               /* the program that continues + 1; 0 = none */
	__u32 jumps;              /* number of tail calls so far */
	__u32 ending;             /* a transaction has ended but holds some locks (srv_do_release) */
	__u32 stop;               /* the event loop has to continue */
	__u32 outer;              /* for an EXEC: the packet's input + 1 */
	__u32 call_buffer;        /* of the call under way: index + 1 in kdb_ios and kdb_calls; 0 = none */
	__u32 own_transaction;    /* of that call: it has a transaction of its own */
	__u32 call_failed;        /* of a call that is over: the event loop repeats it */
	__u32 procedure;          /* the procedure's program that continues + 1; 0 = none */
	__u64 cookie;             /* of the connection's socket; the verdict's */
	/* of the command being executed (arguments.h, update.h) */
	__u32 argument_at;        /* the argument that srv_argument() has found, */
	__u32 argument_len;       /* its length, */
	__u32 argument_end;       /* and the position behind it */
	__u32 options;            /* SRV_OPTION_* */
	__s64 number;             /* the integer that was read, or a sum */
	__s64 amount;             /* what is added */
	__u64 new_expire_ms;      /* the expiry that it sets; 0 = none */
	__u32 found;              /* number of keys that have a value */
	__u32 attempt;            /* number of attempts before */
	__u32 reply_start;        /* bytes of replies before this one */
	__u32 argument;           /* index of the argument that is the current key */
	__u32 _pad;
	/* of an EXEC: what is counted when it commits (struct srv_stats) */
	__u32 lookups, misses;
	__u32 calls[SRV_CALLS];
	struct srv_command cmds[SRV_BATCH];
	struct kdb_io io;
	__u8 bytes[SRV_CHUNK_BUF];
};

struct srv_small {
	__u8 bytes[SRV_INLINE_BYTES + 8]; /* a word may begin at every one */
};

struct { __uint(type, BPF_MAP_TYPE_SOCKMAP); __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); } srv_socks SEC(".maps"); /* set by the loader */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __uint(max_entries, 1); __type(key, __u32); __type(value, struct srv_conn); } srv_conns SEC(".maps"); /* set by the loader */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct srv_small); } srv_smalls SEC(".maps"); /* set by the loader: SRV_INLINE per connection */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct srv_input); } srv_inputs SEC(".maps"); /* set by the loader */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __uint(max_entries, 1); __type(key, __u32); __type(value, struct srv_output); } srv_outputs SEC(".maps"); /* set by the loader */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __uint(max_entries, 1); __type(key, __u32); __type(value, struct srv_queue); } srv_queues SEC(".maps"); /* set by the loader */
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); } srv_signals SEC(".maps"); /* set by the loader */
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, SRV_BELL_BYTES); } srv_bell SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct srv_stats); } srv_counters SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __uint(max_entries, 1); __type(key, __u32); __type(value, struct srv_gate); } srv_gates SEC(".maps");
/* Programs to which a partition's program jumps for the next partition: SRV_ON, SRV_EXEC (commands.h). */
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 2 * KDB_MAX_PARTITIONS); __type(key, __u32); __type(value, __u32); } srv_jumps SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 2 * KDB_MAX_PARTITIONS); __type(key, __u32); __type(value, __u32); } srv_local_jumps SEC(".maps");
/* The programs behind the trampolines: [0] is the one in use; of srv_senders, [1] is the local path's. */
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u32); } srv_verdicts SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, __u32); } srv_senders SEC(".maps");

/* Connections by their two ends, for the local fast path. */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 1); __type(key, struct srv_peer); __type(value, __u32); } srv_peers SEC(".maps"); /* set by the loader */

#endif
