// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// Orders and inventory: units of items in warehouses, which orders reserve, take, or give back.
//
//	CALL stock_add ITEM WAREHOUSE UNITS             units arrive; returns the stock
//	CALL stock_transfer ITEM FROM TO UNITS          units move between warehouses; returns what is left in FROM
//	CALL order_reserve ORDER ITEM WAREHOUSE UNITS   sets units aside; returns what is left in stock
//	CALL order_complete ORDER ITEM WAREHOUSE        the reserved units are sold; returns their number
//	CALL order_cancel ORDER ITEM WAREHOUSE          the reserved units go back; returns the stock
//
// Keys: stock:ITEM:WAREHOUSE, reserved:ORDER:ITEM:WAREHOUSE, and sold:ORDER:ITEM:WAREHOUSE, each a number of units.
//
// Invariants: no stock is negative. The units of an item, in stock, reserved and sold, are as many as have arrived.
#include <bedplate/procedure.h>

KDB_LICENSE("Dual MIT/GPL");

#define UNITS_MAX 1000000000
#define NAME_MAX 64

// Whether argument bytes have a colon, which separates the parts of keys.
__noinline int has_colon(struct kdb_call *call, __u32 at, __u32 len)
{
	__u32 i;

	if (!call)
		return 1;
	for (i = 0; i < NAME_MAX; i++) {
		if (i >= len)
			break;
		if (call->bytes[(at + i) & (KDB_CALL_BYTES - 1)] == ':')
			return 1;
	}
	return 0;
}

// Appends argument i, a name, to the key.
static __always_inline int append_name(struct kdb_proc *p, __u32 i)
{
	__u32 len, at = kdb_argument_at(p, i, &len);

	if (len < 1 || len > NAME_MAX || has_colon(p->call, at, len))
		return kdb_refuse(p, "NAME a name has 1 to 64 bytes and no colon");
	return kdb_key_append(p, i);
}

// Sets the key to stock:ITEM:WAREHOUSE, from arguments.
static __always_inline int stock_key(struct kdb_proc *p, __u32 item, __u32 warehouse)
{
	kdb_key(p, "stock:");
	KDB_TRY(append_name(p, item));
	KDB_TRY(kdb_key_append_text(p, ":"));
	return append_name(p, warehouse);
}

// Appends ORDER:ITEM:WAREHOUSE, which are the arguments 0 to 2.
static __always_inline int append_line(struct kdb_proc *p)
{
	KDB_TRY(append_name(p, 0));
	KDB_TRY(kdb_key_append_text(p, ":"));
	KDB_TRY(append_name(p, 1));
	KDB_TRY(kdb_key_append_text(p, ":"));
	return append_name(p, 2);
}

static __always_inline int units_argument(struct kdb_proc *p, __u32 i, __s64 *units)
{
	KDB_TRY(kdb_argument_integer(p, i, units));
	if (*units < 1 || *units > UNITS_MAX)
		return kdb_refuse(p, "UNITS units must be 1 to 1000000000");
	return KDB_OK;
}

// Adds to the number under the key, which may be missing; refuses to go below zero or above 10^18. *after is the result.
static __always_inline int change(struct kdb_proc *p, __s64 units, __s64 *after)
{
	*after = 0;
	if (KDB_TRY(kdb_read_for_update(p)) == KDB_OK)
		KDB_TRY(kdb_value_integer(p, after));
	if (*after + units < 0)
		return kdb_refuse(p, "STOCK too few units are in stock");
	if (*after > 1000000000000000000)
		return kdb_refuse(p, "STOCK too many units are in stock");
	*after += units;
	return kdb_write_integer(p, *after);
}

KDB_PROCEDURE(stock_add)
{
	__s64 units, stock;

	KDB_TRY(kdb_expect(p, 3));
	KDB_TRY(units_argument(p, 2, &units));
	KDB_TRY(stock_key(p, 0, 1));
	KDB_TRY(change(p, units, &stock));
	return kdb_reply_integer(p, stock);
}

KDB_PROCEDURE(stock_transfer)
{
	__s64 units, left, there;

	KDB_TRY(kdb_expect(p, 4));
	KDB_TRY(units_argument(p, 3, &units));
	KDB_TRY(stock_key(p, 0, 1));
	KDB_TRY(change(p, -units, &left));
	KDB_TRY(stock_key(p, 0, 2));
	KDB_TRY(change(p, units, &there));
	return kdb_reply_integer(p, left);
}

KDB_PROCEDURE(order_reserve)
{
	__s64 units, left;

	KDB_TRY(kdb_expect(p, 4));
	KDB_TRY(units_argument(p, 3, &units));
	// A client that has lost its connection may send the same call again: it cannot reserve twice.
	kdb_key(p, "sold:");
	KDB_TRY(append_line(p));
	if (KDB_TRY(kdb_read(p)) == KDB_OK)
		return kdb_refuse(p, "SOLD the order is complete");
	kdb_key(p, "reserved:");
	KDB_TRY(append_line(p));
	KDB_TRY(kdb_value_argument(p, 3));
	if (KDB_TRY(kdb_write_with(p, KDB_IO_IF_ABSENT, 0)) == KDB_MISMATCH)
		return kdb_refuse(p, "RESERVED the order has reserved the item already");
	KDB_TRY(stock_key(p, 1, 2));
	KDB_TRY(change(p, -units, &left));
	return kdb_reply_integer(p, left);
}

// Ends a reservation; *units is its number of units.
static __always_inline int end_reservation(struct kdb_proc *p, __s64 *units)
{
	KDB_TRY(kdb_expect(p, 3));
	kdb_key(p, "reserved:");
	KDB_TRY(append_line(p));
	if (KDB_TRY(kdb_read_for_update(p)) == KDB_NOT_FOUND)
		return kdb_refuse(p, "NORESERVATION the order has not reserved the item");
	KDB_TRY(kdb_value_integer(p, units));
	return kdb_delete(p);
}

KDB_PROCEDURE(order_complete)
{
	__s64 units;

	KDB_TRY(end_reservation(p, &units));
	kdb_key(p, "sold:");
	KDB_TRY(append_line(p));
	KDB_TRY(kdb_write_integer(p, units));
	return kdb_reply_integer(p, units);
}

KDB_PROCEDURE(order_cancel)
{
	__s64 units, stock;

	KDB_TRY(end_reservation(p, &units));
	KDB_TRY(stock_key(p, 1, 2));
	KDB_TRY(change(p, units, &stock));
	return kdb_reply_integer(p, stock);
}
