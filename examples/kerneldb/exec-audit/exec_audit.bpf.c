// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
// Logs the programs that are executed on this machine, for each user, in a transaction for each execve:
//
//	exec:USER:count   number of programs that the user (its number) has executed
//	exec:USER:I       one of the last COMMANDS of them: its count, Unix time in milliseconds, process and file. I = count % COMMANDS
#include <bedplate/handler.h>

KDB_LICENSE("Dual MIT/GPL");

#define COMMANDS 16

// The kernel's structure, with the fields that are used. The loader finds their places in the running kernel.
struct linux_binprm {
	const char *filename;
} __attribute__((preserve_access_index));

static __always_inline int user_key(struct kdb_proc *p, __u32 user)
{
	kdb_key(p, "exec:");
	KDB_TRY(kdb_key_append_decimal(p, user));
	return kdb_key_append_text(p, ":");
}

// The tracepoint's arguments: struct task_struct *, pid_t, struct linux_binprm *.
KDB_TRACEPOINT_HANDLER(exec_audit, sched_process_exec)
{
	struct linux_binprm *program = (void *)args[2];
	__u32 user = bpf_get_current_uid_gid();
	__s64 count = 0;

	KDB_TRY(user_key(p, user));
	KDB_TRY(kdb_key_append_text(p, "count"));
	if (KDB_TRY(kdb_read_for_update(p)) == KDB_OK)
		KDB_TRY(kdb_value_integer(p, &count));
	count++;
	KDB_TRY(kdb_write_integer(p, count));

	KDB_TRY(user_key(p, user));
	KDB_TRY(kdb_key_append_decimal(p, (__u64)count % COMMANDS));
	kdb_value(p, "");
	KDB_TRY(kdb_value_append_decimal(p, count));
	KDB_TRY(kdb_value_append_text(p, " "));
	KDB_TRY(kdb_value_append_decimal(p, kdb_now_ms()));
	KDB_TRY(kdb_value_append_text(p, " "));
	KDB_TRY(kdb_value_append_decimal(p, bpf_get_current_pid_tgid() >> 32));
	KDB_TRY(kdb_value_append_text(p, " "));
	KDB_TRY(kdb_value_append_string(p, program->filename));
	return kdb_write(p);
}
