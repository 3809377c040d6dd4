//! COMMAND and its subcommands, and the texts of HELP.

use super::exec::{Ctx, Run, SYNTAX, is};
use super::glob::glob_match;
use super::operators::Operators;
use super::services::Services;
use super::spec::{self, Found, Spec, flags, full_name};
use super::table::COMMANDS;
use crate::resp::{Args, Writer, parse_i64};

pub(super) fn run<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, spec: &Spec, args: Args<'_>) -> Run {
    let out = &mut ctx.out;
    match (spec.name, args.len()) {
        ("command", _) => {
            out.array(COMMANDS.len());
            COMMANDS.iter().for_each(|c| describe(out, c, None));
        }
        ("count", _) => out.integer(COMMANDS.len() as i64),
        ("info", 2) => {
            out.array(COMMANDS.len());
            COMMANDS.iter().for_each(|c| describe(out, c, None));
        }
        ("info", count) => {
            out.array(count - 2);
            for name in args.from(2) {
                match spec::find_by_full_name(name) {
                    Some((parent, found)) => describe(out, found, parent),
                    None => out.null(),
                }
            }
        }
        ("docs", 2) => document(out, &COMMANDS.iter().map(|c| (None, c)).collect::<Vec<_>>()),
        ("docs", _) => document(out, &args.from(2).filter_map(spec::find_by_full_name).collect::<Vec<_>>()),
        ("getkeys", _) => keys(out, args)?,
        ("list", _) => list(out, args)?,
        _ => help(
            out,
            "COMMAND",
            &[
                ("(no subcommand)", "Return details about all commands."),
                ("COUNT", "Return the total number of commands in this server."),
                ("LIST [FILTERBY (ACLCAT <cat>|PATTERN <pattern>)]", "Return a list of all commands."),
                ("INFO [<command-name> ...]", "Return details about multiple commands."),
                ("DOCS [<command-name> ...]", "Return documentation details about multiple commands."),
                ("GETKEYS <full-command>", "Return the keys from a full command."),
            ],
        ),
    }
    Ok(())
}

fn describe(out: &mut Writer<'_>, spec: &'static Spec, parent: Option<&'static Spec>) {
    out.array(10);
    out.bulk(full_name((parent, spec)).as_bytes());
    out.integer(spec.arity.into());
    let names: Vec<_> = flags::NAMES.iter().filter(|(bit, _)| spec.has(*bit)).collect();
    out.set(names.len());
    names.iter().for_each(|(_, name)| out.simple(name));
    let (first, last, step) = spec.keys;
    [first, last, step].iter().for_each(|n| out.integer((*n).into()));
    let categories: Vec<_> = spec.acl.split_whitespace().collect();
    out.set(categories.len());
    categories.iter().for_each(|name| out.simple(&format!("@{name}")));
    out.array(0);
    let has_keys = first > 0 || spec.has(flags::MOVABLE_KEYS);
    out.set(has_keys.into());
    if has_keys {
        key_spec(out, spec);
    }
    out.array(spec.subs.len());
    spec.subs.iter().for_each(|sub| describe(out, sub, Some(spec)));
}

fn key_spec(out: &mut Writer<'_>, spec: &Spec) {
    let (first, last, step) = spec.keys;
    let counted = spec.has(flags::MOVABLE_KEYS);
    out.map(3);
    out.bulk(b"flags");
    let kinds: &[&str] = if spec.may_write() { &["RW", "access", "update"] } else { &["RO", "access"] };
    out.set(kinds.len());
    kinds.iter().for_each(|kind| out.simple(kind));
    out.bulk(b"begin_search");
    out.map(2);
    out.bulk(b"type");
    out.bulk(b"index");
    out.bulk(b"spec");
    out.map(1);
    out.bulk(b"index");
    out.integer(if counted { 2 } else { first }.into());
    out.bulk(b"find_keys");
    out.map(2);
    out.bulk(b"type");
    if counted {
        out.bulk(b"keynum");
        out.bulk(b"spec");
        out.map(3);
        for (field, value) in [("keynumidx", 0), ("firstkey", 1), ("keystep", 1)] {
            out.bulk(field.as_bytes());
            out.integer(value);
        }
        return;
    }
    out.bulk(b"range");
    out.bulk(b"spec");
    out.map(3);
    out.bulk(b"lastkey");
    out.integer(if last < 0 { last } else { last - first }.into());
    out.bulk(b"keystep");
    out.integer(step.into());
    out.bulk(b"limit");
    out.integer(0);
}

