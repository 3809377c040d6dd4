// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/*
 * Operators for user space. BPF_PROG_TEST_RUN runs one operator a call (paper, figure 6b). Arguments: operator,
 * session, I/O buffer.
 */
#include <bedplate/kdb.h>
#include <bedplate/calls.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct call_args {
	__u64 op;
	__u64 session;
	__u64 io;
};

/* Lets a read-write transaction fail, so that it can only be rolled back. */
static __always_inline int fail(struct kdb_ctx *ctx)
{
	struct kdb_state *state = kdb_state();

	if (!ctx || !state || !ctx_take(state, ctx))
		return KDB_ERR_BUSY;
	if (ctx->state == KDB_TX_ACTIVE) {
		ctx->state = KDB_TX_FAILED;
		ctx->error = KDB_ERR_ABORTED;
	}
	return tx_leave(ctx, KDB_OK);
}

static __always_inline int run(__u64 op, struct kdb_ctx *ctx, struct kdb_io *io)
{
	switch (op) {
	case KDB_OP_BEGIN:
		return kdb_begin(ctx);
	case KDB_OP_BEGIN_RO:
		return kdb_begin_ro(ctx);
	case KDB_OP_GET:
		return kdb_get(ctx, io);
	case KDB_OP_GET_RO:
		return kdb_get_ro(ctx, io);
	case KDB_OP_GET_AUTO:
		return kdb_get_auto(ctx, io);
	case KDB_OP_SET:
		return kdb_set(ctx, io);
	case KDB_OP_SET_AUTO:
		return kdb_set_auto(ctx, io);
	case KDB_OP_DEL:
		return kdb_del(ctx, io);
	case KDB_OP_DEL_AUTO:
		return kdb_del_auto(ctx, io);
	case KDB_OP_CAS:
		return kdb_cas(ctx, io);
	case KDB_OP_CAS_AUTO:
		return kdb_cas_auto(ctx, io);
	case KDB_OP_COMMIT:
		return kdb_commit(ctx);
	case KDB_OP_COMMIT_RO:
		return kdb_commit_ro(ctx);
	case KDB_OP_ROLLBACK:
		return kdb_rollback(ctx);
	case KDB_OP_RELEASE:
		return kdb_release(ctx);
	case KDB_OP_FAIL:
		return fail(ctx);
	}
	return KDB_ERR_STATE;
}

SEC("raw_tp")
int kdb_call(struct call_args *args)
{
	__u32 session = args->session, io_index = args->io;
	struct kdb_ctx *ctx = bpf_map_lookup_elem(&kdb_contexts, &session);
	struct kdb_io *io = bpf_map_lookup_elem(&kdb_ios, &io_index);

	if (!ctx || !io)
		return KDB_ERR_STATE;
	io->index = io_index;
	io->status = run(args->op, ctx, io);
	return 0;
}

/* Rolls back a transaction that has exceeded a limit; see kdb_reap(). Arguments: session, the transaction's number,
 * the time of its last operator. */
SEC("raw_tp")
int kdb_call_reap(struct call_args *args)
{
	__u32 session = args->op;
	struct kdb_ctx *ctx = bpf_map_lookup_elem(&kdb_contexts, &session);

	return ctx ? kdb_reap(ctx, args->session, args->io) : KDB_ERR_STATE;
}

/* An empty call: the cost of BPF_PROG_TEST_RUN itself. */
SEC("raw_tp")
int kdb_call_noop(struct call_args *args)
{
	return 0;
}

/* Background collection. `op` is the budget; the result is the number of visited entries. */
SEC("raw_tp")
int kdb_call_collect(struct call_args *args)
{
	return kdb_collect(args->op);
}

#ifdef KDB_ENGINE_ARENA
/* Empties slabs. `op` is the number of a slab of entries; the result is the number of KiB moved. */
SEC("raw_tp")
int kdb_call_evacuate(struct call_args *args)
{
	return kdb_evacuate(args->op);
}
#endif
