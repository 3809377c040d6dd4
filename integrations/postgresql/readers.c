/*
 * readers.c
 *	  Which sessions read a table directly, each for itself, at the moment.
 *
 * The page cache gives all scans of a table what the device read once for the first. Direct scans that do not share would each
 * read all of it. So one session reads a table directly for itself; those that begin meanwhile leave it to the page cache
 * (policy.c). A session reads as long as it finishes chunks: one that pauses, or that ended by an ERROR, is soon forgotten, and
 * nobody has to clean up after it.
 *
 * The processes of a parallel query are one session. Without shared_preload_libraries nobody knows of others.
 *
 * Locks: a spinlock, for a look at all readers. Nothing is called while it is held.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "compat.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/spin.h"

/* Readers that are known. A new one takes the place of the one that has been silent for longest. */
#define READERS_MAX		64
/* A reader that has finished no chunk for this time does not read. */
#define SILENCE_NS		(UINT64CONST(1) * 1000 * 1000 * 1000)

typedef struct Reader
{
	Oid			identity[3];
	int			session;
	uint64		last_ns;		/* when it finished a chunk last; 0: it reads no more */
} Reader;

typedef struct Readers
{
	slock_t		mutex;
	Reader		of[READERS_MAX];
} Readers;

static Readers *readers = NULL; /* NULL without shared memory */

/* The process that leads this one's query. */
static int
Session(void)
{
	return MyProc->lockGroupLeader != NULL ? MyProc->lockGroupLeader->pid : MyProcPid;
}

/* The entry of a session and a table; NULL if there is none. The caller must hold the mutex. */
static Reader *
Find(const Oid identity[3], int session)
{
	for (int i = 0; i < READERS_MAX; i++)
	{
		Reader	   *reader = &readers->of[i];

		if (reader->session == session && memcmp(reader->identity, identity, sizeof(reader->identity)) == 0)
			return reader;
	}
	return NULL;
}

/* Notes that a session reads a table now. The caller must hold the mutex. */
static void
Note(const Oid identity[3], int session, uint64 now)
{
	Reader	   *reader = Find(identity, session);

	if (reader == NULL)
	{
		reader = &readers->of[0];
		for (int i = 1; i < READERS_MAX; i++)
			if (readers->of[i].last_ns < reader->last_ns)
				reader = &readers->of[i];
		memcpy(reader->identity, identity, sizeof(reader->identity));
		reader->session = session;
	}
	reader->last_ns = now;
}

/* Makes this session a reader of the table. False: another one is, and this one has not become one. */
bool
BpsBeginReading(Relation rel)
{
	Oid			identity[3];
	uint64		now = BpsNow();
	int			session = Session();
	bool		is_alone = true;

	if (readers == NULL)
		return true;
	CompatFileIdentity(rel, identity);
	SpinLockAcquire(&readers->mutex);
	for (int i = 0; i < READERS_MAX; i++)
	{
		Reader	   *reader = &readers->of[i];

		if (reader->session != session && reader->last_ns != 0 && now - Min(now, reader->last_ns) < SILENCE_NS &&
			memcmp(reader->identity, identity, sizeof(identity)) == 0)
			is_alone = false;
	}
	if (is_alone)
		Note(identity, session, now);
	SpinLockRelease(&readers->mutex);
	return is_alone;
}

/* This session has finished a chunk that was read for it alone. */
void
BpsGoOnReading(Relation rel)
{
	Oid			identity[3];
	uint64		now = BpsNow();
	int			session = Session();

	if (readers == NULL)
		return;
	CompatFileIdentity(rel, identity);
	SpinLockAcquire(&readers->mutex);
	Note(identity, session, now);
	SpinLockRelease(&readers->mutex);
}

/* This session, or a process of it, reads no more of the table. */
void
BpsEndReading(Relation rel)
{
	Oid			identity[3];
	int			session = Session();
	Reader	   *reader;

	if (readers == NULL)
		return;
	CompatFileIdentity(rel, identity);
	SpinLockAcquire(&readers->mutex);
	reader = Find(identity, session);
	if (reader != NULL)
		reader->last_ns = 0;
	SpinLockRelease(&readers->mutex);
}

Size
BpsReadersSize(void)
{
	return MAXALIGN(sizeof(Readers));
}

/* The caller must hold AddinShmemInitLock. */
void
BpsStartReaders(void)
{
	bool		is_there;

	readers = ShmemInitStruct("bedplate_scan readers", sizeof(Readers), &is_there);
	if (!is_there)
	{
		memset(readers, 0, sizeof(Readers));
		SpinLockInit(&readers->mutex);
	}
}
