// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// Procedures that do what good ones do not.
#include <bedplate/procedure.h>

KDB_LICENSE("Dual MIT/GPL");

/* Says that it only reads, and writes. */
KDB_READ_ONLY_PROCEDURE(liar_write)
{
	KDB_TRY(kdb_key_argument(p, 0));
	kdb_value(p, "written");
	return kdb_write(p);
}

KDB_READ_ONLY_PROCEDURE(liar_delete)
{
	KDB_TRY(kdb_key_argument(p, 0));
	KDB_TRY(kdb_delete(p));
	return KDB_OK;
}

/* Replies a value that it has neither read nor set. */
KDB_PROCEDURE(empty_value)
{
	return kdb_reply_value(p);
}

/* Replies the value after a read that finds none. */
KDB_PROCEDURE(missing_value)
{
	kdb_value(p, "before");
	kdb_key(p, "missing");
	KDB_TRY(kdb_read(p));
	return kdb_reply_value(p);
}

/* Reads a key that it has not set. */
KDB_PROCEDURE(empty_key)
{
	KDB_TRY(kdb_read(p));
	return kdb_reply_value(p);
}

/* Counts its calls in the session. */
KDB_PROCEDURE(count)
{
	return kdb_reply_integer(p, ++p->ctx->app[0]);
}

/* Writes argument 0 under as many keys as argument 1 says. */
KDB_PROCEDURE(many)
{
	__s64 keys;
	__u32 i;

	KDB_TRY(kdb_argument_integer(p, 1, &keys));
	for (i = 0; i < 200; i++) {
		if (i >= keys)
			break;
		kdb_key(p, "many");
		KDB_TRY(kdb_key_append_integer(p, i));
		KDB_TRY(kdb_value_argument(p, 0));
		KDB_TRY(kdb_write(p));
	}
	return KDB_OK;
}

/* Writes the key that argument 1 names as often as argument 2 says. */
KDB_PROCEDURE(often)
{
	__s64 times;
	__u32 i;

	KDB_TRY(kdb_argument_integer(p, 2, &times));
	for (i = 1; i <= 100; i++) {
		if (i > times)
			break;
		KDB_TRY(kdb_key_argument(p, 1));
		KDB_TRY(kdb_write_integer(p, i));
	}
	return KDB_OK;
}

/* Writes argument 2 under the key that argument 1 names; argument 0 chooses the partition. */
KDB_PROCEDURE(write_second)
{
	KDB_TRY(kdb_key_argument(p, 1));
	KDB_TRY(kdb_value_argument(p, 2));
	return kdb_write(p);
}

/* Writes with an expiry, and replies how long that is. */
KDB_PROCEDURE(until)
{
	__u64 now = kdb_now_ms();

	KDB_TRY(kdb_key_argument(p, 0));
	KDB_TRY(kdb_value_argument(p, 1));
	KDB_TRY(kdb_write_with(p, 0, now + 60000));
	return kdb_reply_integer(p, now);
}
