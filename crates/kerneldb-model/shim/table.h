/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* The functions of one variant of the engine that the model calls. */
#ifndef BEDPLATE_MODEL_TABLE_H
#define BEDPLATE_MODEL_TABLE_H

#include <bedplate/layout.h>

struct kdb_model_engine {
	/* The operator `op` (enum kdb_op). */
	int (*run)(__u32 op, struct kdb_ctx *ctx, struct kdb_io *io);
	/* The background collector. */
	int (*collect)(__u32 budget);
	/* The reaper, for the transaction that the context shows. */
	int (*reap)(struct kdb_ctx *ctx);
	/* The allocator: a block of at least `bytes` bytes, and how many a block or entry of a kind has. */
	__u32 (*alloc)(__u32 bytes);
	void (*free)(__u32 block);
	__u32 (*kind_bytes)(__u32 kind);
	__u32 (*kind_of)(__u32 bytes);
	/* Offset at which the block of a value begins. */
	__u32 (*block_of)(__u32 block, __u32 len);
	/* Moves values and arrays out of one slab of blocks. */
	void (*evacuate)(__u32 slab);
	/* Changes that user space makes to the state: the log's reader catches up, the coarse clock
	 * advances. */
	void (*drain)(void);
	void (*tick)(void);
	/* Locks the key in `io` for a transaction: mode 1 shared, 2 exclusive. */
	int (*lock)(struct kdb_ctx *ctx, struct kdb_io *io, __u32 mode);
};

#endif
