/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Operators in continuation-passing style (paper 3.2, table 1).
 *
 * Each macro defines one eBPF program that runs an operator and then its continuation for the state that
 * the operator ended in. All states have to be given, so a procedure that forgets one does not compile.
 * A continuation is a statement: either an inlined one (figure 3b), or KDB_TAIL(index), which tail calls
 * another program of the procedure (figure 3a). Programs of the program array can be replaced while the
 * procedure is in use, each replacement taking effect at the next tail call.
 *
 * Before including this, the application defines
 *   KDB_SECTION           its program type, e.g. "raw_tp"
 *   KDB_CONTEXT           the type of that program's argument
 *   KDB_CURRENT(c, ctx, io)  a statement that sets `ctx` (struct kdb_ctx *) and `io` (struct kdb_io *) of
 *                         the current session from the program's argument `c`, or leaves them NULL
 *   KDB_PROGRAMS          the name of its BPF_MAP_TYPE_PROG_ARRAY
 *
 * Inside of a continuation, `c`, `ctx`, `io` and `status` (enum kdb_status) may be used; state that has
 * to survive a tail call goes into ctx->app. A chain may have 33 tail calls.
 */
#ifndef BEDPLATE_CPS_H
#define BEDPLATE_CPS_H

#include <bedplate/kdb.h>

/*
 * Each tail call with a constant index has a call instruction of its own: the kernel makes a direct jump of it.
 * The compiler would share one instruction between continuations, and the kernel would have to look the program
 * up in the array at each call, and to jump to it indirectly.
 */
#define KDB_TAIL(index)                                                                                \
	__builtin_choose_expr(__builtin_constant_p(index),                                             \
			      bpf_tail_call_static(c, &KDB_PROGRAMS, index),                           \
			      bpf_tail_call(c, &KDB_PROGRAMS, index))

#define KDB_PROGRAM_BEGIN(name)                                                                        \
	SEC(KDB_SECTION) int name(KDB_CONTEXT *c)                                                      \
	{                                                                                              \
		struct kdb_ctx *ctx = 0;                                                               \
		struct kdb_io *io = 0;                                                                 \
		int status = KDB_OK;                                                                   \
		(void)status;                                                                          \
		USE_ARENA();                                                                           \
		KDB_CURRENT(c, ctx, io);                                                               \
		if (!ctx || !io)                                                                       \
			return KDB_ERR_STATE;
#define KDB_PROGRAM_END                                                                                \
		return status;                                                                         \
	}

/* A piece of application logic between operators. */
#define KDB_STEP(name, body) KDB_PROGRAM_BEGIN(name) { body; } KDB_PROGRAM_END

/* One state: OK. */
#define KDB_OPERATOR_1(name, call, on_ok)                                                              \
	KDB_PROGRAM_BEGIN(name)                                                                        \
	status = call;                                                                                 \
	{ on_ok; }                                                                                     \
	KDB_PROGRAM_END

/* Two states: OK, Error. */
#define KDB_OPERATOR_2(name, call, on_ok, on_error)                                                    \
	KDB_PROGRAM_BEGIN(name)                                                                        \
	status = call;                                                                                 \
	if (status == KDB_OK) {                                                                        \
		on_ok;                                                                                 \
	} else {                                                                                       \
		on_error;                                                                              \
	}                                                                                              \
	KDB_PROGRAM_END

/* Three states: key found, key not found, Error. */
#define KDB_OPERATOR_3(name, call, on_found, on_not_found, on_error)                                   \
	KDB_PROGRAM_BEGIN(name)                                                                        \
	status = call;                                                                                 \
	if (status == KDB_OK) {                                                                        \
		on_found;                                                                              \
	} else if (status == KDB_NOT_FOUND) {                                                          \
		on_not_found;                                                                          \
	} else {                                                                                       \
		on_error;                                                                              \
	}                                                                                              \
	KDB_PROGRAM_END

