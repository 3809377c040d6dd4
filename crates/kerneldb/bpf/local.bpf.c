// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/*
 * Operators for user space, run by BPF_PROG_TEST_RUN (paper, figure 6b): one operator a call, or a
 * prepared trace of operations in one call. Arguments: operator, session, I/O buffer.
 */
#include <bedplate/kdb.h>
#include <bedplate/local.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kdb_trace);
} kdb_traces SEC(".maps");

struct local_args {
	__u64 op;
	__u64 session;
	__u64 io;
	__u64 result_io; /* traces: what GETs read goes here */
};

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
	}
	return KDB_ERR_STATE;
}

SEC("raw_tp")
int kdb_local(struct local_args *args)
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

/* Rolls a transaction back that has exceeded a limit; see kdb_reap(). Arguments: session, the transaction's number,
 * the time of its last operator. */
SEC("raw_tp")
int kdb_local_reap(struct local_args *args)
{
	__u32 session = args->op;
	struct kdb_ctx *ctx = bpf_map_lookup_elem(&kdb_contexts, &session);

	return ctx ? kdb_reap(ctx, args->session, args->io) : KDB_ERR_STATE;
}

/* An empty call: what one BPF_PROG_TEST_RUN costs by itself. */
SEC("raw_tp")
int kdb_local_noop(struct local_args *args)
{
	return 0;
}

/* Background collection; the budget comes as `op`. The number of visited entries is the result. */
SEC("raw_tp")
int kdb_local_collect(struct local_args *args)
{
	return kdb_collect(args->op);
}

#ifdef KDB_ENGINE_ARENA
/* Empties slabs: the number of a slab of entries comes as `op`, the result is KiB moved. */
SEC("raw_tp")
int kdb_local_evacuate(struct local_args *args)
{
	return kdb_evacuate(args->op);
}
#endif

#ifdef KDB_AHEAD
/* Looks ahead at the next operations of a trace. */
__noinline int batch_ahead(struct kdb_trace *trace, __u32 from)
{
	__u32 i;

	USE_ARENA();
	if (!trace)
		return 0;
#define EACH_AHEAD(op)                                                                         \
	for (trace->step = 0; (i = READ_ONCE(trace->step)) < KDB_AHEAD && few_steps;           \
	     trace->step = i + 1)                                                              \
		if ((op = &trace->ops[(from + i) & (KDB_TRACE_OPS - 1)]))
	struct kdb_trace_op *op;
	EACH_AHEAD(op) {
		op->hash = kdb_hash_16(op->key[0], op->key[1]);
		kdb_ahead_bucket(op->hash);
	}
	EACH_AHEAD(op)
		kdb_ahead_entry(op->hash);
	EACH_AHEAD(op)
		kdb_ahead_value(op->hash);
	return 0;
}
#endif

/* Runs the operation `i` of a trace. */
static __always_inline void batch_one(struct kdb_ctx *ctx, struct kdb_io *set_io, struct kdb_io *get_io,
				      struct kdb_trace *trace, __u32 i)
{
	struct kdb_trace_op *op = &trace->ops[i & (KDB_TRACE_OPS - 1)];
	struct kdb_io *io = op->vlen == KDB_TRACE_GET ? get_io : set_io;
	int status;

	io->klen = KDB_TRACE_KEY;
	io->flags = 0;
#ifdef KDB_AHEAD
	if (!(i & (KDB_AHEAD - 1)))
		batch_ahead(trace, i);
	io->flags = KDB_IO_HASHED;
	io->hash = op->hash;
#endif
	io->expire_ms = 0;
	*(__u64 *)&io->key[0] = op->key[0];
	*(__u64 *)&io->key[8] = op->key[1];
	if (op->vlen == KDB_TRACE_GET) {
		status = kdb_get_auto(ctx, io);
		if (status == KDB_OK)
			trace->found++;
	} else {
		io->vlen = op->vlen;
		status = kdb_set_auto(ctx, io);
	}
	if (status >= KDB_ERR_CONFLICT) {
		trace->errors++;
		trace->last_error = status;
	}
}

#ifdef KDB_ENGINE_HASHMAP
struct batch {
	struct kdb_ctx *ctx;
	struct kdb_io *set_io, *get_io;
	struct kdb_trace *trace;
};

static long batch_step(__u32 i, struct batch *batch)
{
	batch_one(batch->ctx, batch->set_io, batch->get_io, batch->trace, i);
	return 0;
}
#endif

/* Runs a trace of auto-commit operations in one call: the arguments are trace, session, and I/O buffers for
 * the SETs and for the GETs. */
SEC("raw_tp")
int kdb_local_batch(struct local_args *args)
{
	__u32 session = args->session, io_index = args->io, result_index = args->result_io;
	__u32 trace_index = args->op;
	struct kdb_ctx *ctx = bpf_map_lookup_elem(&kdb_contexts, &session);
	struct kdb_io *set_io = bpf_map_lookup_elem(&kdb_ios, &io_index);
	struct kdb_io *get_io = bpf_map_lookup_elem(&kdb_ios, &result_index);
	struct kdb_trace *trace = bpf_map_lookup_elem(&kdb_traces, &trace_index);

	if (!ctx || !set_io || !get_io || !trace)
		return KDB_ERR_STATE;
	set_io->index = io_index;
	get_io->index = result_index;
#ifdef KDB_ENGINE_HASHMAP
	struct batch batch = { ctx, set_io, get_io, trace };

	bpf_loop(trace->count, batch_step, &batch, 0);
#else
	__u32 i, n = trace->count;

	bpf_for(i, 0, n)
		batch_one(ctx, set_io, get_io, trace, i);
#endif
	return 0;
}
