//! Runs the syntax tree of a procedure on a map: the meaning of a program, written without regard to speed. It knows nothing of the
//! checker's results, so it notices what the checker and the generator get wrong together.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use bedplate_kerneldb::Reply;

use crate::{
    interval::operate,
    syntax::{
        ArgumentKind, BinaryOperator, Block, Expiry, Expression, ExpressionKind, File, Key, Loop, Otherwise,
        Procedure, Refusal, Statement, StatementKind, Write, WriteKind,
    },
};

/// A value, and the Unix time in milliseconds at which its key expires.
pub type Row = (Vec<u8>, Option<u64>);

/// Keys of the database.
pub type Rows = BTreeMap<Vec<u8>, Row>;

/// The text of a refusal.
type Refused = String;

/// The continuation of a procedure after a statement.
enum Flow {
    Next,
    End(Reply),
}

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn text(refusal: &Refusal) -> Refused {
    format!("{} {}", refusal.code, String::from_utf8(refusal.text.clone()).unwrap())
}

fn integer(text: &[u8]) -> Result<i64, Refused> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
    let number = number.filter(|number| number.to_string().as_bytes() == text);
    number.ok_or_else(|| "ERR value is not an integer or out of range".to_owned())
}

/// A procedure that runs.
struct Call<'a> {
    rows: &'a mut Rows,
    numbers: BTreeMap<String, i64>,
    texts: BTreeMap<String, Vec<u8>>,
    value: Option<Vec<u8>>,
}

/// Calls a procedure. A refusal undoes its writes.
pub fn call(file: &File, name: &str, arguments: &[&[u8]], rows: &mut Rows) -> Result<Reply, Refused> {
    let procedure = file.procedures.iter().find(|procedure| procedure.name.text == name).unwrap();
    let before = rows.clone();
    let mut call = Call { rows, numbers: BTreeMap::new(), texts: BTreeMap::new(), value: None };
    let result = call.run(file, procedure, arguments);
    if result.is_err() {
        *rows = before;
    }
    result
}

