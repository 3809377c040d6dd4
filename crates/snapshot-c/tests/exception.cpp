/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A C++ exception that leaves a task's function ends the task's child, and nothing else. */
#include <bedplate/snapshot.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>

static int throws(void *, const bp_snapshot_view *, bp_snapshot_output)
{
	throw std::runtime_error("not caught");
}

int main()
{
	bp_snapshot_options options{};
	bp_snapshot_memory memory{};
	bp_snapshot_task task{};
	bp_snapshot_result result{};
	options.size = sizeof options;
	options.bytes = 1 << 20;
	if (bp_snapshot_create(&options, &memory) || bp_snapshot_spawn_in_child(memory, throws, nullptr, &task))
		return 1;
	const int code = bp_snapshot_join(task, &result, sizeof result);
	std::printf("%s\n", bp_snapshot_error());
	return code != BP_SNAPSHOT_ERROR_TASK || !std::strstr(bp_snapshot_error(), "signal 6");
}
