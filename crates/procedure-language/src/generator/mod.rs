//! Writes C for a program that has been checked.
//!
//! Every line of C that belongs to a statement is preceded by a line directive, unless it continues the line before. The macros
//! in front are those that the program uses.
//!
//! The kernel's verifier follows every path, and merges two paths only if it knows the same about each number on both. So numbers
//! that differ from path to path are hidden from it (`HIDDEN`): variables that change, variables of loops, and the operands of
//! conditions after which more than one branch goes on.

mod prelude;
mod text;

use std::fmt::Write as _;

use self::prelude::Helper;
use self::text::{literal, number};
use crate::{
    diagnostic::{Lines, Span},
    interval::Interval,
    limits::VALUE_BYTES_MAX,
    program::*,
    syntax::{BinaryOperator, WriteKind},
};

/// Writes the program as C. `file` is the name of the source.
pub(crate) fn generate(program: &Program, source: &str, file: &str) -> String {
    let mut generator = Generator {
        lines: Lines::new(source),
        file: format!(" {}", literal(file.as_bytes())),
        out: String::new(),
        next_line: None,
        indent: 0,
        helpers: [false; Helper::ALL.len()],
        locals: 0,
        uses_found: false,
    };
    for procedure in &program.procedures {
        generator.procedure(procedure);
    }
    let mut out = prelude::beginning(file);
    for helper in Helper::ALL.into_iter().filter(|helper| generator.helpers[*helper as usize]) {
        out += "\n";
        out += helper.text();
    }
    out + &generator.out
}

struct Generator {
    lines: Lines,
    /// The source's name as a literal of C, after a blank.
    file: String,
    out: String,
    /// The line of the source to which the C compiler attributes the next line.
    next_line: Option<usize>,
    indent: usize,
    helpers: [bool; Helper::ALL.len()],
    /// Loops and times so far, which number the variables that the compiler adds.
    locals: usize,
    /// Whether a condition of the procedure asks what a get has found.
    uses_found: bool,
}

impl Generator {
    fn use_helper(&mut self, helper: Helper) {
        for needed in helper.needs() {
            self.use_helper(*needed);
        }
        self.helpers[helper as usize] = true;
    }

    /// Writes a line of C for a place in the source.
    fn line(&mut self, span: Span, text: &str) {
        let line = self.lines.line(span.start);
        if self.next_line != Some(line) {
            // The name holds until another one is stated.
            let file = if self.out.contains("#line") { "" } else { self.file.as_str() };
            let _ = writeln!(self.out, "#line {line}{file}");
        }
        self.next_line = Some(line + 1);
        let indent = if text.is_empty() { 0 } else { self.indent };
        let _ = writeln!(self.out, "{}{text}", "\t".repeat(indent));
    }

    fn procedure(&mut self, procedure: &Procedure) {
        self.uses_found = procedure.uses_found;
        self.locals = 0;
        let kind = if procedure.read_only { "KDB_READ_ONLY_PROCEDURE" } else { "KDB_PROCEDURE" };
        let span = procedure.span;
        self.out += "\n";
        self.next_line = None;
        self.line(span, &format!("{kind}({})", procedure.name));
        self.line(span, "{");
        self.indent = 1;
        if procedure.uses_found {
            self.line(span, "int found;");
        }
        self.line(span, &format!("KDB_TRY(kdb_expect(p, {}));", procedure.arguments.len()));
        for (index, argument) in procedure.arguments.iter().enumerate() {
            self.argument(index, argument);
        }
        self.statements(&procedure.body);
        self.indent = 0;
        let end = procedure.body.last().map_or(span, |statement| statement.span);
        self.line(end, "}");
    }

    /// Checks an argument, and parses it once.
    fn argument(&mut self, index: usize, argument: &Argument) {
        let span = argument.span;
        let (name, what, range) = match argument.kind {
            ArgumentKind::Integer(range) => {
                let name = format!("v_{}", argument.name);
                self.line(
                    span,
                    &format!("__s64 {name}; KDB_TRY(kdb_argument_integer(p, {index}, &{name}));"),
                );
                (name, Interval::ALL, range)
            }
            ArgumentKind::Text(lengths) => {
                let all = Interval { low: 0, high: VALUE_BYTES_MAX as i64 };
                (format!("p->call->argument[{index}].len"), all, lengths)
            }
        };
        let low = (range.low > what.low).then(|| format!("{name} < {}", number(range.low)));
        let high = (range.high < what.high).then(|| format!("{name} > {}", number(range.high)));
        let checks: Vec<String> = low.into_iter().chain(high).collect();
        if !checks.is_empty() {
            self.refuse_if(span, &format!("({})", checks.join(" || ")), &argument.refusal);
        }
    }

