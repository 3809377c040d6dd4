//! Parses tokens by recursive descent. After an error the parser goes on behind the statement, so that one run finds
//! several errors. Its recursion is bounded by [`NESTING_MAX`] and, in expressions,
//! by [`EXPRESSION_DEPTH_MAX`](crate::limits::EXPRESSION_DEPTH_MAX).

mod expressions;

use crate::{
    Rule,
    diagnostic::{Errors, Span},
    lexer::{Spanned, Token},
    limits::{ARGUMENTS_MAX, KEY_PARTS_MAX, NESTING_MAX, PROCEDURES_MAX},
    syntax::*,
};

/// Words that are no names. The words `up`, `to`, `keep`, `expiry`, `expire` and `at` are names where a name can be.
pub(crate) const WORDS: [&str; 29] = [
    "const",
    "readonly",
    "procedure",
    "integer",
    "text",
    "let",
    "var",
    "get",
    "set",
    "insert",
    "update",
    "delete",
    "require",
    "if",
    "else",
    "for",
    "in",
    "refuse",
    "reply",
    "ok",
    "nil",
    "value",
    "found",
    "missing",
    "length",
    "now",
    "and",
    "or",
    "not",
];

/// An error that has been reported already.
struct Reported;

type Parsed<T> = Result<T, Reported>;

pub(crate) fn parse(tokens: Vec<Spanned>, errors: &mut Errors) -> File {
    let mut parser = Parser { tokens, at: 0, errors, nesting: 0, depth: 0, nodes: 0 };
    let mut file = File::default();
    while parser.token() != &Token::End && !parser.errors.is_full() {
        let start = parser.at;
        if parser.item(&mut file).is_err() {
            parser.skip_to_item(start);
        }
    }
    file
}

struct Parser<'a> {
    tokens: Vec<Spanned>,
    at: usize,
    errors: &'a mut Errors,
    /// Blocks that are open.
    nesting: usize,
    /// Recursion within the expression.
    depth: usize,
    /// Operands and operators of the expression so far.
    nodes: usize,
}

