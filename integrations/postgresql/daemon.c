/*
 * daemon.c
 *	  The cluster's own daemon, which reads for scans that share, and the background worker that keeps it running.
 *
 * The background worker itself executes nothing. It forks, and the child executes the daemon; the kernel ends the daemon when
 * the worker ends, however it does (PR_SET_PDEATHSIG). The daemon has no part of the server's shared memory and is no child
 * of the postmaster, so it may be killed at any time. The worker starts it again, after a time that doubles while it ends soon.
 *
 * The worker has no connection to a database, and holds no lock.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"

#define DAEMON_PID_FILE	PG_STAT_TMP_DIR "/bedplate_scan.pid"
/* The daemon is started again after this time, which doubles while it ends soon. */
#define RESTART_MS		1000
#define RESTART_MS_MAX	60000
/* A daemon that takes longer to end is killed. */
#define END_NS			(UINT64CONST(5) * 1000 * 1000 * 1000)
/* A daemon that ran for as long is not one that ends soon. */
#define RESTART_AFTER_NS (UINT64CONST(10) * 1000 * 1000 * 1000)

PGDLLEXPORT void bedplate_scan_daemon_main(Datum arg);

static void
WakeUp(SIGNAL_ARGS)
{
	int			saved_errno = errno;

	(void) postgres_signal_arg;
	SetLatch(MyLatch);
	errno = saved_errno;
}

/* Runs in the child. It must not return, and must not run the server's exit handlers. */
__attribute__((noreturn)) static void
ExecuteDaemon(pid_t worker)
{
	sigset_t	none;
	int			null_file;

	/* Signals that are sent to all processes of the worker's group are not for the daemon. */
	setpgid(0, 0);
	/* The signal comes when the worker ends; it may have ended before. */
	if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != worker)
		_exit(1);
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	null_file = open("/dev/null", O_RDWR);
	if (null_file >= 0)
	{
		dup2(null_file, STDIN_FILENO);
		dup2(null_file, STDOUT_FILENO);
	}
	if (syscall(SYS_close_range, 3, ~0U, 0) != 0)
	{
		long		most = sysconf(_SC_OPEN_MAX);

		for (int fd = 3; fd < most; fd++)
			close(fd);
	}
	execlp(bps_program, "bedplate", "scan", "serve", "--socket", BPS_DAEMON_SOCKET, (char *) NULL);
	_exit(127);
}

static void
WritePid(pid_t pid)
{
	FILE	   *file = AllocateFile(DAEMON_PID_FILE, "w");

	if (file == NULL)
		return;
	fprintf(file, "%d\n", (int) pid);
	FreeFile(file);
}

static pid_t
StartDaemon(void)
{
	pid_t		worker = getpid();
	sigset_t	all;
	sigset_t	before;
	pid_t		child;

	/* No handler of the worker's may run in the child. */
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &before);
	child = fork();
	if (child == 0)
		ExecuteDaemon(worker);
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (child < 0)
	{
		ereport(LOG, (errmsg("bedplate_scan: the daemon cannot be started: %m")));
		return 0;
	}
	ereport(LOG, (errmsg("bedplate_scan: started the daemon, process %d", (int) child)));
	WritePid(child);
	return child;
}

/* Says how the daemon ended. */
static void
ReportEnd(int status)
{
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
		ereport(LOG, (errmsg("bedplate_scan: \"%s\" cannot be executed", bps_program),
					  errhint("Set bedplate_scan.program to the path of the program \"bedplate\".")));
	else if (WIFSIGNALED(status))
		ereport(LOG, (errmsg("bedplate_scan: the daemon was ended by signal %d", WTERMSIG(status))));
	else
		ereport(LOG, (errmsg("bedplate_scan: the daemon ended with status %d", WEXITSTATUS(status))));
}

/* Ends the daemon, which may stand still. */
static void
EndDaemon(pid_t child)
{
	uint64		begin = BpsNow();
	int			status;

	kill(child, SIGTERM);
	while (waitpid(child, &status, WNOHANG) == 0)
	{
		if (BpsNow() - begin > END_NS)
			kill(child, SIGKILL);
		pg_usleep(10000);
	}
}

/* The background worker: keeps a daemon running, and ends with it. */
void
bedplate_scan_daemon_main(Datum arg)
{
	pid_t		child = 0;
	int			restart_ms = 0;
	uint64		started_ns = 0;
	int			status;

	(void) arg;
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGCHLD, WakeUp);
	BackgroundWorkerUnblockSignals();
	while (!ShutdownRequestPending)
	{
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		if (child != 0 && waitpid(child, &status, WNOHANG) == child)
		{
			ReportEnd(status);
			child = 0;
			if (BpsNow() - started_ns > RESTART_AFTER_NS)
				restart_ms = RESTART_MS;
			else
				restart_ms = Min(Max(restart_ms * 2, RESTART_MS), RESTART_MS_MAX);
		}
		if (child == 0 && BpsNow() - started_ns >= (uint64) restart_ms * 1000000)
		{
			child = StartDaemon();
			started_ns = BpsNow();
			restart_ms = Max(restart_ms, RESTART_MS);
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 child == 0 ? RESTART_MS / 4 : 10 * RESTART_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	if (child != 0)
		EndDaemon(child);
	unlink(DAEMON_PID_FILE);
	/* The postmaster starts the worker again, unless it is ending itself: only status 0 is for good. */
	proc_exit(1);
}

/* Called while shared_preload_libraries are loaded. */
void
BpsRegisterDaemon(void)
{
	BackgroundWorker worker;
	Dl_info		here;

	memset(&worker, 0, sizeof(worker));
	snprintf(worker.bgw_name, BGW_MAXLEN, "bedplate_scan daemon");
	snprintf(worker.bgw_type, BGW_MAXLEN, "bedplate_scan daemon");
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = 1;
	/* The library as it was loaded, which may not be in the server's folder; its path is limited. */
	if (dladdr((void *) bedplate_scan_daemon_main, &here) != 0 && strlen(here.dli_fname) < sizeof(worker.bgw_library_name))
		strlcpy(worker.bgw_library_name, here.dli_fname, sizeof(worker.bgw_library_name));
	else
		strlcpy(worker.bgw_library_name, "bedplate_scan", sizeof(worker.bgw_library_name));
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "bedplate_scan_daemon_main");
	RegisterBackgroundWorker(&worker);
}
