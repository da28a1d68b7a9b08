//! From text to operations: a recursive descent that writes them down as it goes.

use super::evaluate::{Binary, Comparison, Op, Unary};
use crate::dataset::{Field, Schema, TextField, parse_date, parse_datetime, trim_blanks};

/// The deepest nesting of brackets and signs, so that no text exhausts the stack.
const NESTING_MAX: usize = 100;

/// What is wrong, and at which byte.
pub(super) struct Mistake {
    pub at: usize,
    pub reason: String,
}

type Parsed<T> = Result<T, Mistake>;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(f64),
    Text(String),
    /// A word between backquotes.
    Quoted(String),
    Word(String),
    Sign(&'static str),
    End,
}

const SIGNS: [&str; 17] =
    ["==", "!=", "<>", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "%", "^", "(", ")", ","];

/// The token at the start of `text` after blanks, where it starts and how long both are.
fn token(text: &str, at: usize) -> Parsed<(Token, usize, usize)> {
    let rest = text[at..].trim_start();
    let start = text.len() - rest.len();
    let Some(first) = rest.chars().next() else { return Ok((Token::End, start, start)) };
    if first.is_ascii_digit() || first == '.' {
        let length = number_length(rest);
        let number = rest[..length].parse().map_err(|_| Mistake {
            at: start,
            reason: format!("\"{}\" is not a number", &rest[..length]),
        })?;
        return Ok((Token::Number(number), start, start + length));
    }
    if first == '"' || first == '`' {
        let Some(length) = rest[1..].find(first) else {
            return Err(Mistake { at: start, reason: format!("{first} without its other half") });
        };
        let inner = rest[1..=length].to_owned();
        let token = if first == '"' { Token::Text(inner) } else { Token::Quoted(inner) };
        return Ok((token, start, start + length + 2));
    }
    let length =
        rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).unwrap_or(rest.len());
    if length > 0 {
        return Ok((Token::Word(rest[..length].to_owned()), start, start + length));
    }
    match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
        Some(sign) => Ok((Token::Sign(sign), start, start + sign.len())),
        None => {
            Err(Mistake { at: start, reason: format!("\"{first}\" is not part of the language") })
        }
    }
}

/// Bytes of the number that `text` starts with.
fn number_length(text: &str) -> usize {
    let mut last = ' ';
    text.find(|c: char| {
        let exponent = matches!(last, 'e' | 'E') && matches!(c, '+' | '-');
        last = c;
        !(c.is_ascii_alphanumeric() || c == '.' || exponent)
    })
    .unwrap_or(text.len())
}

/// What a part of the expression is.
enum Part {
    /// A number: its operations are written.
    Number,
    /// A text column: nothing is written yet.
    Column(TextField),
    /// A text.
    Text(String),
}

struct Parser<'a> {
    text: &'a str,
    schema: &'a Schema,
    given: &'a [String],
    next: Token,
    /// Where `next` starts and ends.
    at: usize,
    end: usize,
    ops: Vec<Op>,
    depth: usize,
    depth_max: usize,
    nesting: usize,
}

/// The operations of `text` and how deep their stack gets.
pub(super) fn parse(text: &str, schema: &Schema, given: &[String]) -> Parsed<(Vec<Op>, usize)> {
    let (next, at, end) = token(text, 0)?;
    let (ops, depth, depth_max, nesting) = (Vec::new(), 0, 0, 0);
    let mut parser = Parser { text, schema, given, next, at, end, ops, depth, depth_max, nesting };
    parser.number()?;
    match parser.next {
        Token::End => Ok((parser.ops, parser.depth_max)),
        _ => Err(parser.mistake("an operator is missing before this")),
    }
}