impl Parser<'_> {
    fn token(&self) -> &Token {
        &self.tokens[self.at].token
    }

    fn span(&self) -> Span {
        self.tokens[self.at].span
    }

    /// The span from `start` to the last token that was taken.
    fn since(&self, start: Span) -> Span {
        start.to(self.tokens[self.at.saturating_sub(1)].span)
    }

    fn advance(&mut self) {
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
    }

    fn error<T>(&mut self, span: Span, rule: Rule, message: impl Into<String>) -> Parsed<T> {
        self.errors.add(span, rule, message);
        Err(Reported)
    }

    fn expected<T>(&mut self, what: &str) -> Parsed<T> {
        let found = match self.token() {
            Token::Name(word) | Token::Code(word) => format!("{word:?}"),
            Token::Number(number) => number.to_string(),
            Token::Text(_) => "a text".to_owned(),
            Token::Symbol(symbol) => format!("{symbol:?}"),
            Token::End => "the end of the file".to_owned(),
        };
        let span = self.span();
        self.error(span, Rule::Syntax, format!("{what} is expected instead of {found}"))
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.token(), Token::Symbol(found) if *found == symbol)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.token(), Token::Name(found) if found == word)
    }

    fn take(&mut self, is: bool) -> bool {
        if is {
            self.advance();
        }
        is
    }

    fn take_symbol(&mut self, symbol: &str) -> bool {
        self.take(self.is_symbol(symbol))
    }

    fn take_word(&mut self, word: &str) -> bool {
        self.take(self.is_word(word))
    }

    fn symbol(&mut self, symbol: &str) -> Parsed<()> {
        match self.take_symbol(symbol) {
            true => Ok(()),
            false => self.expected(&format!("{symbol:?}")),
        }
    }

    fn word(&mut self, word: &str) -> Parsed<()> {
        match self.take_word(word) {
            true => Ok(()),
            false => self.expected(&format!("{word:?}")),
        }
    }

    fn name(&mut self) -> Parsed<Name> {
        let span = self.span();
        match self.token() {
            Token::Name(text) if !WORDS.contains(&text.as_str()) => {
                let text = text.clone();
                self.advance();
                Ok(Name { text, span })
            }
            Token::Code(text) => {
                let message = format!("{text} has capital letters");
                self.error(span, Rule::Name, message)
            }
            _ => self.expected("a name"),
        }
    }

    /// Skips to the next constant or procedure. `start` is where the item with the error began.
    fn skip_to_item(&mut self, start: usize) {
        self.at = self.at.max(start + 1).min(self.tokens.len() - 1);
        while self.token() != &Token::End
            && !["const", "readonly", "procedure"].iter().any(|word| self.is_word(word))
        {
            self.advance();
        }
    }

    /// Skips the rest of a statement: behind the next semicolon or block, or to the brace that ends the block around.
    fn skip_statement(&mut self, start: usize) {
        if self.at == start && !self.is_symbol("}") && !self.is_symbol("{") {
            self.advance();
        }
        let mut open = 0usize;
        loop {
            match self.token() {
                Token::End => return,
                Token::Symbol("{") => open += 1,
                Token::Symbol("}") if open == 0 => return,
                Token::Symbol("}") => {
                    open -= 1;
                    if open == 0 {
                        self.advance();
                        return;
                    }
                }
                Token::Symbol(";") if open == 0 => {
                    self.advance();
                    return;
                }
                _ => {}
            }
            self.advance();
        }
    }

    fn item(&mut self, file: &mut File) -> Parsed<()> {
        if self.take_word("const") {
            let name = self.name()?;
            self.symbol("=")?;
            let value = self.expression()?;
            self.symbol(";")?;
            file.constants.push((name, value));
            return Ok(());
        }
        let read_only = self.take_word("readonly");
        if !self.take_word("procedure") {
            return self.expected("a procedure or a constant");
        }
        let procedure = self.procedure(read_only)?;
        if file.procedures.len() == PROCEDURES_MAX {
            let message = format!("a file has at most {PROCEDURES_MAX} procedures");
            return self.error(procedure.name.span, Rule::Limit, message);
        }
        file.procedures.push(procedure);
        Ok(())
    }

    fn procedure(&mut self, read_only: bool) -> Parsed<Procedure> {
        let name = self.name()?;
        self.symbol("(")?;
        let mut arguments = Vec::new();
        while !self.is_symbol(")") {
            let argument = self.argument()?;
            if arguments.len() == ARGUMENTS_MAX {
                let message = format!("a procedure has at most {ARGUMENTS_MAX} arguments");
                return self.error(argument.name.span, Rule::Limit, message);
            }
            arguments.push(argument);
            if !self.take_symbol(",") {
                break;
            }
        }
        self.symbol(")")?;
        self.nesting = 0;
        let body = self.block()?;
        Ok(Procedure { name, read_only, arguments, body })
    }

    fn argument(&mut self) -> Parsed<Argument> {
        let name = self.name()?;
        self.symbol(":")?;
        let kind = if self.take_word("integer") {
            let mut range = None;
            if self.take_symbol("(") {
                let first = self.expression()?;
                self.symbol("..")?;
                range = Some((first, self.expression()?));
                self.symbol(")")?;
            }
            ArgumentKind::Integer(range)
        } else if self.take_word("text") {
            self.symbol("(")?;
            let first = self.expression()?;
            let kind = match self.take_symbol("..") {
                true => ArgumentKind::Text(Some(first), self.expression()?),
                false => ArgumentKind::Text(None, first),
            };
            self.symbol(")")?;
            kind
        } else {
            return self.expected("\"integer\" or \"text\"");
        };
        let refusal = match self.take_word("else") {
            true => Some(self.refusal()?),
            false => None,
        };
        Ok(Argument { name, kind, refusal })
    }

    fn refusal(&mut self) -> Parsed<Refusal> {
        let start = self.span();
        let Token::Code(code) = self.token().clone() else {
            return self.expected("a code in capital letters");
        };
        self.advance();
        let Token::Text(text) = self.token().clone() else { return self.expected("a text") };
        self.advance();
        Ok(Refusal { code, text, span: self.since(start) })
    }

    fn block(&mut self) -> Parsed<Block> {
        let start = self.span();
        if self.nesting == NESTING_MAX {
            return self.error(
                start,
                Rule::Limit,
                format!("at most {NESTING_MAX} blocks are within each other"),
            );
        }
        self.symbol("{")?;
        self.nesting += 1;
        let mut statements = Vec::new();
        while !self.is_symbol("}") && self.token() != &Token::End && !self.errors.is_full() {
            let (start, nesting) = (self.at, self.nesting);
            match self.statement() {
                Ok(statement) => statements.push(statement),
                Err(Reported) => {
                    self.nesting = nesting;
                    self.skip_statement(start);
                }
            }
        }
        self.nesting -= 1;
        let end = self.span();
        self.symbol("}")?;
        Ok(Block { statements, end })
    }

    fn statement(&mut self) -> Parsed<Statement> {
        let start = self.span();
        let kind = self.statement_kind()?;
        Ok(Statement { span: self.since(start), kind })
    }

    fn statement_kind(&mut self) -> Parsed<StatementKind> {
        let word = match self.token() {
            Token::Name(word) => word.clone(),
            _ => return self.expected("a statement"),
        };
        if !WORDS.contains(&word.as_str()) {
            let name = self.name()?;
            self.symbol("=")?;
            let value = self.expression()?;
            self.symbol(";")?;
            return Ok(StatementKind::Assign { name, value });
        }
        let at = self.at;
        self.advance();
        let kind = match word.as_str() {
            "let" => {
                let name = self.name()?;
                self.symbol("=")?;
                StatementKind::Declare { name, mutable: false, value: Some(self.expression()?) }
            }
            "var" => {
                let name = self.name()?;
                let value = match self.take_symbol("=") {
                    true => Some(self.expression()?),
                    false => None,
                };
                StatementKind::Declare { name, mutable: true, value }
            }
            "get" => {
                let key = self.key()?;
                let otherwise = self.otherwise()?;
                return self.end(StatementKind::Get { key, otherwise });
            }
            "delete" => {
                let key = self.key()?;
                let otherwise = self.otherwise()?;
                return self.end(StatementKind::Delete { key, otherwise });
            }
            "set" => return self.write(WriteKind::Set),
            "insert" => return self.write(WriteKind::Insert),
            "update" => return self.write(WriteKind::Update),
            "require" => {
                let condition = self.expression()?;
                self.word("else")?;
                StatementKind::Require { condition, refusal: self.refusal()? }
            }
            "if" => return self.branches(),
            "for" => return self.rounds(),
            "refuse" => StatementKind::Refuse(self.refusal()?),
            "reply" if self.take_word("ok") => StatementKind::ReplyOk,
            "reply" if self.take_word("nil") => StatementKind::ReplyNil,
            "reply" => StatementKind::Reply(self.expression()?),
            _ => {
                self.at = at;
                return self.expected("a statement");
            }
        };
        self.symbol(";")?;
        Ok(kind)
    }

    /// The end of a statement: a semicolon, unless it has ended with a block.
    fn end(&mut self, kind: StatementKind) -> Parsed<StatementKind> {
        let block = match &kind {
            StatementKind::Get { otherwise, .. } | StatementKind::Delete { otherwise, .. } => {
                otherwise.as_ref()
            }
            StatementKind::Write(write) => write.otherwise.as_ref(),
            _ => None,
        };
        if !matches!(block, Some(Otherwise::Run(_))) {
            self.symbol(";")?;
        }
        Ok(kind)
    }

    fn otherwise(&mut self) -> Parsed<Option<Otherwise>> {
        if !self.take_word("else") {
            return Ok(None);
        }
        Ok(Some(match self.is_symbol("{") {
            true => Otherwise::Run(self.block()?),
            false => Otherwise::Refuse(self.refusal()?),
        }))
    }

    fn write(&mut self, kind: WriteKind) -> Parsed<StatementKind> {
        let key = self.key()?;
        self.symbol("=")?;
        let value = self.expression()?;
        let expiry = if self.is_word("keep") {
            let span = self.span();
            self.advance();
            self.word("expiry")?;
            if kind == WriteKind::Insert {
                return self.error(span, Rule::Syntax, "a key that insert makes has no expiry to keep");
            }
            Expiry::Keep
        } else if self.take_word("expire") {
            self.word("at")?;
            Expiry::At(self.expression()?)
        } else {
            Expiry::Never
        };
        let span = self.span();
        let otherwise = self.otherwise()?;
        match (kind, &otherwise) {
            (WriteKind::Set, Some(_)) => {
                self.error(span, Rule::Syntax, "a set has no else: it always writes")
            }
            (WriteKind::Insert | WriteKind::Update, None) => self.expected("\"else\""),
            _ => self.end(StatementKind::Write(Write { kind, key, value, expiry, otherwise })),
        }
    }

    fn branches(&mut self) -> Parsed<StatementKind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.expression()?;
            branches.push((condition, self.block()?));
            if !self.take_word("else") {
                return Ok(StatementKind::If { branches, otherwise: None });
            }
            if !self.take_word("if") {
                let otherwise = Some(self.block()?);
                return Ok(StatementKind::If { branches, otherwise });
            }
        }
    }

    fn rounds(&mut self) -> Parsed<StatementKind> {
        let variable = self.name()?;
        self.word("in")?;
        let first = self.expression()?;
        self.symbol("..")?;
        let last = self.expression()?;
        let bound = match self.take_word("up") {
            true => {
                self.word("to")?;
                Some(self.expression()?)
            }
            false => None,
        };
        let body = self.block()?;
        Ok(StatementKind::For(Loop { variable, first, last, bound, body }))
    }

    fn key(&mut self) -> Parsed<Key> {
        let start = self.span();
        self.symbol("[")?;
        let mut parts = vec![self.expression()?];
        while self.take_symbol(",") {
            parts.push(self.expression()?);
        }
        self.symbol("]")?;
        let span = self.since(start);
        if parts.len() > KEY_PARTS_MAX {
            return self.error(span, Rule::Limit, format!("a key has at most {KEY_PARTS_MAX} parts"));
        }
        Ok(Key { parts, span })
    }
}
