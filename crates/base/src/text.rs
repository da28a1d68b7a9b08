//! Text for terminals: without control sequences, and in lines of a width.
//!
//! Names, commands and messages come from other users and other programs. What is printed of them passes
//! through [`escaped`] or [`on_one_line`], so that none of it reaches a terminal as a control sequence.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Wrapped text is never narrower than this, in characters.
pub const WRAP_MIN: usize = 20;

/// Whether a terminal takes a character for a command, or shows what follows it in another direction or on
/// another line.
fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// The text with each character that controls a terminal written as `\u001b`, as JSON writes it: JSON means
/// the same before and after. Line ends and tabs stay.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    escaped_but(text, |character| matches!(character, '\n' | '\t'))
}

/// As [`escaped`], with line ends and tabs escaped as well: text of another user can begin no line.
#[must_use]
pub fn on_one_line(text: &str) -> Cow<'_, str> {
    escaped_but(text, |_| false)
}

fn escaped_but(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |character: char| is_control(character) && !stays(character);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '\n' if is_escaped('\n') => plain.push_str("\\n"),
            '\t' if is_escaped('\t') => plain.push_str("\\t"),
            // All of them have at most four digits.
            control if is_escaped(control) => {
                let _ = write!(plain, "\\u{:04x}", u32::from(control));
            }
            other => plain.push(other),
        }
    }
    Cow::Owned(plain)
}

/// Lines of at most `width` characters ([`WRAP_MIN`] at least), broken at spaces; words that are longer are
/// broken anywhere. An empty text is one empty line.
#[must_use]
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let (text, width) = (on_one_line(text), width.max(WRAP_MIN));
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for (place, part) in letters.chunks(width).enumerate() {
            let space = usize::from(used > 0 && place == 0);
            if used + space + part.len() > width {
                lines.push(String::new());
                used = 0;
            }
            let line = lines.last_mut().expect("there is a line");
            if used > 0 && space > 0 {
                line.push(' ');
                used += 1;
            }
            line.extend(part);
            used += part.len();
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_never_reach_a_terminal_raw() {
        let nasty = "a\x1b]0;x\x07\r\u{9b}2J\u{7f}\u{202e}b\n\tc ü 漢";
        assert_eq!(escaped(nasty), "a\\u001b]0;x\\u0007\\u000d\\u009b2J\\u007f\\u202eb\n\tc ü 漢");
        assert!(on_one_line(nasty).ends_with("b\\n\\tc ü 漢"));
        assert!(matches!(escaped("plain ü"), Cow::Borrowed("plain ü")));
    }

    #[test]
    fn lines_are_broken_at_spaces_and_long_words_anywhere() {
        let text = "a word, another word and \u{1b}[31mred, then 0123456789012345678901234";
        let lines = wrap(text, 20);
        assert_eq!(
            lines,
            [
                "a word, another word",
                "and \\u001b[31mred,",
                "then",
                "01234567890123456789",
                "01234"
            ]
        );
        assert_eq!(
            wrap("twenty characters are the least", 1),
            wrap("twenty characters are the least", WRAP_MIN)
        );
        assert_eq!(wrap("", 40), [""]);
    }
}
