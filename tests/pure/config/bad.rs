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
    for Whole { text, says } in files.remove("file").unwrap() {
        match (file().parse(&text), says) {
            (Ok(_), None) => {}
            (Err(error), Some(says)) => {
                let error = error.to_string();
                assert!(error.starts_with(&says), "{text}{error}");
            }
            (read, says) => panic!("{text}{read:?} and not {says:?}"),
        }
    }
}

fn pieces() -> impl Strategy<Value = String> {
    let words: Vec<&str> = GOOD
        .split_inclusive(['\n', ' ', '"', '=', '[', ']', '.', '/', ','])
        .collect();
    let odd = [
        "", "\u{0}", "\u{feff}", "é", "\r\n", "'''", "\"\"\"", "{", "}", "[[", "]]", "\\u0000",
        "/s",
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

proptest! {
    #[test]
    fn no_text_panics(text in pieces()) {
        let _ = file().parse(&text);
    }

    /// A good file with one piece of it replaced: deep enough to reach every reader of a value.
    #[test]
    fn no_change_panics(start in any::<prop::sample::Index>(), length in 0_usize..12, piece in pieces()) {
        let start = start.index(GOOD.len());
        // The file is plain ASCII.
        let (before, rest) = GOOD.split_at(start);
        let piece = &piece[..piece.char_indices().nth(length).map_or(piece.len(), |(at, _)| at)];
        let text = [before, piece, &rest[length.min(rest.len())..]].concat();
        if let Err(error) = file().parse(&text) {
            let message = error.to_string();
            prop_assert!(message.starts_with("line "), "{}", message);
            prop_assert!(!message.contains(['\n', '\r', '\0']), "{:?}", message);
        }
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