/* Four states: OK, key not found, the key holds another value, Error. */
#define KDB_OPERATOR_4(name, call, on_ok, on_not_found, on_mismatch, on_error)                         \
	KDB_PROGRAM_BEGIN(name)                                                                        \
	status = call;                                                                                 \
	if (status == KDB_OK) {                                                                        \
		on_ok;                                                                                 \
	} else if (status == KDB_NOT_FOUND) {                                                          \
		on_not_found;                                                                          \
	} else if (status == KDB_MISMATCH) {                                                           \
		on_mismatch;                                                                           \
	} else {                                                                                       \
		on_error;                                                                              \
	}                                                                                              \
	KDB_PROGRAM_END

/* Table 1. */
#define KDB_BEGIN(name, on_ok, on_error) KDB_OPERATOR_2(name, kdb_begin(ctx), on_ok, on_error)
/* The paper's read-only BEGIN has one state. Here all slots for snapshots may be in use: then it is busy, and may be repeated later. */
#define KDB_BEGIN_RO(name, on_ok, on_busy, on_error)                                                   \
	KDB_PROGRAM_BEGIN(name)                                                                        \
	status = kdb_begin_ro(ctx);                                                                    \
	if (status == KDB_OK) {                                                                        \
		on_ok;                                                                                 \
	} else if (status == KDB_ERR_BUSY) {                                                           \
		on_busy;                                                                               \
	} else {                                                                                       \
		on_error;                                                                              \
	}                                                                                              \
	KDB_PROGRAM_END
#define KDB_GET(name, on_found, on_not_found, on_error)                                                \
	KDB_OPERATOR_3(name, kdb_get(ctx, io), on_found, on_not_found, on_error)
/* The paper's read-only and auto-commit GET have no Error state. Here they have one for keys of the wrong
 * size or partition, and, with a single version, for locks. */
#define KDB_GET_RO(name, on_found, on_not_found, on_error)                                             \
	KDB_OPERATOR_3(name, kdb_get_ro(ctx, io), on_found, on_not_found, on_error)
#define KDB_GET_AUTO(name, on_found, on_not_found, on_error)                                           \
	KDB_OPERATOR_3(name, kdb_get_auto(ctx, io), on_found, on_not_found, on_error)
#define KDB_SET(name, on_ok, on_error) KDB_OPERATOR_2(name, kdb_set(ctx, io), on_ok, on_error)
#define KDB_SET_AUTO(name, on_ok, on_error) KDB_OPERATOR_2(name, kdb_set_auto(ctx, io), on_ok, on_error)
#define KDB_COMMIT(name, on_ok, on_error) KDB_OPERATOR_2(name, kdb_commit(ctx), on_ok, on_error)
#define KDB_COMMIT_RO(name, on_ok) KDB_OPERATOR_1(name, kdb_commit_ro(ctx), on_ok)
#define KDB_ROLLBACK(name, on_ok) KDB_OPERATOR_1(name, kdb_rollback(ctx), on_ok)
/* Operators beyond the table. */
#define KDB_DELETE(name, on_ok, on_not_found, on_error)                                                \
	KDB_OPERATOR_3(name, kdb_del(ctx, io), on_ok, on_not_found, on_error)
#define KDB_DELETE_AUTO(name, on_ok, on_not_found, on_error)                                           \
	KDB_OPERATOR_3(name, kdb_del_auto(ctx, io), on_ok, on_not_found, on_error)
/* Compare-and-set: io->expect, of io->elen bytes, is the expected value. */
#define KDB_CAS(name, on_ok, on_not_found, on_mismatch, on_error)                                      \
	KDB_OPERATOR_4(name, kdb_cas(ctx, io), on_ok, on_not_found, on_mismatch, on_error)
#define KDB_CAS_AUTO(name, on_ok, on_not_found, on_mismatch, on_error)                                 \
	KDB_OPERATOR_4(name, kdb_cas_auto(ctx, io), on_ok, on_not_found, on_mismatch, on_error)

#endif
