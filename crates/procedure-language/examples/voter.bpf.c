// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// The procedure of voter.kdb, written by hand: the tests compare the two, and so does the benchmark kv-language.
#include <bedplate/procedure.h>

KDB_LICENSE("Dual MIT/GPL");

static __always_inline int key(struct kdb_proc *p, const char *table, __u64 id)
{
	p->io->key[0] = *table;
	p->io->klen = 1;
	return kdb_key_append_integer(p, id);
}

KDB_PROCEDURE(vote)
{
	__s64 phone, contestant, limit, votes = 0;

	KDB_TRY(kdb_expect(p, 3));
	KDB_TRY(kdb_argument_integer(p, 0, &phone));
	if (phone < 0 || phone > 9999999999)
		return kdb_refuse(p, "ERR phone must be 0 to 9999999999");
	KDB_TRY(kdb_argument_integer(p, 1, &contestant));
	if (contestant < 0 || contestant > 1000000)
		return kdb_refuse(p, "ERR contestant must be 0 to 1000000");
	KDB_TRY(kdb_argument_integer(p, 2, &limit));
	if (limit < 0 || limit > 1000000)
		return kdb_refuse(p, "ERR limit must be 0 to 1000000");
	KDB_TRY(key(p, "a", (__u64)phone / 10000000));
	if (KDB_TRY(kdb_read(p)) == KDB_NOT_FOUND)
		return kdb_reply_integer(p, 1);
	KDB_TRY(key(p, "c", contestant));
	if (KDB_TRY(kdb_read(p)) == KDB_NOT_FOUND)
		return kdb_reply_integer(p, 2);
	KDB_TRY(key(p, "p", phone));
	if (KDB_TRY(kdb_read(p)) == KDB_OK)
		KDB_TRY(kdb_value_integer(p, &votes));
	if (votes >= limit)
		return kdb_reply_integer(p, 3);
	votes++;
	kdb_value_format(p->io, votes);
	KDB_TRY(kdb_write(p));
	KDB_TRY(key(p, "v", phone));
	KDB_TRY(kdb_key_append_integer(p, votes));
	KDB_TRY(kdb_value_argument(p, 1));
	KDB_TRY(kdb_write(p));
	return kdb_reply_integer(p, 0);
}
