//! The words of a line: [`Words`].

/// The words of a line. What is in quotes, or in brackets where spaces are between words, is one,
/// and what is escaped in it stays so. A tab ends a word wherever it stands.
pub(super) struct Words<'a> {
    rest: Option<&'a str>,
    between: u8,
}

impl<'a> Words<'a> {
    pub(super) fn of(line: &'a str, between: u8) -> Self {
        let rest = Some(line);
        Self { rest, between }
    }

    /// Returns the end of what is in quotes.
    fn end_of_quotes(&self, bytes: &[u8]) -> Option<usize> {
        let has_spaces = self.between == b' ';
        let mut end = 0;
        loop {
            end += match (bytes.get(end)?, bytes.get(end + 1)) {
                (b'\\', _) if has_spaces => 2,
                (b'"', Some(b'"')) if !has_spaces => 2,
                (b'"', _) => return Some(end),
                _ => 1,
            };
        }
    }

    /// Returns the length of a word that does not begin with quotes or a bracket.
    fn end_of_plain(&self, line: &str) -> Option<usize> {
        // Words are so short that any other search is slower.
        let bytes = line.as_bytes();
        let end = bytes.iter().position(|it| *it == self.between);
        let end = end.unwrap_or(bytes.len());
        // As in `path="/a b"`, which many tools write.
        let quotes = bytes.get(..end)?.windows(2).position(|it| it == b"=\"");
        match quotes.filter(|_| self.between == b' ') {
            Some(at) => Some(at + 3 + self.end_of_quotes(bytes.get(at + 2..)?)?),
            None => Some(end),
        }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let (mut line, has_spaces) = (self.rest.take()?, self.between == b' ');
        if has_spaces {
            line = line.trim_start_matches(' ');
        }
        let inner = line.get(1..).filter(|_| self.between != b'\t');
        let (word, rest) = match (line.bytes().next(), inner) {
            (None, _) if has_spaces => return None,
            (Some(b'['), Some(inner)) if has_spaces => {
                inner.split_at_checked(inner.bytes().position(|it| it == b']')?)?
            }
            (Some(b'"'), Some(inner)) => {
                inner.split_at_checked(self.end_of_quotes(inner.as_bytes())?)?
            }
            _ => {
                let (word, rest) = line.split_at_checked(self.end_of_plain(line)?)?;
                self.rest = rest.get(1..);
                return Some(word.trim());
            }
        };
        let rest = rest.get(1..)?;
        self.rest = if has_spaces {
            Some(rest)
        } else {
            rest.strip_prefix(',')
        };
        Some(word)
    }
}

/// Returns what follows so many words, by blanks alone.
pub(super) fn skip(line: &str, words: usize) -> &str {
    let blank = [' ', '\t'];
    (0..words).fold(line, |line, _| {
        let line = line.trim_start_matches(blank);
        let rest = line.find(blank).and_then(|end| line.get(end..));
        rest.unwrap_or("").trim_start_matches(blank)
    })
}
