// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// Handlers for the tests: one of each kind, and some that fail. The verifier needs a while for each, so a test defines WITH_NAME for those
// that it uses.
#include <bedplate/handler.h>

KDB_LICENSE("Dual MIT/GPL");

/* Adds 1 to the number under the key. */
static __always_inline int add_one(struct kdb_proc *p)
{
	__s64 number = 0;

	if (KDB_TRY(kdb_read_for_update(p)) == KDB_OK)
		KDB_TRY(kdb_value_integer(p, &number));
	return kdb_write_integer(p, number + 1);
}

#ifdef WITH_tc_count
/* Counts packets, and passes those that begin with an even byte. Drops a packet that cannot be counted. */
KDB_TC_HANDLER(tc_count, KDB_TC_DROP)
{
	__u8 first = 0;

	bpf_skb_load_bytes(skb, 0, &first, 1);
	if (first & 1)
		*verdict = KDB_TC_DROP;
	kdb_key(p, "tc:");
	KDB_TRY(kdb_key_append_decimal(p, first));
	return add_one(p);
}
#endif

#ifdef WITH_tc_lenient
/* The same, but passes what cannot be counted, and refuses packets that begin with 255. */
KDB_TC_HANDLER(tc_lenient, KDB_TC_PASS)
{
	__u8 first = 0;

	bpf_skb_load_bytes(skb, 0, &first, 1);
	kdb_key(p, "tc:");
	KDB_TRY(kdb_key_append_decimal(p, first));
	KDB_TRY(add_one(p));
	if (first == 255) {
		*verdict = KDB_TC_DROP;
		return kdb_refuse(p, "ERR not this one");
	}
	*verdict = KDB_TC_DROP;
	return KDB_OK;
}
#endif

#ifdef WITH_xdp_count
KDB_XDP_HANDLER(xdp_count, KDB_XDP_DROP)
{
	kdb_key(p, "xdp");
	KDB_TRY(kdb_key_append_text(p, ":packets"));
	return add_one(p);
}
#endif

/* Counts the programs that a user has started, and keeps the name of the last one. */
struct linux_binprm {
	const char *filename;
} __attribute__((preserve_access_index));

#ifdef WITH_exec_count
KDB_TRACEPOINT_HANDLER(exec_count, sched_process_exec)
{
	struct linux_binprm *bprm = (void *)args[2];

	kdb_key(p, "exec:");
	KDB_TRY(kdb_key_append_decimal(p, (__u32)bpf_get_current_uid_gid()));
	KDB_TRY(add_one(p));
	KDB_TRY(kdb_key_append_text(p, ":last"));
	kdb_value(p, "pid ");
	KDB_TRY(kdb_value_append_decimal(p, bpf_get_current_pid_tgid() >> 32));
	KDB_TRY(kdb_value_append_text(p, " "));
	KDB_TRY(kdb_value_append_string(p, bprm->filename));
	return kdb_write(p);
}
#endif

#ifdef WITH_tick
KDB_TIMER_HANDLER(tick)
{
	kdb_key(p, "ticks");
	return add_one(p);
}
#endif

#ifdef WITH_nested_outer
/* Lets `nested_inner` fire while its own transaction runs. */
KDB_TC_HANDLER(nested_outer, KDB_TC_DROP)
{
	kdb_key(p, "outer");
	KDB_TRY(add_one(p));
	bpf_printk("bedplate");
	return KDB_OK;
}
#endif

#ifdef WITH_nested_inner
KDB_TRACEPOINT_HANDLER(nested_inner, bpf_trace_printk)
{
	kdb_key(p, "inner");
	return add_one(p);
}
#endif

#ifdef WITH_tc_many
/* Adds 1 to as many numbers as the packet's first byte says. */
KDB_TC_HANDLER(tc_many, KDB_TC_DROP)
{
	__u8 first = 0;
	__u32 i;

	bpf_skb_load_bytes(skb, 0, &first, 1);
	bpf_for(i, 0, 100) {
		if (i >= first)
			break;
		kdb_key(p, "many:");
		KDB_TRY(kdb_key_append_decimal(p, i));
		KDB_TRY(add_one(p));
	}
	return KDB_OK;
}
#endif

#ifdef WITH_tc_greedy
/* Writes too much for one transaction's keys, so it always fails. */
KDB_TC_HANDLER(tc_greedy, KDB_TC_DROP)
{
	__u32 i;

	bpf_for(i, 0, 200) {
		kdb_key(p, "greedy:");
		KDB_TRY(kdb_key_append_decimal(p, i));
		kdb_value(p, "x");
		KDB_TRY(kdb_write(p));
	}
	return KDB_OK;
}
#endif

/* A procedure beside handlers. */
KDB_PROCEDURE(handler_reset)
{
	KDB_TRY(kdb_key_argument(p, 0));
	return kdb_write_integer(p, 0);
}
