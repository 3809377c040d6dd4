/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* What the model calls of one variant of the engine. */
#ifndef BEDPLATE_MODEL_TABLE_H
#define BEDPLATE_MODEL_TABLE_H

#include <bedplate/layout.h>

struct kdb_model_engine {
	/* The operator `op` (enum kdb_op). */
	int (*run)(__u32 op, struct kdb_ctx *ctx, struct kdb_io *io);
	/* The background collector. */
	int (*collect)(__u32 budget);
	/* The allocator: a block for a value of `vlen` bytes, and the bytes that such a block has. */
	__u32 (*alloc)(__u32 vlen);
	void (*free)(__u32 block, __u32 vlen);
	__u32 (*block_bytes)(__u32 vlen);
	__u32 (*alloc_entry)(__u32 class_);
	/* Where the key of an entry is. */
	__u32 (*entry_key)(__u32 entry);
	/* Locks the key in `io` for a transaction: mode 1 shared, 2 exclusive. */
	int (*lock)(struct kdb_ctx *ctx, struct kdb_io *io, __u32 mode);
};

#endif
