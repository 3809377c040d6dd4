/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * An index and its values in a heap with snapshots. A child process sees them at their own addresses, so it walks through the old
 * map while the program continues.
 *
 *   c++ -std=c++17 heap.cpp $(pkg-config --cflags --libs bedplate-snapshot) -o heap
 *   ./heap
 */
#include <bedplate/snapshot.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <string>

static bp_snapshot_memory memory;

/* An allocator for the containers of the standard library. */
template <typename T> struct in_heap {
	using value_type = T;
	in_heap() = default;
	template <typename U> in_heap(const in_heap<U> &) {}
	T *allocate(std::size_t count)
	{
		void *block;
		if (count > SIZE_MAX / sizeof(T) ||
		    bp_snapshot_allocate(memory, count * sizeof(T), alignof(T), &block) != BP_SNAPSHOT_OK)
			throw std::bad_alloc();
		return static_cast<T *>(block);
	}
	void deallocate(T *block, std::size_t) { bp_snapshot_free(memory, block); }
	template <typename U> bool operator==(const in_heap<U> &) const { return true; }
	template <typename U> bool operator!=(const in_heap<U> &) const { return false; }
};

using text = std::basic_string<char, std::char_traits<char>, in_heap<char>>;
using table = std::map<int, text, std::less<int>, in_heap<std::pair<const int, text>>>;

/* Runs in the child. No exception may leave it. */
static int save(void *argument, const bp_snapshot_view *view, bp_snapshot_output output)
{
	std::size_t characters = 0;
	for (const auto &row : *static_cast<table *>(argument))
		characters += row.second.size();
	if (view->data != view->home)
		return 1;
	return bp_snapshot_write(output, &characters, sizeof characters);
}

int main()
{
	bp_snapshot_options options{};
	options.size = sizeof options;
	options.bytes = 1 << 20;
	options.reserve = std::size_t{1} << 30;
	options.flags = BP_SNAPSHOT_HEAP;
	if (bp_snapshot_create(&options, &memory)) {
		std::fprintf(stderr, "%s\n", bp_snapshot_error());
		return 1;
	}
	{
		table rows;
		for (int number = 0; number < 100000; number++)
			rows.emplace(number, text(static_cast<std::size_t>(number % 100), 'x'));
		bp_snapshot_task task;
		bp_snapshot_result result;
		if (bp_snapshot_spawn_in_child(memory, save, &rows, &task)) {
			std::fprintf(stderr, "%s\n", bp_snapshot_error());
			return 1;
		}
		rows.clear();
		rows.emplace(1, "later");
		std::size_t characters = 0;
		if (bp_snapshot_join(task, &result, sizeof result) || result.status || result.len != sizeof characters) {
			std::fprintf(stderr, "%s\n", bp_snapshot_error());
			return 1;
		}
		std::memcpy(&characters, result.data, sizeof characters);
		bp_snapshot_close_task(task);
		std::printf("a child saw %zu characters\n", characters);
	}
	return bp_snapshot_destroy(memory) != 0;
}