impl Call<'_> {
    fn run(&mut self, file: &File, procedure: &Procedure, arguments: &[&[u8]]) -> Result<Reply, Refused> {
        for (name, value) in &file.constants {
            let number = self.number(value)?;
            self.numbers.insert(name.text.clone(), number);
        }
        if arguments.len() != procedure.arguments.len() {
            return Err("ERR wrong number of arguments for the procedure".to_owned());
        }
        for (argument, given) in procedure.arguments.iter().zip(arguments) {
            let name = &argument.name.text;
            let (fits, what) = match &argument.kind {
                ArgumentKind::Integer(range) => {
                    let number = integer(given)?;
                    self.numbers.insert(name.clone(), number);
                    match range {
                        None => (true, String::new()),
                        Some((first, last)) => {
                            let (first, last) = (self.number(first)?, self.number(last)?);
                            ((first..=last).contains(&number), format!("must be {first} to {last}"))
                        }
                    }
                }
                ArgumentKind::Text(least, most) => {
                    let least = least.as_ref().map_or(Ok(0), |least| self.number(least))?;
                    let most = self.number(most)?;
                    self.texts.insert(name.clone(), given.to_vec());
                    let fits = (least..=most).contains(&(given.len() as i64));
                    (fits, format!("must have {least} to {most} bytes"))
                }
            };
            if !fits {
                return Err(argument.refusal.as_ref().map_or_else(|| format!("ERR {name} {what}"), text));
            }
        }
        match self.block(&procedure.body)? {
            Flow::End(reply) => Ok(reply),
            Flow::Next => panic!("the procedure {} has no outcome", procedure.name.text),
        }
    }

    fn block(&mut self, block: &Block) -> Result<Flow, Refused> {
        for statement in &block.statements {
            if let end @ Flow::End(_) = self.statement(statement)? {
                return Ok(end);
            }
        }
        Ok(Flow::Next)
    }

    fn otherwise(&mut self, happens: bool, otherwise: Option<&Otherwise>) -> Result<Flow, Refused> {
        match otherwise {
            Some(Otherwise::Refuse(refusal)) if happens => Err(text(refusal)),
            Some(Otherwise::Run(block)) if happens => self.block(block),
            _ => Ok(Flow::Next),
        }
    }

    /// The row of a key that exists and has not expired.
    fn row(&self, key: &[u8]) -> Option<&Row> {
        self.rows.get(key).filter(|(_, expiry)| expiry.is_none_or(|expiry| expiry > now_ms()))
    }

    fn statement(&mut self, statement: &Statement) -> Result<Flow, Refused> {
        match &statement.kind {
            StatementKind::Declare { name, value, .. } => {
                if let Some(value) = value {
                    let number = self.number(value)?;
                    self.numbers.insert(name.text.clone(), number);
                }
            }
            StatementKind::Assign { name, value } => {
                let number = self.number(value)?;
                self.numbers.insert(name.text.clone(), number);
            }
            StatementKind::Get { key, otherwise } => {
                let key = self.key(key)?;
                self.value = self.row(&key).map(|(value, _)| value.clone());
                return self.otherwise(self.value.is_none(), otherwise.as_ref());
            }
            StatementKind::Write(write) => return self.write(write),
            StatementKind::Delete { key, otherwise } => {
                let key = self.key(key)?;
                let exists = self.row(&key).is_some();
                self.rows.remove(&key);
                return self.otherwise(!exists, otherwise.as_ref());
            }
            StatementKind::Require { condition, refusal } => {
                if !self.holds(condition)? {
                    return Err(text(refusal));
                }
            }
            StatementKind::If { branches, otherwise } => {
                for (condition, block) in branches {
                    if self.holds(condition)? {
                        return self.block(block);
                    }
                }
                return otherwise.as_ref().map_or(Ok(Flow::Next), |block| self.block(block));
            }
            StatementKind::For(rounds) => return self.rounds(rounds),
            StatementKind::Refuse(refusal) => return Err(text(refusal)),
            StatementKind::ReplyOk => return Ok(Flow::End(Reply::Ok)),
            StatementKind::ReplyNil => return Ok(Flow::End(Reply::Nil)),
            StatementKind::Reply(value) => {
                return Ok(Flow::End(match self.bytes(value) {
                    Some(bytes) => Reply::Value(bytes),
                    None => Reply::Integer(self.number(value)?),
                }));
            }
        }
        Ok(Flow::Next)
    }

    fn write(&mut self, write: &Write) -> Result<Flow, Refused> {
        let time = match &write.expiry {
            Expiry::At(time) => Some(self.number(time)?),
            Expiry::Never | Expiry::Keep => None,
        };
        if time.is_some_and(|time| time < 1) {
            return Err("ERR the time of an expiry is out of range".to_owned());
        }
        let key = self.key(&write.key)?;
        let value = match self.bytes(&write.value) {
            Some(bytes) => bytes,
            None => self.number(&write.value)?.to_string().into_bytes(),
        };
        let before = self.row(&key).cloned();
        let writes = match write.kind {
            WriteKind::Set => true,
            WriteKind::Insert => before.is_none(),
            WriteKind::Update => before.is_some(),
        };
        if writes {
            let expiry = match write.expiry {
                Expiry::Keep => before.and_then(|(_, expiry)| expiry),
                Expiry::Never | Expiry::At(_) => time.map(|time| time as u64),
            };
            self.rows.insert(key, (value, expiry));
        }
        self.otherwise(!writes, write.otherwise.as_ref())
    }

    fn rounds(&mut self, rounds: &Loop) -> Result<Flow, Refused> {
        let (first, last) = (self.number(&rounds.first)?, self.number(&rounds.last)?);
        if let Some(bound) = &rounds.bound {
            let bound = self.number(bound)?;
            if i128::from(last) - i128::from(first) >= bound.into() {
                let unit = if bound == 1 { "round" } else { "rounds" };
                return Err(format!("ERR a loop would have more than {bound} {unit}"));
            }
        }
        for number in first..=last {
            self.numbers.insert(rounds.variable.text.clone(), number);
            if let end @ Flow::End(_) = self.block(&rounds.body)? {
                return Ok(end);
            }
        }
        Ok(Flow::Next)
    }

    fn key(&self, key: &Key) -> Result<Vec<u8>, Refused> {
        let mut bytes = Vec::new();
        for part in &key.parts {
            match self.bytes(part) {
                Some(text) => bytes.extend(text),
                None => bytes.extend(self.number(part)?.to_be_bytes()),
            }
        }
        Ok(bytes)
    }

    /// The bytes of an expression that is no number.
    fn bytes(&self, expression: &Expression) -> Option<Vec<u8>> {
        match &expression.kind {
            ExpressionKind::Text(text) => Some(text.clone()),
            ExpressionKind::Name(name) => self.texts.get(name).cloned(),
            ExpressionKind::Value => Some(self.value.clone().expect("a value that was found")),
            _ => None,
        }
    }

    fn number(&self, expression: &Expression) -> Result<i64, Refused> {
        let value = || self.value.as_deref().expect("a value that was found");
        let result = |number: Option<i64>| {
            number.ok_or_else(|| "ERR the result of an operation is out of range".to_owned())
        };
        match &expression.kind {
            ExpressionKind::Number(number) => Ok(*number),
            ExpressionKind::Name(name) => Ok(self.numbers[name]),
            ExpressionKind::ValueInteger => integer(value()),
            ExpressionKind::ValueLength => Ok(value().len() as i64),
            ExpressionKind::Length(name) => Ok(self.texts[&name.text].len() as i64),
            ExpressionKind::Now => Ok(now_ms() as i64),
            ExpressionKind::Negate(inner) => result(self.number(inner)?.checked_neg()),
            ExpressionKind::Binary(operator, left, right) => {
                result(operate(*operator, self.number(left)?, self.number(right)?))
            }
            other => panic!("{other:?} is no number"),
        }
    }

    fn holds(&self, condition: &Expression) -> Result<bool, Refused> {
        Ok(match &condition.kind {
            ExpressionKind::Found => self.value.is_some(),
            ExpressionKind::Missing => self.value.is_none(),
            ExpressionKind::Not(inner) => !self.holds(inner)?,
            ExpressionKind::Binary(BinaryOperator::And, left, right) => {
                self.holds(left)? && self.holds(right)?
            }
            ExpressionKind::Binary(BinaryOperator::Or, left, right) => {
                self.holds(left)? || self.holds(right)?
            }
            ExpressionKind::Binary(BinaryOperator::Compare(operator), left, right) => {
                let (left, right) = (self.number(left)?, self.number(right)?);
                match *operator {
                    "==" => left == right,
                    "!=" => left != right,
                    "<" => left < right,
                    "<=" => left <= right,
                    ">" => left > right,
                    _ => left >= right,
                }
            }
            other => panic!("{other:?} is no condition"),
        })
    }
}
