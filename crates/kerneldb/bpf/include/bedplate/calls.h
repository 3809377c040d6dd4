/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/* Definitions that calls.bpf.c and user space share: operator numbers and operation traces. */
#ifndef BEDPLATE_CALLS_H
#define BEDPLATE_CALLS_H

enum kdb_op {
	KDB_OP_BEGIN = 1,
	KDB_OP_BEGIN_RO,
	KDB_OP_GET,
	KDB_OP_GET_RO,
	KDB_OP_GET_AUTO,
	KDB_OP_SET,
	KDB_OP_SET_AUTO,
	KDB_OP_DEL,
	KDB_OP_DEL_AUTO,
	KDB_OP_CAS,
	KDB_OP_CAS_AUTO,
	KDB_OP_COMMIT,
	KDB_OP_COMMIT_RO,
	KDB_OP_ROLLBACK,
	KDB_OP_RELEASE,
	KDB_OP_FAIL,
};

#define KDB_TRACE_OPS 4096u
#define KDB_TRACE_KEY 16u         /* bytes in a key of a trace */
#define KDB_TRACE_GET 0xffffffffu

struct kdb_trace_op {
	__u64 key[2];
	__u64 hash;               /* computed by the programs */
	__u32 vlen;               /* SET: bytes of io->val to write; KDB_TRACE_GET: a GET */
	__u32 _pad;
};

struct kdb_trace {
	__u32 claimed;            /* 0 = free; claimed by compare-and-swap */
	__u32 count;
	__u64 found;
	__u64 errors;
	__u32 last_error;
	__u32 step;               /* loop counter of the programs */
	__u32 _pad[8];
	struct kdb_trace_op ops[KDB_TRACE_OPS];
};

#endif
