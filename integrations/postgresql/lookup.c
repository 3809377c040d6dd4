/*
 * lookup.c
 *	  Asks the buffer table which blocks are in shared buffers.
 *
 * "Absent" is one half of the rule in README.md: a block is absent at a time p if the buffer table has no entry for it while
 * its partition lock is held at p. A block that another process is reading right now has an entry and is not absent.
 *
 * Locks: one buffer mapping partition lock at a time, shared, for the length of one hash look-up. Nothing else is held.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "compat.h"

/* Sets bit i of `absent` if block first + i is absent, and returns how many are. The array has room for `count` bits. */
int
BpsLookUp(Relation rel, BlockNumber first, int count, uint64 *absent)
{
	int			absent_count = 0;

	memset(absent, 0, (count + 63) / 64 * sizeof(uint64));
	for (int i = 0; i < count; i++)
	{
		BufferTag	tag;
		uint32		hash;
		LWLock	   *lock;
		int			buffer;

		CompatMainForkTag(&tag, rel, first + i);
		hash = BufTableHashCode(&tag);
		lock = BufMappingPartitionLock(hash);
		LWLockAcquire(lock, LW_SHARED);
		buffer = BufTableLookup(&tag, hash);
		LWLockRelease(lock);
		if (buffer < 0)
		{
			absent[i / 64] |= UINT64CONST(1) << (i % 64);
			absent_count++;
		}
	}
	return absent_count;
}
