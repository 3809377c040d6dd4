//! Replay of the log: all segments after a timestamp, in order.
//!
//! The headers alone determine which part of a segment is valid. A segment holds everything from its
//! first timestamp to just below the first timestamp of any later segment (later by sequence number).
//! A later segment replaces everything after that, which is how the writer continues after an I/O
//! error. Damage below that limit is damage of durable data. At the end of the last segment it is an
//! incomplete write, unless a later frame says that the damaged part was durable.

use super::files::{list_segments, segment_name};
use super::frame::{FrameHeader, SegmentHeader, decode_payload};
use super::segment::{Next, SegmentReader};
use super::settle;
use super::source::{OpRef, TxnSink};
use crate::durability::disk::Dir;
use crate::{Error, Result};

/// Results of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// Newest recovered commit.
    pub(crate) last_ts: u64,
    /// Sequence number for the next segment.
    pub(crate) next_seq: u64,
    pub(crate) segments: u64,
    pub(crate) txns: u64,
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    pub(crate) torn_bytes: u64,
    /// The data that was given up because of `force`.
    pub(crate) damage: Option<String>,
}

/// Options of a replay.
pub(crate) struct Options<'a> {
    pub(crate) database_id: &'a [u8; 16],
    /// Commits up to here are in the checkpoint.
    pub(crate) after: u64,
    /// Stop at damage instead of reporting it as an error.
    pub(crate) force: bool,
    /// Clean up the end of the log and make it durable, so that a new segment can follow.
    pub(crate) repair: bool,
}

/// Receives the transactions; it can fail.
pub(crate) trait Apply {
    /// The sink for the transactions of the next frame.
    fn sink(&mut self) -> &mut dyn TxnSink;
    /// Called after each frame; returns the first error of the sink, if any. `bytes` is the size of
    /// the log read so far.
    fn check(&mut self, bytes: u64, total: u64) -> Result<()>;
}

struct Plan {
    first_ts: u64,
    seq: u64,
    /// Only timestamps below this are valid.
    limit: u64,
    reader: SegmentReader,
}

/// Replays everything after `options.after` into `apply`.
pub(crate) fn replay(dir: &dyn Dir, options: &Options<'_>, apply: &mut dyn Apply) -> Result<Replayed> {
    if options.repair {
        // Removed segments must stay removed, see `settle`.
        dir.sync().map_err(|e| Error::io("syncing the log's directory", e))?;
    }
    let listed = list_segments(dir).map_err(|e| Error::io("listing log segments", e))?;
    let mut done = Replayed {
        last_ts: options.after,
        next_seq: listed.last().map_or(1, |&(_, seq)| seq + 1),
        ..Replayed::default()
    };
    let plans = match plan(dir, options, &listed, &mut done)? {
        Some(plans) => plans,
        None => return Ok(done),
    };
    let total = plans.iter().map(|p| p.reader.file_len()).sum();
    let mut before = 0;
    for plan in plans {
        let length = plan.reader.file_len();
        let go_on = segment(dir, options, plan, &mut done, apply, (before, total))?;
        before += length;
        if !go_on {
            break;
        }
    }
    Ok(done)
}

/// Returns `Err` of corrupt data, or under `force` a note of it and `Ok`.
fn damaged(options: &Options<'_>, done: &mut Replayed, text: String) -> Result<()> {
    if !options.force {
        return Err(Error::Corrupt(text));
    }
    tracing::warn!(damage = text, "recovery is forced: everything after this is given up");
    done.damage.get_or_insert(text);
    Ok(())
}

fn plan(
    dir: &dyn Dir,
    options: &Options<'_>,
    listed: &[(u64, u64)],
    done: &mut Replayed,
) -> Result<Option<Vec<Plan>>> {
    let mut plans: Vec<Plan> = Vec::new();
    let mut limit = u64::MAX;
    for &(first_ts, seq) in listed.iter().rev() {
        let name = dir.path(&segment_name(first_ts, seq)).display().to_string();
        let io = |e| Error::io(format!("reading {name}"), e);
        let file = dir.open(&segment_name(first_ts, seq)).map_err(io)?;
        let reader = SegmentReader::new(file, seq, options.database_id).map_err(io)?;
        // The segment is not needed: later ones replace it, or the checkpoint covers it.
        if first_ts >= limit || limit <= options.after.saturating_add(1) {
            limit = limit.min(first_ts);
            continue;
        }
        let problem = match reader.header().map_err(io)? {
            Ok(SegmentHeader { database_id, .. }) if database_id != *options.database_id => {
                return Err(Error::Corrupt(format!("log segment {name} belongs to another database")));
            }
            Ok(header) if header.first_ts == first_ts && header.seq == seq => None,
            Ok(_) => Some("has the name of another segment".to_string()),
            Err(what) => Some(what),
        };
        if let Some(problem) = problem {
            damaged(options, done, format!("log segment {name} {problem}"))?;
            plans.clear();
            limit = u64::MAX;
            continue;
        }
        plans.push(Plan { first_ts, seq, limit, reader });
        limit = limit.min(first_ts);
    }
    plans.reverse();
    if let Some(first) = plans.first()
        && first.first_ts > options.after + 1
    {
        damaged(
            options,
            done,
            format!(
                "the log begins with commit {}, but commits {} to {} are in no usable checkpoint",
                first.first_ts,
                options.after + 1,
                first.first_ts - 1
            ),
        )?;
        return Ok(None);
    }
    Ok(Some(plans))
}

