// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/*
 * The visitors of a partition: they run operators of calls that run in other partitions (bedplate/visit.h). Their return values
 * have no meaning.
 */
#include <bedplate/procedure.h>

KDB_LICENSE("Dual MIT/GPL");

static __always_inline void run(const struct kdb_proc *p)
{
	p->call->visit_status = kdb_run_operator(p->ctx, p->io, p->call->operator);
}

SEC("raw_tp")
int kdb_visitor(struct kdb_proc_arguments *arguments)
{
	struct kdb_proc p = {};

	if (!kdb_find_call(&p, arguments->session, arguments->io))
		run(&p);
	return 0;
}

SEC("sk_skb/verdict")
int kdb_connection_visitor(struct __sk_buff *skb)
{
	struct kdb_connection *connection = kdb_connection_of(skb);
	struct kdb_proc p = {};

	if (connection && !kdb_find_call(&p, connection->session, connection->call_buffer))
		run(&p);
	return 0;
}