    /// Writes a refusal under a condition in parentheses. It is on the condition's line, because a line directive would have to
    /// stand between them.
    fn refuse_if(&mut self, span: Span, condition: &str, refusal: &[u8]) {
        self.line(span, &format!("if {condition} return kdb_refuse(p, {});", literal(refusal)));
    }

    fn statements(&mut self, statements: &[Statement]) {
        for statement in statements {
            self.statement(statement);
        }
    }

    /// Writes a block after `head`; the brace that ends it stays open.
    fn open(&mut self, span: Span, head: &str, statements: &[Statement]) {
        self.line(span, &format!("{head} {{"));
        self.indent += 1;
        self.statements(statements);
        self.indent -= 1;
    }

    /// The place of a block's last statement.
    fn last(span: Span, statements: &[Statement]) -> Span {
        statements.last().map_or(span, |statement| statement.span)
    }

    fn block(&mut self, span: Span, head: &str, statements: &[Statement]) {
        self.open(span, head, statements);
        self.line(Self::last(span, statements), "}");
    }

    fn statement(&mut self, statement: &Statement) {
        let span = statement.span;
        match &statement.kind {
            StatementKind::Declare { variable, mutable, value } => {
                let name = &variable.name;
                match value {
                    None => self.line(span, &format!("__s64 v_{name};")),
                    Some(Integer::Value) if !mutable => {
                        self.line(
                            span,
                            &format!("__s64 v_{name}; KDB_TRY(kdb_value_integer(p, &v_{name}));"),
                        );
                    }
                    Some(value) => {
                        let value = if *mutable { self.hidden(value) } else { self.integer(value) };
                        self.line(span, &format!("__s64 v_{name} = {value};"));
                    }
                }
            }
            StatementKind::Assign(variable, value) => {
                let value = self.hidden(value);
                self.line(span, &format!("v_{} = {value};", variable.name));
            }
            StatementKind::Get { key, otherwise } => self.get(span, key, otherwise.as_ref()),
            StatementKind::Write { kind, key, value, expiry, otherwise } => {
                let expiry_time = self.expiry(span, expiry);
                self.key(span, key);
                let call = self.value(span, *kind, value, expiry, &expiry_time);
                let absent = if *kind == WriteKind::Insert { "KDB_MISMATCH" } else { "KDB_NOT_FOUND" };
                self.operator(span, &call, absent, otherwise.as_ref());
            }
            StatementKind::Delete { key, otherwise } => {
                self.key(span, key);
                self.operator(span, "KDB_TRY(kdb_delete(p))", "KDB_NOT_FOUND", otherwise.as_ref());
            }
            StatementKind::Require(condition, refusal) => {
                let condition = self.condition(condition, false);
                self.refuse_if(span, &format!("(!{condition})"), refusal);
            }
            StatementKind::If { branches, otherwise, forks } => {
                self.branches(span, branches, otherwise.as_deref(), *forks);
            }
            StatementKind::For(rounds) => self.rounds(span, rounds),
            StatementKind::Refuse(refusal) => {
                self.line(span, &format!("return kdb_refuse(p, {});", literal(refusal)));
            }
            StatementKind::ReplyOk => self.line(span, "return KDB_OK;"),
            StatementKind::ReplyNil => self.line(span, "return kdb_reply_nil(p);"),
            StatementKind::Reply(value) => {
                let reply = match value {
                    Bytes::Integer(value) => format!("kdb_reply_integer(p, {})", self.integer(value)),
                    Bytes::Value => "kdb_reply_value(p)".to_owned(),
                    Bytes::Argument(argument) => {
                        self.line(span, &format!("KDB_TRY(kdb_value_argument(p, {}));", argument.index));
                        "kdb_reply_value(p)".to_owned()
                    }
                    Bytes::Text(text) => {
                        self.line(span, &format!("kdb_value(p, {});", literal(text)));
                        "kdb_reply_value(p)".to_owned()
                    }
                };
                self.line(span, &format!("return {reply};"));
            }
        }
    }

    /// Runs an operator, and what follows if its status is `status`.
    fn operator(&mut self, span: Span, call: &str, status: &str, otherwise: Option<&Otherwise>) {
        match otherwise {
            None => self.line(span, &format!("{call};")),
            Some(otherwise) => self.otherwise(span, &format!("({call} == {status})"), otherwise),
        }
    }

    fn otherwise(&mut self, span: Span, condition: &str, otherwise: &Otherwise) {
        match otherwise {
            Otherwise::Refuse(refusal) => self.refuse_if(span, condition, refusal),
            Otherwise::Run(block) => self.block(span, &format!("if {condition}"), block),
        }
    }