/// Replays one segment. False: the log ends in it.
fn segment(
    dir: &dyn Dir,
    options: &Options<'_>,
    mut plan: Plan,
    done: &mut Replayed,
    apply: &mut dyn Apply,
    (before, total): (u64, u64),
) -> Result<bool> {
    let name = segment_name(plan.first_ts, plan.seq);
    let path = dir.path(&name).display().to_string();
    let io = |e| Error::io(format!("reading {path}"), e);
    let reader = &mut plan.reader;
    let mut expected = plan.first_ts;
    // Commits that are on disk for certain: the writer creates a segment only when all earlier commits
    // are durable.
    let mut durable_ts = if plan.limit == u64::MAX { plan.first_ts - 1 } else { plan.limit - 1 };
    done.segments += 1;
    // Reads until everything below the limit was replayed. It does not read commits that a later
    // segment replaces.
    while expected < plan.limit {
        let place = reader.offset();
        match reader.next().map_err(io)? {
            Next::Frame(header) if header.first_ts == expected && header.last_ts() < plan.limit => {
                apply_frame(&header, reader.payload(), options.after, done, apply);
                done.bytes += header.frame_len();
                expected = header.last_ts() + 1;
                durable_ts = durable_ts.max(header.durable_ts);
                apply.check(before + reader.offset(), total)?;
                continue;
            }
            Next::Frame(_) => reader.seek(place),
            Next::Other => {}
        }
        let rest = reader.rest().map_err(io)?;
        // Damage in a part that the checkpoint covers loses no commits.
        if let Some((place, header)) = rest.frame
            && header.first_ts <= options.after + 1
            && header.first_ts > expected
        {
            reader.seek(place);
            expected = header.first_ts;
            continue;
        }
        // No newer commit than the checkpoint's is missing if a later segment continues it.
        if plan.limit <= options.after + 1 {
            break;
        }
        let needed = expected.max(options.after + 1);
        let mut damage = true;
        let at = format!("log segment {path} at byte {place}");
        if plan.limit != u64::MAX {
            damaged(
                options,
                done,
                format!("{at}: commits {needed} to {} are damaged or missing", plan.limit - 1),
            )?;
        } else if rest.durable_ts >= needed {
            damaged(
                options,
                done,
                format!(
                    "{at}: commit {needed} is damaged, although intact data follows that was written after it was durable"
                ),
            )?;
        } else {
            done.torn_bytes = rest.used;
            damage = false;
        }
        if options.repair {
            let end = settle::End {
                name: &name,
                first_ts: plan.first_ts,
                last_ts: expected - 1,
                durable_ts,
                damage,
            };
            settle::settle(dir, options.database_id, plan.reader, &end, &mut done.next_seq)
                .map_err(|e| Error::io(format!("making the end of {path} durable"), e))?;
        }
        return Ok(false);
    }
    Ok(true)
}

fn apply_frame(header: &FrameHeader, payload: &[u8], after: u64, done: &mut Replayed, apply: &mut dyn Apply) {
    if header.last_ts() <= after {
        return;
    }
    let mut newer = Newer { after, take: false, ops: 0, sink: apply.sink() };
    // The payload's checksum and structure were checked when it was read.
    decode_payload(header, payload, &mut newer);
    done.ops += newer.ops;
    done.txns += header.last_ts() - header.first_ts.max(after + 1) + 1;
    done.last_ts = header.last_ts();
}

/// Passes on the transactions that the checkpoint does not contain.
struct Newer<'a> {
    after: u64,
    take: bool,
    ops: u64,
    sink: &'a mut dyn TxnSink,
}

impl TxnSink for Newer<'_> {
    fn begin(&mut self, commit_ts: u64) {
        self.take = commit_ts > self.after;
        if self.take {
            self.sink.begin(commit_ts);
        }
    }

    fn op(&mut self, op: OpRef<'_>) {
        if self.take {
            self.ops += 1;
            self.sink.op(op);
        }
    }

    fn end(&mut self) {
        if self.take {
            self.sink.end();
        }
    }
}
