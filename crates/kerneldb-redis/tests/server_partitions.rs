//! CALL over the Redis port on a database with several partitions.

mod calls;
mod common;
mod server;

use bedplate_kerneldb::Config;
use calls::compile;
use common::can_run;
use server::{Client, config, start_with, words};

/// A procedure that adds 1 to its first key and then to its second one as often as it is told. It refuses negative numbers, but only then.
const STEPS: &str = r#"
#include <bedplate/procedure.h>
KDB_LICENSE("Dual MIT/GPL");
static __always_inline int add(struct kdb_proc *p, __u32 i, __s64 *sum)
{
	*sum = 0;
	KDB_TRY(kdb_key_argument(p, i));
	if (KDB_TRY(kdb_read_for_update(p)) == KDB_OK)
		KDB_TRY(kdb_value_integer(p, sum));
	return kdb_write_integer(p, ++*sum);
}
KDB_PROCEDURE(steps)
{
	__s64 times, sum;
	__u32 i;

	KDB_TRY(kdb_argument_integer(p, 2, &times));
	KDB_TRY(add(p, 0, &sum));
	for (i = 0; i < 20; i++) {
		if (i >= (times < 0 ? -times : times))
			break;
		KDB_TRY(add(p, 1, &sum));
	}
	if (times < 0)
		return kdb_refuse(p, "ERR not negative");
	return kdb_reply_integer(p, sum);
}
KDB_READ_ONLY_PROCEDURE(both)
{
	__s64 first, second;

	KDB_TRY(kdb_key_argument(p, 0));
	KDB_TRY(kdb_read(p));
	KDB_TRY(kdb_value_integer(p, &first));
	KDB_TRY(kdb_key_argument(p, 1));
	KDB_TRY(kdb_read(p));
	KDB_TRY(kdb_value_integer(p, &second));
	return kdb_reply_integer(p, first * 1000 + second);
}
"#;

/// A second key that is in another partition than "near". The procedure then has fewer visits than it needs.
fn far_key(client: &mut Client) -> String {
    let is_far = |key: &String| {
        client.send(&words(&format!("CALL steps near {key} 17")));
        client.lines(1).remove(0).starts_with(
            "-ERR too many steps on keys of other partitions: a procedure may have 32, a handler fewer",
        )
    };
    (0..100).map(|i| format!("far{i}")).find(is_far).unwrap()
}

#[test]
fn the_kernel_answers_calls_on_keys_of_several_partitions() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let steps = compile(folder.path(), "steps", STEPS);
    for versions in [1, 4] {
        let database = Config {
            memory_bytes: 64 << 20,
            partitions: 3,
            versions,
            max_sessions: 256,
            ..Config::default()
        };
        let running = start_with(database, config());
        running.db.load_library("steps", &steps, false).unwrap();
        let mut client = running.client();
        let far = &far_key(&mut client);
        client.ask(&format!("MSET near 0 {far} 0"), "+OK");
        let before = running.server.stats().unwrap();
        let mut commands = 0;
        let mut ask = |line: &str, reply: &str| {
            client.ask(line, reply);
            commands += 1;
        };
        let (mut near_count, mut far_count) = (0, 0);
        for times in 0..=12 {
            near_count += 1;
            far_count += times;
            let sum = if times == 0 { near_count } else { far_count };
            ask(&format!("CALL steps near {far} {times}"), &format!(":{sum}"));
            // It has changed both keys before it refuses.
            ask(&format!("CALL steps near {far} -3"), "-ERR not negative");
            if times > 0 {
                ask(&format!("CALL both near {far}"), &format!(":{}", near_count * 1000 + far_count));
                ask(&format!("CALL both {far} near"), &format!(":{}", far_count * 1000 + near_count));
            }
        }
        ask("BEGIN READ ONLY", "+OK");
        let by_event_loop = 1;
        ask(&format!("CALL both near {far}"), ":13078");
        ask("COMMIT", "+OK");
        let after = running.server.stats().unwrap();
        assert_eq!(after.kernel_commands - before.kernel_commands, commands - by_event_loop, "{after:?}");
        // The kernel has too few tail calls for the last ones, and the event loop has enough.
        for times in [13, 14, 15, 16] {
            client.ask(&format!("CALL steps {far} near {times}"), &format!(":{}", near_count + times));
            near_count += times;
            far_count += 1;
        }
        let error =
            "-ERR too many steps on keys of other partitions: a procedure may have 32, a handler fewer";
        client.ask(&format!("CALL steps {far} near 17"), error);
        // Queues and transactions.
        for (begin, end) in [("MULTI", "EXEC"), ("BEGIN", "COMMIT"), ("BEGIN", "ROLLBACK")] {
            client.ask(begin, "+OK");
            let sums = [far_count + 2, near_count + 1 + 3];
            let replies = sums.map(|sum| format!(":{sum}"));
            let said = if begin == "MULTI" { ["+QUEUED"; 2] } else { [&*replies[0], &*replies[1]] };
            client.ask(&format!("CALL steps near {far} 2"), said[0]);
            client.ask(&format!("CALL steps {far} near 3"), said[1]);
            let reply = if end == "EXEC" { format!("*2\r\n{}", replies.join("\r\n")) } else { "+OK".into() };
            client.ask(end, &reply);
            if end != "ROLLBACK" {
                near_count += 4;
                far_count += 3;
            }
            client.ask(&format!("CALL both near {far}"), &format!(":{}", near_count * 1000 + far_count));
        }
        // Many in one packet.
        client.send(&words(&format!("CALL steps near {far} 5")).repeat(40));
        let replies: String = (1..=40).map(|i| format!(":{}\r\n", far_count + 5 * i)).collect();
        client.expect(replies.as_bytes());
        near_count += 40;
        far_count += 200;
        client.ask(&format!("CALL both near {far}"), &format!(":{}", near_count * 1000 + far_count));
        drop(client);
        running.db.verify().unwrap();
        running.finish();
    }
}