    fn get(&mut self, span: Span, key: &Key, otherwise: Option<&Otherwise>) {
        self.key(span, key);
        let call = "KDB_TRY(kdb_read(p))";
        if !self.uses_found {
            return self.operator(span, call, "KDB_NOT_FOUND", otherwise);
        }
        self.line(span, &format!("found = {call} == KDB_OK;"));
        if let Some(otherwise) = otherwise {
            self.otherwise(span, "(!found)", otherwise);
        }
    }

    /// Sets the key, unless the call has it already.
    fn key(&mut self, span: Span, key: &Key) {
        if key.is_set {
            return;
        }
        let mut steps = Vec::new();
        for (index, part) in key.parts.iter().enumerate() {
            let is_first = index == 0;
            steps.push(match part {
                KeyPart::Text(text) if is_first => format!("kdb_key(p, {});", literal(text)),
                KeyPart::Text(text) => {
                    self.use_helper(Helper::KeyText);
                    // Unaligned copies are made byte by byte, and the compiler unrolls 128 of them at most.
                    let chunks = text.chunks(64).map(|chunk| format!("KEY_TEXT({});", literal(chunk)));
                    chunks.collect::<Vec<_>>().join(" ")
                }
                KeyPart::Argument(argument) => {
                    let function = if is_first { "kdb_key_argument" } else { "kdb_key_append" };
                    format!("KDB_TRY({function}(p, {}));", argument.index)
                }
                KeyPart::Integer(value) => {
                    let begin = if is_first { "p->io->klen = 0; " } else { "" };
                    format!("{begin}KDB_TRY(kdb_key_append_integer(p, {}));", self.integer(value))
                }
            });
        }
        self.line(span, &steps.join(" "));
    }

    /// The time at which a key expires, checked before anything is written.
    fn expiry(&mut self, span: Span, expiry: &Expiry) -> String {
        match expiry {
            Expiry::Never | Expiry::Keep => "0".to_owned(),
            Expiry::At(Integer::Constant(time), false) => number(*time),
            Expiry::At(time, can_fail) => {
                let mut time = self.integer(time);
                if *can_fail {
                    self.use_helper(Helper::ExpiryTime);
                    time = format!("EXPIRY_TIME({time})");
                }
                let name = format!("expiry_{}", self.locals);
                self.locals += 1;
                self.line(span, &format!("__s64 {name} = {time};"));
                name
            }
        }
    }

    /// Sets the value that is to be written; returns the call that writes it.
    fn value(&mut self, span: Span, kind: WriteKind, value: &Bytes, expiry: &Expiry, time: &str) -> String {
        let mut flags = match kind {
            WriteKind::Set => Vec::new(),
            WriteKind::Insert => vec!["KDB_IO_IF_ABSENT"],
            WriteKind::Update => vec!["KDB_IO_IF_PRESENT"],
        };
        if matches!(expiry, Expiry::Keep) {
            flags.push("KDB_IO_KEEP_TTL");
        }
        match value {
            Bytes::Integer(Integer::Constant(constant)) => {
                self.line(span, &format!("kdb_value(p, \"{constant}\");"));
            }
            // The text of an integer argument is the number's only text.
            Bytes::Integer(Integer::Argument(argument)) | Bytes::Argument(argument) => {
                self.line(span, &format!("KDB_TRY(kdb_value_argument(p, {}));", argument.index));
            }
            Bytes::Integer(value) => {
                let value = self.integer(value);
                if flags == ["KDB_IO_KEEP_TTL"] {
                    return format!("KDB_TRY(kdb_write_integer(p, {value}))");
                }
                self.line(span, &format!("kdb_value_format(p->io, {value});"));
            }
            Bytes::Text(text) => self.line(span, &format!("kdb_value(p, {});", literal(text))),
            Bytes::Value => {}
        }
        if flags.is_empty() && time == "0" {
            return "KDB_TRY(kdb_write(p))".to_owned();
        }
        let flags = if flags.is_empty() { "0".to_owned() } else { flags.join(" | ") };
        format!("KDB_TRY(kdb_write_with(p, {flags}, {time}))")
    }

    fn branches(
        &mut self,
        span: Span,
        branches: &[(Condition, Vec<Statement>)],
        otherwise: Option<&[Statement]>,
        forks: bool,
    ) {
        let mut end = span;
        for (index, (condition, statements)) in branches.iter().enumerate() {
            let condition = self.head(condition, forks);
            let head = if index == 0 { "if" } else { "} else if" };
            self.open(end, &format!("{head} {condition}"), statements);
            end = Self::last(end, statements);
        }
        match otherwise {
            Some(statements) => self.block(end, "} else", statements),
            None => self.line(end, "}"),
        }
    }

