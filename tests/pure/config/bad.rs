//! Bad files: each is refused with the line, the field and what to do.

use super::*;
use proptest::prelude::*;

/// The line that is named of a good file after a change, and what is said of it.
fn error_of(good: &str, from: &str, to: &str) -> (String, String) {
    assert!(good.contains(from), "{from}");
    let text = good.replacen(from, to, 1);
    let error = file().parse(&text).expect_err(to);
    let said = error.to_string();
    assert!(!said.contains('\n'), "{said}");
    assert_eq!(error.kind(), ConfigErrorKind::File);
    let place = error.place().expect("the place");
    assert_eq!(said, format!("{place}: {}", error.reason()));
    let (line, field) = place.split_once(", ").unwrap_or((place, ""));
    let line: usize = line.strip_prefix("line ").unwrap().parse().unwrap();
    let said = match field {
        "" => error.reason().to_owned(),
        field => format!("{field}: {}", error.reason()),
    };
    (text.lines().nth(line - 1).unwrap().to_owned(), said)
}

/// A change of a good file, see `bad.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mistake {
    from: String,
    to: String,
    at: Option<String>,
    #[serde(default)]
    says: String,
}

/// Asserts that each change of a table of `bad.toml` is named with its line.
pub(super) fn all_are_named(good: &str, table: &str) {
    let mut mistakes: HashMap<String, Vec<Mistake>> =
        toml::from_str(include_str!("bad.toml")).unwrap();
    let mut wrong = Vec::new();
    for Mistake { from, to, at, says } in mistakes.remove(table).unwrap() {
        let line = at.unwrap_or_else(|| to.clone());
        let (at, said) = error_of(good, &from, &to);
        if at != line || !said.starts_with(&says) {
            wrong.push(format!("{to:?}\n said {at}: {said}\n  not {line}: {says}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_mistake_is_named_with_its_line() {
    all_are_named(GOOD, "mistake");
}

/// A whole file, see `files.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    text: String,
    says: Option<String>,
}

#[test]
fn each_file_is_taken_or_refused_in_its_words() {
    let mut files: HashMap<String, Vec<Whole>> =
        toml::from_str(include_str!("files.toml")).unwrap();
    let mut wrong = Vec::new();
    for Whole { text, says } in files.remove("file").unwrap() {
        let said = file().parse(&text).err().map(|error| error.to_string());
        let is_right = match (&said, &says) {
            (Some(said), Some(says)) => said.starts_with(says),
            (said, says) => said.is_none() && says.is_none(),
        };
        if !is_right {
            wrong.push(format!("{text} said {said:?}\n  not {says:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn pieces() -> impl Strategy<Value = String> {
    let words: Vec<&str> = GOOD
        .split_inclusive(['\n', ' ', '"', '=', '[', ']', '.', '/', ','])
        .collect();
    let odd = [
        "", "\u{0}", "\u{1b}", "\u{feff}", "é", "\r\n", "'''", "\"\"\"", "{", "}", "[[", "]]",
        "\\u0000", "/s",
    ];
    let small = ["0xff", "-1", "nan", "1e9"];
    let large = ["9223372036854775808", "18446744073709551616/1d"];
    let odd = [&odd[..], &small, &large, &["1979-05-27T07:32:00Z"]].concat();
    let word = prop_oneof![
        4 => prop::sample::select(words).prop_map(str::to_owned),
        1 => prop::sample::select(odd).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    prop::collection::vec(word, 0..60).prop_map(|words| words.concat())
}

/// For any text: rules that a layer accepts, or an error in one line that names a line of the file.
fn is_read_or_refused(text: &str) -> Result<(), TestCaseError> {
    let error = match file().parse(text) {
        Ok(rules) => {
            // The good file has what only Redisson's format has.
            let stores = [
                MemoryStore::builder().redisson().build(),
                MemoryStore::new(),
            ];
            let is_built = stores.iter().any(|store| {
                let layer = RateLimitLayer::builder(store).rules(rules.clone());
                layer.build().is_ok()
            });
            prop_assert!(is_built, "{}", text);
            return Ok(());
        }
        Err(error) => error,
    };
    let place = error.place().unwrap_or_default();
    let line = place
        .split(',')
        .next()
        .and_then(|line| line.strip_prefix("line "));
    let line: usize = line.and_then(|line| line.parse().ok()).unwrap_or_default();
    let lines = 1..=text.split('\n').count();
    prop_assert!(lines.contains(&line), "{:?} of {:?}", place, text);
    let said = error.to_string();
    prop_assert!(
        !said.contains(['\n', '\r', '\u{1b}', '\0']),
        "{:?} of {:?}",
        said,
        text
    );
    Ok(())
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in prop_oneof![3 => pieces(), 1 => any::<String>()]) {
        is_read_or_refused(&text)?;
    }

    /// A good file with one piece of it replaced: deep enough to reach every reader of a value.
    #[test]
    fn any_change_is_read_or_refused(
        start in any::<prop::sample::Index>(),
        length in 0_usize..12,
        piece in pieces(),
    ) {
        let start = start.index(GOOD.len());
        // The file is plain ASCII.
        let (before, rest) = GOOD.split_at(start);
        let piece = &piece[..piece.char_indices().nth(length).map_or(piece.len(), |(at, _)| at)];
        is_read_or_refused(&[before, piece, &rest[length.min(rest.len())..]].concat())?;
    }
}

#[test]
fn depth_is_bounded() {
    for text in [
        "[".repeat(100_000),
        "a = ".to_owned() + &"{a = ".repeat(100_000),
        "a.".repeat(100_000) + "a = 1",
    ] {
        file().parse(&text).unwrap_err();
    }
}
