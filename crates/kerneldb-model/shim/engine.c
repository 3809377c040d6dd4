/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * The engine's headers, compiled for the model checker. build.rs compiles this file once for the engine as it
 * is, and once for each mutant; VARIANT is the name of the table of functions.
 */
/* The loader of eBPF programs sets these constants; the model has a function that gives their address. */
#define const
#include "engine/maps.h"
#undef const
#define kdb_config (*kdb_model_config())

#define AT(type, off) ((type *)(kdb_model_arena() | (__u32)(__u64)(off)))

#include <bedplate/kdb.h>
#include <bedplate/calls.h>

#include "table.h"

static int model_run(__u32 op, struct kdb_ctx *ctx, struct kdb_io *io)
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
	}
	return KDB_ERR_STATE;
}

/* Does the work of user space: reads the context, and decides that the transaction has exceeded a limit. */
static int model_reap(struct kdb_ctx *ctx)
{
	__u64 tx_seq = READ_ONCE(ctx->tx_seq), last_ns = READ_ONCE(ctx->last_ns);
	int status;

	do {
		status = kdb_reap(ctx, tx_seq, last_ns);
	} while (status == KDB_OK && READ_ONCE(ctx->partitions));
	return status;
}

static __u32 model_alloc(__u32 bytes)
{
	return block_alloc(bytes);
}

static void model_free(__u32 block)
{
	slab_free(block, LINK_BLOCK);
}

static __u32 model_kind_bytes(__u32 kind)
{
	return kind_bytes(kind);
}

static __u32 model_kind_of(__u32 bytes)
{
	return size_class(bytes);
}

static __u32 model_block_of(__u32 block, __u32 len)
{
	return block - head_in_block(len);
}

/* Begins to empty a slab, as user space does. User space would free it after every program has ended: never
 * here. */
static int begin_evacuation(__u32 slab)
{
	struct kdb_slab __arena *d = slab_at(slab);

	while (1) {
		__u64 word = LOAD(&d->word);
		__u32 state = word_state(word);

		if (state != KDB_SLAB_CURRENT && state != KDB_SLAB_PARTIAL && state != KDB_SLAB_FULL)
			return 0;
		if (LOAD(&d->kind) >= KDB_CLASSES)
			return 0;
		if (CAS(&d->word, word, word_with_state(word, KDB_SLAB_EVACUATING) + ONE_TAG) == word)
			return 1;
	}
}

static void model_evacuate(__u32 slab)
{
	__u32 other, used = (LOAD(&super()->brk) - kdb_config.heap) / KDB_SLAB_BYTES;

	if (slab >= used || !begin_evacuation(slab))
		return;
	for (other = 0; other < used; other++)
		kdb_evacuate(other);
}

static void model_drain(void)
{
	struct kdb_state *state = kdb_state();
	__u64 clock = READ_ONCE(state->clock);

	WRITE_ONCE(state->durable_ts, clock);
	WRITE_ONCE(state->drained_ts, clock);
}

static void model_tick(void)
{
	struct kdb_state *state = kdb_state();

	WRITE_ONCE(state->coarse_ns, READ_ONCE(state->coarse_ns) + 1000);
}

static int model_lock(struct kdb_ctx *ctx, struct kdb_io *io, __u32 mode)
{
	__u32 index = 0;
	int status = check_key(io);

	return status ? status : tx_lock(ctx, io, mode, io->vlen, &index);
}

extern const struct kdb_model_engine VARIANT;
const struct kdb_model_engine VARIANT = {
	.run = model_run,
	.collect = kdb_collect,
	.reap = model_reap,
	.alloc = model_alloc,
	.free = model_free,
	.kind_bytes = model_kind_bytes,
	.kind_of = model_kind_of,
	.block_of = model_block_of,
	.evacuate = model_evacuate,
	.drain = model_drain,
	.tick = model_tick,
	.lock = model_lock,
};