fn document(out: &mut Writer<'_>, found: &[Found]) {
    out.map(found.len());
    for &(parent, spec) in found {
        out.bulk(full_name((parent, spec)).as_bytes());
        let group = parent.unwrap_or(spec).group;
        let mut fields = vec![("summary", spec.summary), ("since", spec.since), ("group", group)];
        fields.retain(|(_, value)| !value.is_empty());
        out.map(fields.len() + usize::from(!spec.subs.is_empty()));
        for (name, value) in fields {
            out.bulk(name.as_bytes());
            out.bulk(value.as_bytes());
        }
        if !spec.subs.is_empty() {
            out.bulk(b"subcommands");
            document(out, &spec.subs.iter().map(|sub| (Some(spec), sub)).collect::<Vec<_>>());
        }
    }
}

fn keys(out: &mut Writer<'_>, args: Args<'_>) -> Run {
    let inner: crate::resp::OwnedArgs = args.from(2).collect();
    let spec = match spec::resolve(inner.args()) {
        Ok(resolved) => resolved.spec,
        Err(_) if spec::find(args.get(2)).is_none() => return Err("ERR Invalid command specified".into()),
        Err(_) => return Err("ERR Invalid number of arguments specified for command".into()),
    };
    if spec.has(spec::flags::MOVABLE_KEYS) {
        let count = parse_i64(args.get(4)).and_then(|count| usize::try_from(count).ok());
        let count = count.filter(|count| *count <= args.len() - 5).unwrap_or(0);
        out.array(count);
        args.from(5).take(count).for_each(|key| out.bulk(key));
        return Ok(());
    }
    if spec.keys.0 == 0 {
        return Err("ERR The command has no key arguments".into());
    }
    let indexes: Vec<_> = spec.key_indexes(args.len() - 2).collect();
    out.array(indexes.len());
    indexes.iter().for_each(|i| out.bulk(args.get(i + 2)));
    Ok(())
}

fn list(out: &mut Writer<'_>, args: Args<'_>) -> Run {
    let kind = args.get(3);
    let value = args.get(4);
    let matches: Box<dyn Fn(Found) -> bool> = match args.len() {
        2 => Box::new(|_| true),
        5 if is(args.get(2), "filterby") && is(kind, "aclcat") => {
            Box::new(move |(_, spec)| spec.acl.split_whitespace().any(|name| is(value, name)))
        }
        5 if is(args.get(2), "filterby") && is(kind, "pattern") => {
            Box::new(move |found| glob_match(value, full_name(found).as_bytes(), true))
        }
        5 if is(args.get(2), "filterby") && is(kind, "module") => Box::new(|_| false),
        _ => return Err(SYNTAX.into()),
    };
    let names: Vec<_> = spec::all().filter(|found| matches(*found)).map(full_name).collect();
    out.array(names.len());
    names.iter().for_each(|name| out.bulk(name.as_bytes()));
    Ok(())
}

/// The reply of HELP: a headline, and the form and description of each subcommand.
pub(super) fn help(out: &mut Writer<'_>, command: &str, subcommands: &[(&str, &str)]) {
    out.array(1 + 2 * (subcommands.len() + 1));
    out.simple(&format!("{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for (form, what) in subcommands.iter().chain(&[("HELP", "Print this help.")]) {
        out.simple(form);
        out.simple(&format!("    {what}"));
    }
}
