//! ACL and its subcommands.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rand::Rng;

use super::Fail;
use super::acl::{self, Account, Change, Context, Denied, LogEntry, Request, User, category::Category};
use super::admin::prepared_admin_task;
use super::exec::{Ctx, NOT_INTEGER, Run, is};
use super::introspect::help;
use super::monitor;
use super::operators::Operators;
use super::request::{Core, Step};
use super::services::{AdminTask, Services};
use super::spec::{self, Resolved};
use crate::resp::{Args, OwnedArgs, parse_i64};

/// Most bits of ACL GENPASS.
const PASSWORD_BITS_MAX: i64 = 4096;

/// Entries that ACL LOG returns unless it is told a number.
const LOG_ENTRIES: usize = 10;

const NO_FILE: &str = "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER \
                       command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store \
                       users in the Redis configuration.";

const HELP: &[(&str, &str)] = &[
    ("CAT [<category>]", "List all command categories, or all commands of one."),
    ("DELUSER <username> [<username> ...]", "Delete users, and close their connections."),
    (
        "DRYRUN <username> <command> [<arg> ...]",
        "Return whether a user may run a command, without running it.",
    ),
    ("GENPASS [<bits>]", "Generate a password of 256 random bits, or of another number."),
    ("GETUSER <username>", "Return the rules of a user."),
    ("LIST", "Return all users with their rules, as lines of an ACL file."),
    ("LOAD", "Replace all users by those of the ACL file."),
    ("LOG [<count> | RESET]", "Return the newest refusals, or forget all of them."),
    ("SAVE", "Write all users to the ACL file."),
    ("SETUSER <username> <rule> [<rule> ...]", "Make a user, or change one."),
    ("USERS", "Return the names of all users."),
    ("WHOAMI", "Return the user of this connection."),
];

pub(super) fn run<S: Operators, V: Services>(
    core: &mut Core,
    ctx: &mut Ctx<'_, S, V>,
    resolved: Resolved,
    args: Args<'_>,
) -> Run<Step> {
    let server = Arc::clone(&core.server);
    let acl = &server.acl;
    match resolved.spec.name {
        "cat" => cat(ctx, args)?,
        "deluser" => {
            let (count, change) = acl.delete(&args.from(2).collect::<Vec<_>>())?;
            apply(core, ctx, change);
            ctx.out.integer(count);
        }
        "dryrun" => dry_run(core, ctx, args)?,
        "genpass" => generate_password(ctx, args)?,
        "getuser" => match acl.get(args.get(2)) {
            Some(account) => describe(ctx, &account.user()),
            None => ctx.out.null(),
        },
        "list" => {
            let lines = acl.lines();
            ctx.out.array(lines.len());
            lines.iter().for_each(|line| ctx.out.bulk(line));
        }
        "load" => {
            let file = server.settings.acl_file().ok_or(NO_FILE)?;
            let text = ctx.services.read_users_file().map_err(|error| format!("ERR {error}"))?;
            let loaded = acl.load(&text, &file.display().to_string(), server.settings.opens_channels());
            apply(core, ctx, loaded.map_err(|errors| format!("ERR {errors}"))?);
            ctx.out.ok();
        }
        "log" => log(core, ctx, args)?,
        "save" => {
            server.settings.acl_file().ok_or(NO_FILE)?;
            let task = |core: &Core| Ok(Some(AdminTask::WriteUsers(core.server.acl.text())));
            return prepared_admin_task(core, ctx, task, |ctx, _| ctx.out.ok());
        }
        "setuser" => {
            let change = acl.set_user(args.get(2), args.from(3), server.settings.opens_channels());
            apply(core, ctx, change.map_err(Fail::Reply)?);
            ctx.out.ok();
        }
        "users" => {
            let names = acl.names();
            ctx.out.array(names.len());
            names.iter().for_each(|name| ctx.out.bulk(name));
        }
        "whoami" => ctx.out.bulk(core.user.name()),
        _ => help(&mut ctx.out, "ACL", HELP),
    }
    Ok(Step::Done)
}

