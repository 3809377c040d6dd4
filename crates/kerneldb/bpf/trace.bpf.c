// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/*
 * Traces: prepared sequences of operations, run by BPF_PROG_TEST_RUN in one call (paper, figure 6b). They are loaded
 * when a trace is first asked for.
 */
#include <bedplate/kdb.h>
#include <bedplate/calls.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kdb_trace);
} kdb_traces SEC(".maps");

struct trace_args {
	__u64 trace;
	__u64 session;
	__u64 io;        /* for the SETs */
	__u64 result_io; /* GETs read into this buffer */
};

#ifdef KDB_AHEAD
/* Looks ahead at the next operations of a trace. */
__noinline int trace_ahead(struct kdb_trace *trace, __u32 from)
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
static __always_inline void trace_one(struct kdb_ctx *ctx, struct kdb_io *set_io, struct kdb_io *get_io,
				      struct kdb_trace *trace, __u32 i)
{
	struct kdb_trace_op *op = &trace->ops[i & (KDB_TRACE_OPS - 1)];
	struct kdb_io *io = op->vlen == KDB_TRACE_GET ? get_io : set_io;
	int status;

	io->klen = KDB_TRACE_KEY;
	io->flags = 0;
#ifdef KDB_AHEAD
	if (!(i & (KDB_AHEAD - 1)))
		trace_ahead(trace, i);
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
struct trace_run {
	struct kdb_ctx *ctx;
	struct kdb_io *set_io, *get_io;
	struct kdb_trace *trace;
};

static long trace_step(__u32 i, struct trace_run *run)
{
	trace_one(run->ctx, run->set_io, run->get_io, run->trace, i);
	return 0;
}
#endif

/* Runs a trace of auto-commit operations. */
SEC("raw_tp")
int kdb_trace_run(struct trace_args *args)
{
	__u32 session = args->session, io_index = args->io, result_index = args->result_io;
	__u32 trace_index = args->trace;
	struct kdb_ctx *ctx = bpf_map_lookup_elem(&kdb_contexts, &session);
	struct kdb_io *set_io = bpf_map_lookup_elem(&kdb_ios, &io_index);
	struct kdb_io *get_io = bpf_map_lookup_elem(&kdb_ios, &result_index);
	struct kdb_trace *trace = bpf_map_lookup_elem(&kdb_traces, &trace_index);

	if (!ctx || !set_io || !get_io || !trace)
		return KDB_ERR_STATE;
	set_io->index = io_index;
	get_io->index = result_index;
#ifdef KDB_ENGINE_HASHMAP
	struct trace_run run = { ctx, set_io, get_io, trace };

	bpf_loop(trace->count, trace_step, &run, 0);
#else
	__u32 i, n = trace->count;

	bpf_for(i, 0, n)
		trace_one(ctx, set_io, get_io, trace, i);
#endif
	return 0;
}
