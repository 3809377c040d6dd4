/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * kerneldb for eBPF programs: the one header an application includes.
 *
 * Direct style: every operator is a verified global function, `int kdb_OP(struct kdb_ctx *ctx, struct
 * kdb_io *io)`, which returns an enum kdb_status. `ctx` is the session's element of kdb_contexts. `io` is
 * any element of kdb_ios, or of a map of the application's own with that value type. Key and value are byte
 * strings in io, the key padded with zeros to whole words. One session runs one operator at a time;
 * operators of different sessions run on any CPUs, also nested by interrupts (not by NMIs).
 *
 *   kdb_begin, kdb_begin_ro, kdb_get, kdb_get_ro, kdb_get_auto, kdb_set, kdb_set_auto, kdb_del,
 *   kdb_del_auto, kdb_cas, kdb_cas_auto, kdb_commit, kdb_commit_ro, kdb_rollback
 *
 * After an Error state (KDB_ERR_*) a transaction can only be rolled back, with two exceptions. After
 * KDB_ERR_WAL_FULL and KDB_ERR_BUSY the transaction is as it was before the operator, and the operator may be
 * repeated, COMMIT included. The log's reader needs milliseconds to make room. An operator that holds a lock
 * for a moment may need as long, if its processor is taken away. A program does not wait for them: it either
 * rolls back, or returns, and a later call of the session repeats the operator. KDB_ERR_NO_MEMORY is the
 * other exception, for operators whose io has the flag KDB_IO_REPEATS: memory comes back when the log's
 * reader, the collector, or user space have made room.
 *
 * Continuation-passing style: see cps.h.
 *
 * A program may be of any type that may look up maps and use arenas: tc, xdp, sk_skb, sk_msg, sockops,
 * raw tracepoints, cgroup programs and syscall programs.
 */
#ifndef BEDPLATE_KDB_H
#define BEDPLATE_KDB_H

#ifdef KDB_ENGINE_HASHMAP
#include "../../engine/hashmap/ops.h"
#else
#include "../../engine/arena/tx.h"
#include "../../engine/arena/gc.h"
#include "../../engine/arena/reap.h"
#include "../../engine/arena/evacuate.h"
#include "../../engine/arena/ahead.h"
#endif

#endif
