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
#include <bedplate/local.h>

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

static __u32 model_alloc(__u32 vlen)
{
	return block_alloc(vlen);
}

static void model_free(__u32 block, __u32 vlen)
{
	block_free(block, vlen);
}

static __u32 model_block_bytes(__u32 vlen)
{
	return block_bytes(size_class(vlen));
}

static __u32 model_alloc_entry(__u32 class)
{
	return alloc_class(class, LINK_ENTRY);
}

static __u32 model_entry_key(__u32 entry)
{
	return entry_key_off(entry);
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
	.alloc = model_alloc,
	.free = model_free,
	.block_bytes = model_block_bytes,
	.alloc_entry = model_alloc_entry,
	.entry_key = model_entry_key,
	.lock = model_lock,
};
