/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Visits: a call runs an operator in another partition than the one that it runs in.
 *
 * A program can use one arena, so each partition has programs of its own. A procedure's program therefore calls a function that continues
 * with the other partition's visitor by a tail call. The visitor takes the place of this function only, so it returns to the procedure.
 * It gets the same argument as the procedure's program. By that it finds the call, whose key and operator it uses, and where it leaves
 * the status (visitors.bpf.c).
 *
 * The kernel ends a chain of tail calls after 33. A program that begins a call says how many of them the call may use for visits, in
 * kdb_call.visits, so that those are left which the program needs afterwards. The end of a transaction needs one for each other
 * partition in which it has locks.
 *
 * The kernel lets a function do tail calls if the functions before it have less than 256 bytes of stack together. And it lets a program
 * mention no program array of another kind of programs, and call no function by a pointer. So the compiler has to know where a call comes
 * from (struct kdb_origin), and functions that take a call are inlined.
 */
#ifndef BEDPLATE_VISIT_H
#define BEDPLATE_VISIT_H

#include <bedplate/connection.h>

/* The program that runs a call or a handler, by its argument; the others are null. */
struct kdb_origin {
	struct bpf_raw_tracepoint_args *user_call;
	struct __sk_buff *skb;    /* on a connection */
	void *event;              /* of a handler */
	int (*visit)(void *event, __u32 partition); /* of a handler */
};

/* The visitors of the partitions, for calls by user space and on connections. A program array takes programs of one type. */
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, KDB_MAX_PARTITIONS); __type(key, __u32); __type(value, __u32); } kdb_visitors SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, KDB_MAX_PARTITIONS); __type(key, __u32); __type(value, __u32); } kdb_connection_visitors SEC(".maps");

__noinline int kdb_visit_by_user_call(struct bpf_raw_tracepoint_args *arguments, __u32 partition)
{
	bpf_tail_call(arguments, &kdb_visitors, partition);
	return 0;
}

__noinline int kdb_visit_on_connection(struct __sk_buff *skb, __u32 partition)
{
	bpf_tail_call(skb, &kdb_connection_visitors, partition);
	return 0;
}

/* The partition of the call's key. The key's hash is left for the operators. */
__noinline __u32 kdb_key_partition(struct kdb_io *io)
{
	/* Every operator refuses such a key. */
	if (!io || io->klen == 0 || io->klen > KDB_KEY_MAX)
		return kdb_config.partition;
	io->hash = kdb_hash(io);
	return kdb_partition_of(io->hash);
}

/* Runs an operator in another partition. */
static __always_inline int kdb_visit(struct kdb_call *call, const struct kdb_origin *origin, __u32 operator, __u32 partition)
{
	if (!call->visits)
		return KDB_ERR_TOO_MANY_VISITS;
	call->visits--;
	call->operator = operator;
	/* The visitor overwrites this status. It stays if the kernel refuses the tail call. */
	call->visit_status = KDB_ERR_TOO_MANY_VISITS;
	if (origin->skb)
		kdb_visit_on_connection(origin->skb, partition);
	else if (origin->user_call)
		kdb_visit_by_user_call(origin->user_call, partition);
	else if (origin->visit)
		origin->visit(origin->event, partition);
	return READ_ONCE(call->visit_status);
}

#endif
