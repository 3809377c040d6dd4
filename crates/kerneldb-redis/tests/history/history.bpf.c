// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/*
 * Procedures of recorded histories. They reply the names of the values that they have read: the first 16 bytes, or dashes if
 * the key is absent.
 *
 *	CALL history_swap KEY VALUE                 writes; replies the name of the value before
 *	CALL history_swap_two KEY VALUE KEY VALUE   the same for two keys
 *	CALL history_refuse KEY VALUE               writes, and refuses
 *	CALL history_read_two KEY KEY               reads
 */
#include <bedplate/procedure.h>

KDB_LICENSE("Dual MIT/GPL");

#define DASHES 0x2d2d2d2d2d2d2d2dull

/* Reads the key that argument i names. */
static __always_inline int read_name(struct kdb_proc *p, __u32 i, __u64 *name)
{
	KDB_TRY(kdb_key_argument(p, i));
	name[0] = name[1] = DASHES;
	if (KDB_TRY(kdb_read(p)) == KDB_OK) {
		name[0] = *(__u64 *)&p->io->val[0];
		name[1] = *(__u64 *)&p->io->val[8];
	}
	return KDB_OK;
}

/* Reads the key that argument i names, and writes the argument behind it. */
static __always_inline int swap(struct kdb_proc *p, __u32 i, __u64 *name)
{
	KDB_TRY(read_name(p, i, name));
	KDB_TRY(kdb_value_argument(p, i + 1));
	return kdb_write(p);
}

static __always_inline int reply_names(struct kdb_proc *p, const __u64 *names, int count)
{
	for (int word = 0; word < 2 * count; word++)
		*(__u64 *)&p->io->val[8 * word] = names[word];
	p->io->vlen = 16 * count;
	return kdb_reply_value(p);
}

KDB_PROCEDURE(history_swap)
{
	__u64 name[2];

	KDB_TRY(kdb_expect(p, 2));
	KDB_TRY(swap(p, 0, name));
	return reply_names(p, name, 1);
}

KDB_PROCEDURE(history_swap_two)
{
	__u64 names[4];

	KDB_TRY(kdb_expect(p, 4));
	KDB_TRY(swap(p, 0, names));
	KDB_TRY(swap(p, 2, names + 2));
	return reply_names(p, names, 2);
}

KDB_PROCEDURE(history_refuse)
{
	__u64 name[2];

	KDB_TRY(kdb_expect(p, 2));
	KDB_TRY(swap(p, 0, name));
	return kdb_refuse(p, "REFUSED after a write");
}

KDB_READ_ONLY_PROCEDURE(history_read_two)
{
	__u64 names[4];

	KDB_TRY(kdb_expect(p, 2));
	KDB_TRY(read_name(p, 0, names));
	KDB_TRY(read_name(p, 1, names + 2));
	return reply_names(p, names, 2);
}