impl Parser<'_> {
    fn mistake(&self, reason: impl Into<String>) -> Mistake {
        Mistake { at: self.at, reason: reason.into() }
    }

    fn take(&mut self) -> Parsed<Token> {
        let (next, at, end) = token(self.text, self.end)?;
        (self.at, self.end) = (at, end);
        Ok(std::mem::replace(&mut self.next, next))
    }

    /// Takes `sign` if it comes next.
    fn taken(&mut self, sign: &str) -> Parsed<bool> {
        let fits = matches!(self.next, Token::Sign(next) if next == sign);
        if fits {
            self.take()?;
        }
        Ok(fits)
    }

    fn require(&mut self, sign: &str) -> Parsed<()> {
        if self.taken(sign)? {
            Ok(())
        } else {
            Err(self.mistake(format!("\"{sign}\" is missing here")))
        }
    }

    fn word(&mut self, word: &str) -> Parsed<bool> {
        let fits = matches!(&self.next, Token::Word(next) if next == word);
        if fits {
            self.take()?;
        }
        Ok(fits)
    }

    fn push(&mut self, op: Op) {
        self.depth = match op {
            Op::Unary(_) | Op::In(_) => self.depth,
            Op::Binary(_) => self.depth - 1,
            Op::If => self.depth - 2,
            _ => self.depth + 1,
        };
        self.depth_max = self.depth_max.max(self.depth);
        self.ops.push(op);
    }

    fn binary(&mut self, binary: Binary) {
        self.push(Op::Binary(binary));
    }

    /// A whole expression that must be a number.
    fn number(&mut self) -> Parsed<()> {
        let at = self.at;
        let part = self.disjunction()?;
        Self::demand_number(&part, at)
    }

    fn demand_number(part: &Part, at: usize) -> Parsed<()> {
        match part {
            Part::Number => Ok(()),
            Part::Column(_) | Part::Text(_) => {
                Err(Mistake { at, reason: "is a text where a number is needed".to_owned() })
            }
        }
    }

    /// `part (sign part)*` with all parts numbers, unless there is only one.
    fn chain(
        &mut self,
        inner: fn(&mut Self) -> Parsed<Part>,
        operator: fn(&Token) -> Option<Binary>,
    ) -> Parsed<Part> {
        let at = self.at;
        let first = inner(self)?;
        while let Some(binary) = operator(&self.next) {
            Self::demand_number(&first, at)?;
            self.take()?;
            let at = self.at;
            let second = inner(self)?;
            Self::demand_number(&second, at)?;
            self.binary(binary);
        }
        Ok(first)
    }

    fn disjunction(&mut self) -> Parsed<Part> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            return Err(self.mistake(format!("nested more than {NESTING_MAX} deep")));
        }
        let part = self.chain(Self::conjunction, |token| match token {
            Token::Word(word) if word == "or" => Some(Binary::Or),
            _ => None,
        });
        self.nesting -= 1;
        part
    }

    fn conjunction(&mut self) -> Parsed<Part> {
        self.chain(Self::negation, |token| match token {
            Token::Word(word) if word == "and" => Some(Binary::And),
            _ => None,
        })
    }

    fn negation(&mut self) -> Parsed<Part> {
        let mut count = 0;
        while self.word("not")? {
            count += 1;
        }
        let at = self.at;
        let part = self.comparison()?;
        if count > 0 {
            Self::demand_number(&part, at)?;
            (0..count).for_each(|_| self.push(Op::Unary(Unary::Not)));
        }
        Ok(part)
    }

    fn comparison(&mut self) -> Parsed<Part> {
        let left = self.sum()?;
        if self.word("in")? {
            self.among(&left)?;
            return Ok(Part::Number);
        }
        let Some(comparison) = comparison(&self.next) else { return Ok(left) };
        let at = self.at;
        self.take()?;
        let right = self.sum()?;
        match (left, right) {
            (Part::Number, Part::Number) => self.binary(Binary::Compare(comparison)),
            (Part::Column(a), Part::Column(b)) => self.push(Op::TextColumns(a, comparison, b)),
            (Part::Column(field), Part::Text(text)) => {
                self.push(Op::TextCompare(field, comparison, trimmed(&text)));
            }
            (Part::Text(text), Part::Column(field)) => {
                self.push(Op::TextCompare(field, comparison.turned(), trimmed(&text)));
            }
            (Part::Text(_), Part::Text(_)) => {
                return Err(Mistake { at, reason: "compares a text with a text".to_owned() });
            }
            (Part::Number, _) | (_, Part::Number) => {
                return Err(Mistake { at, reason: "compares a number with a text".to_owned() });
            }
        }
        Ok(Part::Number)
    }

    /// The list after `in`.
    fn among(&mut self, left: &Part) -> Parsed<()> {
        self.require("(")?;
        let (mut numbers, mut texts) = (Vec::new(), Vec::new());
        loop {
            let negative = self.taken("-")?;
            let at = self.at;
            match (left, self.take()?) {
                (Part::Number, Token::Number(number)) => {
                    numbers.push(if negative { -number } else { number });
                }
                (Part::Column(_), Token::Text(text)) if !negative => texts.push(trimmed(&text)),
                (Part::Number, _) => {
                    return Err(Mistake { at, reason: "is not a number".to_owned() });
                }
                (Part::Column(_) | Part::Text(_), _) => {
                    return Err(Mistake {
                        at,
                        reason: "is not a text for a text column".to_owned(),
                    });
                }
            }
            if !self.taken(",")? {
                break;
            }
        }
        self.require(")")?;
        self.push(match left {
            Part::Column(field) => Op::TextIn(*field, texts),
            Part::Number | Part::Text(_) => Op::In(numbers),
        });
        Ok(())
    }

    fn sum(&mut self) -> Parsed<Part> {
        self.chain(Self::product, |token| match token {
            Token::Sign("+") => Some(Binary::Add),
            Token::Sign("-") => Some(Binary::Subtract),
            _ => None,
        })
    }

    fn product(&mut self) -> Parsed<Part> {
        self.chain(Self::signed, |token| match token {
            Token::Sign("*") => Some(Binary::Multiply),
            Token::Sign("/") => Some(Binary::Divide),
            Token::Sign("%") => Some(Binary::Rest),
            _ => None,
        })
    }

    fn signed(&mut self) -> Parsed<Part> {
        let (mut negative, mut any) = (false, false);
        while matches!(self.next, Token::Sign("-" | "+")) {
            negative ^= self.take()? == Token::Sign("-");
            any = true;
        }
        let at = self.at;
        let part = self.power()?;
        if any {
            Self::demand_number(&part, at)?;
        }
        if negative {
            self.push(Op::Unary(Unary::Negate));
        }
        Ok(part)
    }

    fn power(&mut self) -> Parsed<Part> {
        let at = self.at;
        let base = self.primary()?;
        if self.taken("^")? {
            Self::demand_number(&base, at)?;
            self.nesting += 1;
            if self.nesting > NESTING_MAX {
                return Err(self.mistake(format!("nested more than {NESTING_MAX} deep")));
            }
            let at = self.at;
            let exponent = self.signed()?;
            self.nesting -= 1;
            Self::demand_number(&exponent, at)?;
            self.binary(Binary::Power);
        }
        Ok(base)
    }

    fn primary(&mut self) -> Parsed<Part> {
        let at = self.at;
        match self.take()? {
            Token::Number(number) => self.push(Op::Constant(number)),
            Token::Text(text) => return Ok(Part::Text(text)),
            Token::Quoted(name) => return self.column(&name, at),
            Token::Word(word) if self.next == Token::Sign("(") => self.call(&word, at)?,
            Token::Word(word) if word == "missing" => self.push(Op::Constant(f64::NAN)),
            Token::Word(word) => return self.column(&word, at),
            Token::Sign("(") => {
                let part = self.disjunction()?;
                self.require(")")?;
                return Ok(part);
            }
            Token::Sign(sign) => {
                return Err(Mistake {
                    at,
                    reason: format!("a value is missing before \"{sign}\""),
                });
            }
            Token::End => {
                return Err(Mistake { at, reason: "ends where a value is needed".to_owned() });
            }
        }
        Ok(Part::Number)
    }

    fn column(&mut self, name: &str, at: usize) -> Parsed<Part> {
        if let Some(position) = self.given.iter().position(|given| given == name) {
            self.push(Op::Given(position));
            return Ok(Part::Number);
        }
        match self.schema.position(name).map(|position| self.schema.field(position)) {
            Some(Field::Number(field)) => {
                self.push(Op::Column(field));
                Ok(Part::Number)
            }
            Some(Field::Text(field)) => Ok(Part::Column(field)),
            None => Err(Mistake { at, reason: format!("there is no column \"{name}\"") }),
        }
    }

    /// A call of the function `name`, of which the bracket comes next.
    fn call(&mut self, name: &str, at: usize) -> Parsed<()> {
        self.require("(")?;
        match name {
            "row" => self.push(Op::Row),
            "date" | "datetime" => self.date(name)?,
            "missing" => match self.disjunction()? {
                Part::Number => self.push(Op::Unary(Unary::Missing)),
                Part::Column(field) => self.push(Op::TextMissing(field)),
                Part::Text(_) => return Err(self.mistake("a column is needed, not a text")),
            },
            _ => self.function(name, at)?,
        }
        self.require(")")
    }

    fn date(&mut self, name: &str) -> Parsed<()> {
        let at = self.at;
        let Token::Text(text) = self.take()? else {
            return Err(Mistake { at, reason: format!("{name} needs a text") });
        };
        let value = if name == "date" {
            parse_date(text.as_bytes())
        } else {
            parse_datetime(text.as_bytes())
        };
        let bad = || Mistake { at, reason: format!("\"{text}\" is not a {name}") };
        self.push(Op::Constant(value.ok_or_else(bad)?));
        Ok(())
    }

    /// A function of numbers.
    fn function(&mut self, name: &str, at: usize) -> Parsed<()> {
        let fold = match name {
            "min" => Some(Binary::Min),
            "max" => Some(Binary::Max),
            "coalesce" => Some(Binary::Coalesce),
            _ => None,
        };
        let unary = unary(name);
        if fold.is_none() && unary.is_none() && name != "if" {
            return Err(Mistake { at, reason: format!("there is no function \"{name}\"") });
        }
        let mut count = 0;
        loop {
            self.number()?;
            count += 1;
            if let (Some(binary), 2..) = (fold, count) {
                self.binary(binary);
            }
            if !self.taken(",")? {
                break;
            }
        }
        match (name, count, fold, unary) {
            (_, _, Some(_), _) => {}
            ("if", 3, _, _) => self.push(Op::If),
            ("round", 2, _, _) => self.binary(Binary::RoundTo),
            (_, 1, _, Some(unary)) => self.push(Op::Unary(unary)),
            _ => {
                let reason = format!("{name} does not take {count} values");
                return Err(Mistake { at, reason });
            }
        }
        Ok(())
    }
}

fn trimmed(text: &str) -> Vec<u8> {
    trim_blanks(text.as_bytes()).to_vec()
}

fn comparison(token: &Token) -> Option<Comparison> {
    Some(match token {
        Token::Sign("=" | "==") => Comparison::Equal,
        Token::Sign("<>" | "!=") => Comparison::NotEqual,
        Token::Sign("<") => Comparison::Less,
        Token::Sign("<=") => Comparison::LessOrEqual,
        Token::Sign(">") => Comparison::Greater,
        Token::Sign(">=") => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

fn unary(name: &str) -> Option<Unary> {
    Some(match name {
        "abs" => Unary::Abs,
        "ceil" => Unary::Ceil,
        "cos" => Unary::Cos,
        "exp" => Unary::Exp,
        "floor" => Unary::Floor,
        "ln" => Unary::Ln,
        "log10" => Unary::Log10,
        "round" => Unary::Round,
        "sign" => Unary::Sign,
        "sin" => Unary::Sin,
        "sqrt" => Unary::Sqrt,
        _ => return None,
    })
}