    fn rounds(&mut self, span: Span, rounds: &Loop) {
        let index = self.locals;
        self.locals += 1;
        let Loop { variable, first, last, rounds: most, can_exceed, is_constant, body } = rounds;
        let round = format!("round_{index}");
        let mut start = self.integer(first);
        if !is_constant {
            // The round in which the loop ends tells the verifier what its ends were, and so how long the next one runs.
            let [first, last] = [first, last].map(|end| match end {
                Integer::Constant(constant) => number(*constant),
                end => self.hidden(end),
            });
            start = format!("first_{index}");
            self.line(span, &format!("__s64 {start} = {first}, last_{index} = {last};"));
            let count = format!("__u64 rounds_{index} = last_{index} < {start} ? 0");
            // The count of the longest possible loop does not fit, but then one less exceeds the bound as well.
            let distance = format!("(__u64)last_{index} - (__u64){start}");
            if *can_exceed {
                let unit = if *most == 1 { "round" } else { "rounds" };
                let refusal = format!("ERR a loop would have more than {most} {unit}");
                let condition = format!("(last_{index} >= {start} && {distance} >= {most})");
                self.refuse_if(span, &condition, refusal.as_bytes());
            }
            self.line(span, &format!("{count} : {distance} + 1;"));
        }
        self.line(span, &format!("for (__u32 {round} = 0; {round} < {most}; {round}++) {{"));
        self.indent += 1;
        if !is_constant {
            self.line(span, &format!("if ({round} >= rounds_{index}) break;"));
        }
        self.use_helper(Helper::Hidden);
        self.line(span, &format!("__s64 v_{} = HIDDEN((__u64){start} + {round});", variable.name));
        self.statements(body);
        self.indent -= 1;
        self.line(Self::last(span, body), "}");
    }

    /// A number of which the verifier knows nothing.
    fn hidden(&mut self, value: &Integer) -> String {
        self.use_helper(Helper::Hidden);
        format!("HIDDEN({})", self.integer(value))
    }

    fn integer(&mut self, integer: &Integer) -> String {
        match integer {
            Integer::Constant(constant) => number(*constant),
            Integer::Variable(variable) => format!("v_{}", variable.name),
            Integer::Argument(argument) => format!("v_{}", argument.name),
            Integer::ArgumentLength(argument) => format!("(__s64)p->call->argument[{}].len", argument.index),
            Integer::ValueLength => "(__s64)p->io->vlen".to_owned(),
            Integer::Now => "(__s64)kdb_now_ms()".to_owned(),
            Integer::Value => {
                self.use_helper(Helper::ValueInteger);
                "VALUE_INTEGER()".to_owned()
            }
            Integer::Binary { operator, left, right, can_fail } => {
                let (left, right) = (self.integer(left), self.integer(right));
                let (plain, helper, name) = match operator {
                    BinaryOperator::Add => (format!("({left} + {right})"), Helper::Add, "ADD"),
                    BinaryOperator::Subtract => (format!("({left} - {right})"), Helper::Subtract, "SUBTRACT"),
                    BinaryOperator::Multiply => (format!("({left} * {right})"), Helper::Multiply, "MULTIPLY"),
                    BinaryOperator::Divide => {
                        (format!("kdb_divide({left}, {right})"), Helper::Divide, "DIVIDE")
                    }
                    _ => (format!("kdb_remainder({left}, {right})"), Helper::Remainder, "REMAINDER"),
                };
                if !can_fail {
                    return plain;
                }
                self.use_helper(helper);
                format!("{name}({left}, {right})")
            }
        }
    }

    /// A condition in parentheses.
    fn head(&mut self, condition: &Condition, hide: bool) -> String {
        let text = self.condition(condition, hide);
        // The C compiler takes two pairs around a comparison for a mistake.
        if text.starts_with('(') { text } else { format!("({text})") }
    }

    /// A condition: an operand of `!` and `&&`. `hide` keeps the verifier from learning from it.
    fn condition(&mut self, condition: &Condition, hide: bool) -> String {
        match condition {
            Condition::Found => "found".to_owned(),
            Condition::Missing => "!found".to_owned(),
            Condition::Not(inner) => format!("!{}", self.condition(inner, hide)),
            Condition::And(left, right) => {
                format!("({} && {})", self.condition(left, hide), self.condition(right, hide))
            }
            Condition::Or(left, right) => {
                format!("({} || {})", self.condition(left, hide), self.condition(right, hide))
            }
            Condition::Compare(operator, left, right) => {
                let is_constant = |integer: &Integer| matches!(integer, Integer::Constant(_));
                let sides = [(left, hide), (right, hide && is_constant(left))].map(|(side, hide)| {
                    match hide && !is_constant(side) {
                        true => self.hidden(side),
                        false => self.integer(side),
                    }
                });
                format!("({} {operator} {})", sides[0], sides[1])
            }
        }
    }
}
