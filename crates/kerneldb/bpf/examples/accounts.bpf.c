// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
/*
 * Procedures on accounts: each account is a key with its balance as a decimal number, so that GET and INCRBY work on it, too.
 *
 *	CALL account_open NAME BALANCE      opens an account; refused if it exists
 *	CALL account_balance NAME           the balance; nil if there is no account
 *	CALL account_transfer FROM TO AMOUNT  moves money; refused if an account lacks, or would be overdrawn
 */
#include <bedplate/procedure.h>

KDB_LICENSE("Dual MIT/GPL");

KDB_PROCEDURE(account_open)
{
	__s64 balance;

	KDB_TRY(kdb_expect(p, 2));
	KDB_TRY(kdb_argument_integer(p, 1, &balance));
	KDB_TRY(kdb_key_argument(p, 0));
	KDB_TRY(kdb_value_argument(p, 1));
	if (KDB_TRY(kdb_write_with(p, KDB_IO_IF_ABSENT, 0)) == KDB_MISMATCH)
		return kdb_refuse(p, "EXISTS the account exists already");
	return KDB_OK;
}

KDB_READ_ONLY_PROCEDURE(account_balance)
{
	KDB_TRY(kdb_expect(p, 1));
	KDB_TRY(kdb_key_argument(p, 0));
	if (KDB_TRY(kdb_read(p)) == KDB_NOT_FOUND)
		return kdb_reply_nil(p);
	return kdb_reply_value(p);
}

/* Adds to the balance of the account that argument i names. */
static __always_inline int add(struct kdb_proc *p, __u32 i, __s64 amount, __s64 *balance)
{
	KDB_TRY(kdb_key_argument(p, i));
	if (KDB_TRY(kdb_read(p)) == KDB_NOT_FOUND)
		return kdb_refuse(p, "NOACCOUNT there is no such account");
	KDB_TRY(kdb_value_integer(p, balance));
	*balance += amount;
	if (*balance < 0)
		return kdb_refuse(p, "OVERDRAWN the balance is too low");
	return kdb_write_integer(p, *balance);
}

KDB_PROCEDURE(account_transfer)
{
	__s64 amount, from, to;

	KDB_TRY(kdb_expect(p, 3));
	KDB_TRY(kdb_argument_integer(p, 2, &amount));
	if (amount < 1 || amount > 1000000000000)
		return kdb_refuse(p, "ERR the amount is out of range");
	KDB_TRY(add(p, 0, -amount, &from));
	KDB_TRY(add(p, 1, amount, &to));
	return kdb_reply_integer(p, from);
}
