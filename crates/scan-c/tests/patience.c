/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The library waits for a listener that never answers as long as the program chooses, with and without signals. The argument is
 * the path of a socket that the program creates.
 */
#define BP_CHECK_STRERROR bp_scan_strerror
#define BP_CHECK_ERROR bp_scan_error

#include <bedplate/scan.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "bedplate_check.h"

#define MILLISECOND UINT64_C(1000000)
#define PATIENCE (300 * MILLISECOND)
/* This is less than bp_scan_connect() waits, and enough on a busy machine. */
#define FAR (20000 * MILLISECOND)

static volatile sig_atomic_t signals;

static void on_signal(int number)
{
	(void)number;
	signals++;
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void waits(const char *path)
{
	struct bp_scan_service service;
	uint64_t begin = now(), took;

	IS(bp_scan_connect_within(path, PATIENCE, &service), BP_SCAN_ERROR_SYSTEM);
	took = now() - begin;
	HOLDS(bp_scan_error_number() == ETIMEDOUT);
	HOLDS(took >= PATIENCE && took < FAR);
}

int main(int argc, char **argv)
{
	struct bp_scan_service service;
	struct sockaddr_un address;
	struct sigaction action;
	struct itimerval every;
	int listener;

	if (argc != 2)
		return 2;
	memset(&address, 0, sizeof address);
	address.sun_family = AF_UNIX;
	strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	HOLDS(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof address) == 0 &&
	      listen(listener, 8) == 0);

	IS(bp_scan_connect_within(NULL, PATIENCE, &service), BP_SCAN_ERROR_NULL);
	IS(bp_scan_connect_within(argv[1], PATIENCE, NULL), BP_SCAN_ERROR_NULL);
	IS(bp_scan_connect_within(argv[1], 0, &service), BP_SCAN_ERROR_INVALID);
	IS(bp_scan_connect_within(argv[1], MILLISECOND - 1, &service), BP_SCAN_ERROR_INVALID);
	IS(bp_scan_connect_within(argv[1], 3600000 * MILLISECOND + 1, &service), BP_SCAN_ERROR_INVALID);

	waits(argv[1]);
	/* Signals interrupt system calls, because SA_RESTART is not set. */
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	sigaction(SIGALRM, &action, NULL);
	memset(&every, 0, sizeof every);
	every.it_interval.tv_usec = every.it_value.tv_usec = 10000;
	setitimer(ITIMER_REAL, &every, NULL);
	waits(argv[1]);
	HOLDS(signals > 0);
	return failures;
}