/// Lets a change take effect on connections. This one, if its user is deleted, is closed after the reply. Monitors whose users have lost the
/// right to MONITOR are closed; this one only ends to be a monitor.
fn apply<S: Operators, V: Services>(core: &Core, ctx: &Ctx<'_, S, V>, change: Change) {
    let clients = &core.server.clients;
    for client in clients.list() {
        if client.id == core.client.id {
            continue;
        }
        let is_removed = |account: &Arc<Account>| client.has_user(account);
        let user = client.text().user.clone().filter(|_| client.state.monitor.load(Relaxed));
        if change.removed.iter().any(is_removed) || user.is_some_and(|user| !may_monitor(&user)) {
            // It gets no further line, whenever it is closed.
            core.server.monitors.remove(client.id);
            clients.kill(client.id);
        }
    }
    if core.is_monitor() && !may_monitor(&core.user) {
        monitor::end(core);
        ctx.services.pauses_changed();
    }
    if change.restricts {
        ctx.services.rights_changed();
    }
}

/// Whether a user may see the commands of all clients.
pub(super) fn may_monitor(account: &Account) -> bool {
    let request: OwnedArgs = ["monitor"].into_iter().collect();
    spec::resolve(request.args()).is_ok_and(|resolved| account.check(resolved, request.args()).is_ok())
}

fn wrong_count(subcommand: &str) -> Fail {
    format!("ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try ACL HELP.").into()
}

fn cat<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    match args.len() {
        2 => {
            ctx.out.array(Category::all().len());
            Category::all().for_each(|category| ctx.out.bulk(category.name().as_bytes()));
        }
        3 => {
            let Some(category) = Category::find(args.get(2)) else {
                return Err(Fail::Reply([b"ERR Unknown category '", args.get(2), b"'"].concat()));
            };
            let of_it = || acl::commands::all().iter().filter(|entry| entry.categories.has(category));
            ctx.out.array(of_it().count());
            of_it().for_each(|entry| ctx.out.bulk(entry.full_name().as_bytes()));
        }
        _ => return Err(wrong_count(&String::from_utf8_lossy(args.get(1)))),
    }
    Ok(())
}

fn dry_run<S: Operators, V: Services>(core: &Core, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let name = args.get(2);
    let Some(account) = core.server.acl.get(name) else {
        return Err(Fail::Reply([b"ERR User '", name, b"' not found"].concat()));
    };
    let request: OwnedArgs = args.from(3).collect();
    let request = request.args();
    let resolved = spec::resolve(request).map_err(|error| match error.starts_with(b"ERR unknown") {
        true => Fail::Reply([b"ERR Command '", args.get(3), b"' not found"].concat()),
        false => Fail::Reply(error),
    })?;
    match account.user().check(&Request { resolved, args: request }) {
        Ok(()) => ctx.out.ok(),
        Err(Denied::Command) => {
            let name = resolved.full_name();
            ctx.out.bulk(format!("This user has no permissions to run the '{name}' command").as_bytes());
        }
        Err(Denied::Key(at)) => {
            let key = request.get(at);
            ctx.out.bulk(&[b"This user has no permissions to access the '", key, b"' key"].concat());
        }
    }
    Ok(())
}

fn generate_password<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let bits = match args.len() {
        2 => 256,
        3 => parse_i64(args.get(2)).ok_or(NOT_INTEGER)?,
        _ => return Err(wrong_count(&String::from_utf8_lossy(args.get(1)))),
    };
    if !(1..=PASSWORD_BITS_MAX).contains(&bits) {
        return Err(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a positive \
                    number up to 4096"
                .into(),
        );
    }
    let mut bytes = vec![0; (bits as usize).div_ceil(8)];
    // This generator is seeded by the operating system, and fit for secrets.
    rand::rng().fill_bytes(&mut bytes);
    let mut digits = hex::encode(bytes);
    digits.truncate((bits as usize).div_ceil(4));
    ctx.out.bulk(digits.as_bytes());
    Ok(())
}

