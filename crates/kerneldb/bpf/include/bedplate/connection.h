/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Calls of procedures on the connections of a server. The server's program begins a call: it fills an element of kdb_calls, opens
 * a transaction, and continues with the procedure by a tail call. The procedure continues with a program of the server in the same
 * way. All of them run on the same socket, and they find the call by the socket's cookie, because a tail call passes nothing else.
 *
 * User space changes the procedures while calls run. A slot of kdb_procedures has the same procedure from the moment when a name
 * leads to it until a grace period after no name does. So the procedure is the one that the server's program has found.
 */
#ifndef BEDPLATE_CONNECTION_H
#define BEDPLATE_CONNECTION_H

#include <bedplate/kdb.h>

/* Sizes are set when the database is created. */

/* The connections by the cookies of their sockets. */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 1); __type(key, __u64); __type(value, struct kdb_connection); } kdb_connections SEC(".maps");
/* The slots of the procedures by their names. An element of another name may be found while names change, so the caller compares
 * the name in the slot. */
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, KDB_PROCEDURE_SLOTS); __uint(key_size, KDB_PROCEDURE_NAME); __type(value, __u32); } kdb_procedure_names SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, KDB_PROCEDURE_SLOTS); __type(key, __u32); __type(value, struct kdb_procedure); } kdb_procedures SEC(".maps");
/* The programs of the slots: KDB_MAX_PARTITIONS for each, one for each partition. */
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, KDB_PROCEDURE_SLOTS * KDB_MAX_PARTITIONS); __type(key, __u32); __type(value, __u32); } kdb_call_programs SEC(".maps");
/* The server's programs that continue after a call. */
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 2 * KDB_MAX_PARTITIONS); __type(key, __u32); __type(value, __u32); } kdb_call_returns SEC(".maps");

/* The kernel ends a chain of tail calls after this number. */
#define KDB_TAIL_CALLS 33u

/* How many visits of other partitions a call may make (visit.h) if this number of tail calls is left. The end of the transaction needs
 * one for each partition that was visited: at most as many as there were visits, and as there are other partitions. */
static __always_inline __u32 kdb_visits_within(__u32 tail_calls)
{
	__u32 others = kdb_config.partitions - 1, half = (tail_calls + 1) / 2;

	return tail_calls - (others < half ? others : half);
}

/* The connection of a packet, or null if it is being closed. */
static __always_inline struct kdb_connection *kdb_connection_of(struct __sk_buff *skb)
{
	__u64 cookie = bpf_get_socket_cookie(skb);

	return bpf_map_lookup_elem(&kdb_connections, &cookie);
}

#endif
