//! SLOWLOG: the commands of the event loop that have taken long.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::exec::{Ctx, Run};
use super::introspect::help;
use super::operators::Operators;
use super::request::Core;
use super::services::Services;
use super::spec::Spec;
use crate::resp::{Args, parse_i64};

/// Arguments of a command that an entry keeps, as in Redis. If there are more, the last one says how many.
const ARGUMENTS_MAX: usize = 32;
/// Bytes of an argument that an entry keeps, as in Redis. The text says how many more there are.
const ARGUMENT_BYTES_MAX: usize = 128;
/// Entries that SLOWLOG GET returns unless told.
const GET_DEFAULT: i64 = 10;

/// A command that has taken long.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Time at which it was logged, in seconds since the Unix epoch.
    time_s: u64,
    took_us: u64,
    /// Its arguments, shortened.
    args: Vec<Vec<u8>>,
    /// Address and name of the client.
    addr: String,
    name: String,
}

impl Entry {
    pub fn new(time_s: u64, took_us: u64, args: &[&[u8]], addr: String, name: String) -> Entry {
        let kept = if args.len() > ARGUMENTS_MAX { ARGUMENTS_MAX - 1 } else { args.len() };
        let mut shortened: Vec<Vec<u8>> = args[..kept].iter().map(|arg| shorten(arg)).collect();
        if kept < args.len() {
            shortened.push(format!("... ({} more arguments)", args.len() - kept).into_bytes());
        }
        Entry { time_s, took_us, args: shortened, addr, name }
    }
}

fn shorten(arg: &[u8]) -> Vec<u8> {
    match arg.split_at_checked(ARGUMENT_BYTES_MAX) {
        Some((kept, rest)) if !rest.is_empty() => {
            [kept, format!("... ({} more bytes)", rest.len()).as_bytes()].concat()
        }
        _ => arg.to_vec(),
    }
}

/// The name of a client as an entry keeps it.
pub(super) fn shorten_name(name: &str) -> String {
    String::from_utf8_lossy(&shorten(name.as_bytes())).into_owned()
}

/// The slow log of a server: its newest entries.
#[derive(Debug, Default)]
pub struct SlowLog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The newest one first, with their numbers.
    entries: VecDeque<(u64, Entry)>,
    next_number: u64,
}

impl SlowLog {
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds entries in the order of time, of which the first `left_out` ones are not kept. The log keeps the newest `length_max` ones.
    pub(super) fn push(&self, left_out: u64, entries: impl Iterator<Item = Entry>, length_max: usize) {
        self.with(|state| {
            state.next_number += left_out;
            for entry in entries {
                state.entries.push_front((state.next_number, entry));
                state.next_number += 1;
            }
            state.entries.truncate(length_max);
        });
    }
}

pub(super) fn run<S: Operators, V: Services>(
    core: &Core,
    ctx: &mut Ctx<'_, S, V>,
    spec: &Spec,
    args: Args<'_>,
) -> Run {
    let log = &core.server.slow_log;
    let out = &mut ctx.out;
    match spec.name {
        "get" => {
            if args.len() > 3 {
                let name = String::from_utf8_lossy(args.get(1));
                return Err(format!(
                    "ERR unknown subcommand or wrong number of arguments for '{name}'. Try SLOWLOG HELP."
                )
                .into());
            }
            let count = if args.len() == 3 { parse_i64(args.get(2)) } else { Some(GET_DEFAULT) };
            let count = match count {
                Some(-1) => usize::MAX,
                count => count
                    .and_then(|count| usize::try_from(count).ok())
                    .ok_or("ERR count should be greater than or equal to -1")?,
            };
            log.with(|state| {
                out.array(count.min(state.entries.len()));
                for (number, entry) in state.entries.iter().take(count) {
                    out.array(6);
                    [*number, entry.time_s, entry.took_us].iter().for_each(|n| out.integer(*n as i64));
                    out.array(entry.args.len());
                    entry.args.iter().for_each(|arg| out.bulk(arg));
                    out.bulk(entry.addr.as_bytes());
                    out.bulk(entry.name.as_bytes());
                }
            });
        }
        "len" => out.integer(log.with(|state| state.entries.len()) as i64),
        "reset" => {
            log.with(|state| state.entries = VecDeque::new());
            out.ok();
        }
        _ => help(
            out,
            "SLOWLOG",
            &[
                (
                    "GET [<count>]",
                    "Return the newest <count> entries (default: 10, -1 means all): number, Unix time, microseconds, arguments, address and name of the client.",
                ),
                ("LEN", "Return the number of entries."),
                ("RESET", "Delete all entries."),
            ],
        ),
    }
    Ok(())
}