fn describe<S: Operators, V: Services>(ctx: &mut Ctx<'_, S, V>, user: &User) {
    let out = &mut ctx.out;
    out.map(6);
    out.bulk(b"flags");
    let flags = user.flags();
    out.set(flags.len());
    flags.iter().for_each(|flag| out.bulk(flag.as_bytes()));
    out.bulk(b"passwords");
    out.array(user.passwords().len());
    user.passwords().for_each(|hash| out.bulk(hash.as_bytes()));
    let mut selectors = user.selectors();
    let rules = |out: &mut crate::resp::Writer<'_>, rules: [Vec<u8>; 3]| {
        for (name, rules) in ["commands", "keys", "channels"].iter().zip(rules) {
            out.bulk(name.as_bytes());
            out.bulk(&rules);
        }
    };
    if let Some(root) = selectors.next() {
        rules(out, root);
    }
    out.bulk(b"selectors");
    out.array(selectors.len());
    for selector in selectors {
        out.map(3);
        rules(out, selector);
    }
}

fn log<S: Operators, V: Services>(core: &Core, ctx: &mut Ctx<'_, S, V>, args: Args<'_>) -> Run {
    let acl = &core.server.acl;
    let count = match args.len() {
        2 => LOG_ENTRIES,
        3 if is(args.get(2), "reset") => {
            acl.clear_log();
            ctx.out.ok();
            return Ok(());
        }
        3 => usize::try_from(parse_i64(args.get(2)).ok_or(NOT_INTEGER)?).unwrap_or(0),
        _ => return Err(wrong_count(&String::from_utf8_lossy(args.get(1)))),
    };
    let entries = acl.newest_entries(count);
    ctx.out.array(entries.len());
    for entry in entries {
        ctx.out.map(7);
        ctx.out.bulk(b"count");
        ctx.out.integer(entry.count as i64);
        let fields: [(&str, &[u8]); 4] = [
            ("reason", entry.reason.as_bytes()),
            ("context", entry.context.name().as_bytes()),
            ("object", &entry.object),
            ("username", &entry.user),
        ];
        for (name, value) in fields {
            ctx.out.bulk(name.as_bytes());
            ctx.out.bulk(value);
        }
        ctx.out.bulk(b"age-seconds");
        ctx.out.double(ctx.now_ms.saturating_sub(entry.at_ms) as f64 / 1000.0);
        ctx.out.bulk(b"client-info");
        ctx.out.bulk(entry.client.as_bytes());
    }
    Ok(())
}

impl Core {
    /// Whether the client has to authenticate before it may do anything else.
    pub fn needs_authentication(&self) -> bool {
        !self.authenticated && !self.server.acl.default_user().is_open()
    }

    /// Lets the connection act for a user. It is no longer a monitor if the user may not be one; the event loop tells the kernel.
    pub fn become_user(&mut self, user: Arc<Account>, authenticated: bool) {
        self.client.text().user = Some(Arc::clone(&user));
        self.user = user;
        self.authenticated = authenticated;
        if self.is_monitor() && !may_monitor(&self.user) {
            monitor::end(self);
        }
    }

    /// Checks the rights of the connection's user for a request, and notes a refusal in the log. Every request of a client passes here: at
    /// its arrival, in EXEC, and when a script makes it.
    pub fn check_rights(
        &self,
        now_ms: u64,
        resolved: Resolved,
        args: Args<'_>,
        context: Context,
    ) -> Result<(), Denied> {
        let checked = self.user.check(resolved, args);
        if let Err(denied) = checked {
            let object = match denied {
                Denied::Command => resolved.full_name().into_bytes(),
                Denied::Key(at) => args.get(at).to_vec(),
            };
            self.note_refusal(now_ms, denied.reason(), context, object, self.user.name().to_vec());
        }
        checked
    }

    /// Adds an entry to ACL LOG.
    pub fn note_refusal(
        &self,
        now_ms: u64,
        reason: &'static str,
        context: Context,
        object: Vec<u8>,
        user: Vec<u8>,
    ) {
        let client = self.client.describe(now_ms);
        let entry = LogEntry { count: 1, reason, context, object, user, at_ms: now_ms, client };
        self.server.acl.note(entry, self.server.settings.acl_log_entries());
    }

    /// The context of a request that is not made by a script.
    pub fn context(&self) -> Context {
        if self.multi.is_some() || self.in_exec { Context::Multi } else { Context::TopLevel }
    }
}
