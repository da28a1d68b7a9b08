//! Lines of columns with widths, as squeue and sacct write them.

/// To which side a cell is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Spaces follow it.
    Left,
    /// Spaces stand before it.
    Right,
}

/// How wide a column is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Its width in characters; cells are as long as they are if none.
    pub width: Option<usize>,
    /// To which side its cells are put.
    pub side: Side,
}

impl Room {
    /// A cell in a column: what is too long is cut. Its last character is `mark` then, if there is one.
    pub fn fit(self, cell: &str, mark: Option<char>) -> String {
        let Some(width) = self.width else { return cell.to_owned() };
        let length = cell.chars().count();
        if length > width {
            let kept = width - usize::from(mark.is_some() && width > 0);
            let cut = cell.chars().take(kept);
            return cut.chain(mark.filter(|_| width > 0)).collect();
        }
        match self.side {
            Side::Left => format!("{cell:<width$}"),
            Side::Right => format!("{cell:>width$}"),
        }
    }
}

/// A part of a format such as `%.18i %t`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// What stands between columns.
    Text(String),
    /// A column, by its letter.
    Column(char, Room),
}

/// Reads `%[[.]WIDTH]LETTER`, as `squeue -o` and `sinfo -o` have it.
pub fn pieces(format: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = format.chars().peekable();
    while let Some(character) = rest.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let is_right = rest.next_if_eq(&'.').is_some();
        let mut digits = String::new();
        while let Some(digit) = rest.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        let Some(letter) = rest.next() else {
            text.push('%');
            break;
        };
        if letter == '%' {
            text.push('%');
            continue;
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        let side = if is_right { Side::Right } else { Side::Left };
        pieces.push(Piece::Column(letter, Room { width: digits.parse().ok(), side }));
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    pieces
}

/// A line of a format, with the cell of each letter.
pub fn line(pieces: &[Piece], cell: impl Fn(char) -> String) -> String {
    let parts = pieces.iter().map(|piece| match piece {
        Piece::Text(text) => text.clone(),
        Piece::Column(letter, room) => room.fit(&cell(*letter), None),
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_read_as_squeue_reads_it() {
        let room = |width, side| Room { width, side };
        assert_eq!(
            pieces("%.18i %t|%%"),
            [
                Piece::Column('i', room(Some(18), Side::Right)),
                Piece::Text(" ".into()),
                Piece::Column('t', room(None, Side::Left)),
                Piece::Text("|%".into()),
            ]
        );
        let cell = |letter: char| letter.to_string().repeat(3);
        assert_eq!(line(&pieces("%i|%.5i|%5i|%2i|%.2i|%"), cell), "iii|  iii|iii  |ii|ii|%");
    }

    #[test]
    fn what_is_too_long_is_cut_and_marked() {
        let room = Room { width: Some(4), side: Side::Right };
        assert_eq!(room.fit("COMPLETED", Some('+')), "COM+");
        assert_eq!(room.fit("ä", Some('+')), "   ä");
        assert_eq!(Room { width: Some(0), ..room }.fit("x", Some('+')), "");
    }
}
