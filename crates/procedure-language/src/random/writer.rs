//! Writes random procedures that the compiler accepts.

use rand::{RngExt, rngs::SmallRng, seq::IndexedRandom};

use crate::compile;

/// Writes a random procedure. Its text follows the grammar. The compiler checks the rules about paths.
struct Writer<'a> {
    rng: &'a mut SmallRng,
    read_only: bool,
    /// Variables that are visible, and whether they can be assigned.
    variables: Vec<(String, bool)>,
    declared: usize,
    depth: usize,
    out: String,
}

impl Writer<'_> {
    fn number(&mut self) -> String {
        let number = match self.rng.random_range(0..6) {
            0 => return "-9223372036854775808".to_owned(),
            1 => i64::MAX - self.rng.random_range(0..3),
            2 => self.rng.random::<i32>().into(),
            _ => self.rng.random_range(-3..100),
        };
        number.to_string()
    }

    fn integer(&mut self, depth: usize) -> String {
        if depth > 0 && self.rng.random_bool(0.6) {
            let operator = *["+", "-", "*", "/", "%", "+", "-"].choose(self.rng).unwrap();
            return format!("({} {operator} {})", self.integer(depth - 1), self.integer(depth - 1));
        }
        match self.rng.random_range(0..12) {
            0..2 => self.number(),
            2 => "length(t)".to_owned(),
            3 => "-small".to_owned(),
            4 => "integer(value)".to_owned(),
            5 => "length(value)".to_owned(),
            6 => "-n".to_owned(),
            7 => "small".to_owned(),
            _ => {
                let names: Vec<_> = self.variables.iter().map(|(name, _)| name.clone()).collect();
                names.choose(self.rng).cloned().unwrap_or_else(|| "n".to_owned())
            }
        }
    }

    fn condition(&mut self, depth: usize) -> String {
        match self.rng.random_range(0..8) {
            0 => "found".to_owned(),
            1 => "missing".to_owned(),
            2 if depth > 0 => format!("not ({})", self.condition(depth - 1)),
            3 if depth > 0 => format!("({} and {})", self.condition(depth - 1), self.condition(depth - 1)),
            4 if depth > 0 => format!("({} or {})", self.condition(depth - 1), self.condition(depth - 1)),
            _ => {
                let operator = *["==", "!=", "<", "<=", ">", ">="].choose(self.rng).unwrap();
                format!("{} {operator} {}", self.integer(1), self.integer(1))
            }
        }
    }

    fn key(&mut self) -> String {
        let parts = ["\"k\"", "t", "n", "small", "\":\"", "\"a longer text with some more bytes\""];
        let count = self.rng.random_range(1..4);
        let parts: Vec<_> = (0..count).map(|_| (*parts.choose(self.rng).unwrap()).to_owned()).collect();
        match self.rng.random_bool(0.2) {
            true => format!("[\"i\", {}]", self.integer(1)),
            false => format!("[{}]", parts.join(", ")),
        }
    }

    fn bytes(&mut self) -> String {
        match self.rng.random_range(0..5) {
            0 => "value".to_owned(),
            1 => "t".to_owned(),
            2 => "\"text\"".to_owned(),
            _ => self.integer(2),
        }
    }

    fn expiry(&mut self) -> String {
        match self.rng.random_range(0..6) {
            0 => format!(" expire at {}", self.integer(1)),
            1 => " expire at now + 60000".to_owned(),
            _ => String::new(),
        }
    }

    fn otherwise(&mut self) {
        match self.depth < 3 && self.rng.random_bool(0.4) {
            true => {
                self.out += " else";
                self.block();
            }
            false => self.out += " else NO \"it is not so\";\n",
        }
    }

    /// A block of random statements, of which each has to be valid where it stands.
    fn block(&mut self) {
        self.out += " {\n";
        self.depth += 1;
        let visible = self.variables.len();
        for _ in 0..self.rng.random_range(0..5) {
            self.statement();
        }
        if self.rng.random_bool(0.15) {
            self.outcome();
        }
        self.variables.truncate(visible);
        self.depth -= 1;
        self.out += "}\n";
    }

    fn outcome(&mut self) {
        let outcome = match self.rng.random_range(0..6) {
            0 => "reply ok".to_owned(),
            1 => "reply nil".to_owned(),
            2 => "refuse NO \"not this time\"".to_owned(),
            _ => format!("reply {}", self.bytes()),
        };
        self.out += &format!("{outcome};\n");
    }

    /// Writes one statement. It is taken back if the compiler refuses the program with it.
    fn statement(&mut self) {
        let (before, variables, declared) = (self.out.clone(), self.variables.clone(), self.declared);
        for _ in 0..6 {
            self.random_statement();
            if self.is_accepted() {
                return;
            }
            let has_block = self.out[before.len()..].contains('{');
            (self.out, self.variables, self.declared) = (before.clone(), variables.clone(), declared);
            // The statements of a block have been tried already.
            if has_block {
                return;
            }
        }
    }

    /// Whether the text so far is the beginning of a program.
    fn is_accepted(&self) -> bool {
        let program = self.procedure("p", &format!("{}{}", self.out, "}\n".repeat(self.depth)));
        let errors = compile(&program, "x").err().unwrap_or_default();
        // Blocks that are open are ended here, and statements may still follow.
        errors.iter().all(|error| matches!(error.rule.identifier(), "outcome" | "loop-once"))
    }

    fn procedure(&self, name: &str, body: &str) -> String {
        let kind = if self.read_only { "readonly procedure" } else { "procedure" };
        format!("{kind} {name}(t: text(1..40), n: integer, small: integer(1..10)) {{\n{body}}}\n")
    }

    fn random_statement(&mut self) {
        let name = format!("x{}", self.declared);
        let assignable: Vec<_> =
            self.variables.iter().filter(|(_, is)| *is).map(|(name, _)| name.clone()).collect();
        match self.rng.random_range(0..22) {
            0..3 => {
                let mutable = self.rng.random_bool(0.6);
                let value = self.integer(2);
                self.out += &format!("{} {name} = {value};\n", if mutable { "var" } else { "let" });
                self.variables.push((name, mutable));
                self.declared += 1;
            }
            3..6 if !assignable.is_empty() => {
                let value = self.integer(2);
                self.out += &format!("{} = {value};\n", assignable.choose(self.rng).unwrap());
            }
            6..10 => {
                let key = self.key();
                self.out += &format!("get {key}");
                match self.rng.random_bool(0.6) {
                    true => self.otherwise(),
                    false => self.out += ";\n",
                }
            }
            10..13 => {
                let (key, value, expiry) = (self.key(), self.bytes(), self.expiry());
                let keep = if expiry.is_empty() && self.rng.random_bool(0.3) { " keep expiry" } else { "" };
                self.out += &format!("set {key} = {value}{expiry}{keep};\n");
            }
            13 => {
                let kind = *["insert", "update"].choose(self.rng).unwrap();
                let (key, value, expiry) = (self.key(), self.bytes(), self.expiry());
                self.out += &format!("{kind} {key} = {value}{expiry}");
                self.otherwise();
            }
            14 => {
                let key = self.key();
                self.out += &format!("delete {key}");
                match self.rng.random_bool(0.5) {
                    true => self.otherwise(),
                    false => self.out += ";\n",
                }
            }
            15 => {
                let condition = self.condition(2);
                self.out += &format!("require {condition} else NO \"the condition does not hold\";\n");
            }
            16..19 if self.depth < 4 => {
                let condition = self.condition(2);
                self.out += &format!("if {condition}");
                self.block();
                while self.rng.random_bool(0.3) {
                    let condition = self.condition(1);
                    self.out += &format!("else if {condition}");
                    self.block();
                }
                if self.rng.random_bool(0.5) {
                    self.out += "else";
                    self.block();
                }
            }
            19.. if self.depth < 3 => {
                let range = match self.rng.random_range(0..4) {
                    0 => format!("1..{}", self.rng.random_range(1..60)),
                    1 => "small..small * 3".to_owned(),
                    2 => format!("n..{} up to {}", self.integer(1), self.rng.random_range(1..50)),
                    _ => "-2..small".to_owned(),
                };
                let visible = self.variables.len();
                self.out += &format!("for {name} in {range}");
                self.variables.push((name, false));
                self.declared += 1;
                self.block();
                self.variables.truncate(visible);
            }
            _ => {}
        }
    }
}

/// A procedure that the compiler accepts.
pub fn procedure(rng: &mut SmallRng, name: &str) -> String {
    loop {
        let read_only = rng.random_bool(0.2);
        let statements = rng.random_range(2..12);
        let mut writer =
            Writer { rng, read_only, variables: Vec::new(), declared: 0, depth: 0, out: String::new() };
        for _ in 0..statements {
            writer.statement();
        }
        writer.outcome();
        let program = writer.procedure(name, &writer.out);
        if compile(&program, "x").is_ok() {
            return program;
        }
    }
}
