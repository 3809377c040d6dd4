// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// Operators in continuation-passing style for the tests. A continuation returns its number.
#include <bedplate/kdb.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct arguments {
	__u64 session, io, expected, value;
};

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} steps SEC(".maps");

#define KDB_SECTION "raw_tp"
#define KDB_CONTEXT struct arguments
#define KDB_PROGRAMS steps
#define KDB_CURRENT(c, ctx, io)                                                                        \
	do {                                                                                           \
		__u32 session_ = (c)->session, io_ = (c)->io;                                          \
		ctx = bpf_map_lookup_elem(&kdb_contexts, &session_);                                   \
		io = bpf_map_lookup_elem(&kdb_ios, &io_);                                              \
		if (io)                                                                                \
			io->index = io_;                                                               \
	} while (0)
#include <bedplate/cps.h>

static __always_inline void key(struct kdb_io *io)
{
	*(__u64 *)io->key = 'k';
	io->klen = 1;
	io->flags = 0;
	io->expire_ms = 0;
}

static __always_inline void change(struct kdb_io *io, __u64 expected, __u64 value)
{
	key(io);
	*(__u64 *)io->expect = expected;
	io->elen = 8;
	*(__u64 *)io->val = value;
	io->vlen = 8;
}

/* Changes the key's value from `expected` to `value`. */
KDB_STEP(change_alone, change(io, c->expected, c->value); KDB_TAIL(0))
KDB_CAS_AUTO(cas_alone, return 10, return 11, return 12, return 13)

/* The same in a transaction. */
KDB_BEGIN(change_begin, change(io, c->expected, c->value); KDB_TAIL(1), return 20)
KDB_CAS(cas, status = kdb_commit(ctx) ? 24 : 21, kdb_rollback(ctx); return 22, kdb_rollback(ctx); return 23, kdb_rollback(ctx); return 25)

/* Reads the key in a snapshot. */
KDB_BEGIN_RO(read_begin, key(io); status = kdb_get_ro(ctx, io); kdb_commit_ro(ctx); return 30 + status, return 40, return 41)
