// Procedures of the library NAME: a quota. Each user has a number of units, and takes some of them until none are left.
//
//	CALL NAME_grant USER UNITS   gives units; returns how many the user has
//	CALL NAME_take USER UNITS    takes units; refused if the user has too few
//	CALL NAME_left USER          returns how many units are left; nil for an unknown user
//
// <bedplate/procedure.h> describes the functions and their rules.
#include <bedplate/procedure.h>

KDB_LICENSE("Dual MIT/GPL");

// The key of a user's units.
static __always_inline int user_key(struct kdb_proc *p)
{
	kdb_key(p, "NAME:");
	return kdb_key_append(p, 0);
}

// Reads argument 1 as a number of units.
static __always_inline int units_argument(struct kdb_proc *p, __s64 *units)
{
	KDB_TRY(kdb_argument_integer(p, 1, units));
	if (*units < 1 || *units > 1000000000)
		return kdb_refuse(p, "ERR units must be 1 to 1000000000");
	return KDB_OK;
}

KDB_PROCEDURE(NAME_grant)
{
	__s64 units, left = 0;

	KDB_TRY(kdb_expect(p, 2));
	KDB_TRY(units_argument(p, &units));
	KDB_TRY(user_key(p));
	if (KDB_TRY(kdb_read(p)) == KDB_OK)
		KDB_TRY(kdb_value_integer(p, &left));
	if (left > 1000000000000)
		return kdb_refuse(p, "ERR the user has too many units");
	KDB_TRY(kdb_write_integer(p, left + units));
	return kdb_reply_integer(p, left + units);
}

KDB_PROCEDURE(NAME_take)
{
	__s64 units, left;

	KDB_TRY(kdb_expect(p, 2));
	KDB_TRY(units_argument(p, &units));
	KDB_TRY(user_key(p));
	if (KDB_TRY(kdb_read(p)) == KDB_NOT_FOUND)
		return kdb_refuse(p, "NOUSER there is no such user");
	KDB_TRY(kdb_value_integer(p, &left));
	if (left < units)
		return kdb_refuse(p, "QUOTA too few units are left");
	KDB_TRY(kdb_write_integer(p, left - units));
	return kdb_reply_integer(p, left - units);
}

KDB_READ_ONLY_PROCEDURE(NAME_left)
{
	__s64 left;

	KDB_TRY(kdb_expect(p, 1));
	KDB_TRY(user_key(p));
	if (KDB_TRY(kdb_read(p)) == KDB_NOT_FOUND)
		return kdb_reply_nil(p);
	KDB_TRY(kdb_value_integer(p, &left));
	return kdb_reply_integer(p, left);
}
