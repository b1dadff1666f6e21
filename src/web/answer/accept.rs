//! The form of an answer that the caller prefers: RFC 9110, section 12.5.1.

use std::iter;

use http::{HeaderMap, header};

/// The weight of a range without one, in thousandths: as much as any other.
const FULL: u16 = 1000;

/// Returns whether the caller prefers plain text to problem details. JSON stands for problem
/// details.
pub(crate) fn prefers_text(headers: &HeaderMap) -> bool {
    const RANGES: [&str; 6] = [
        "text/plain",
        "text/*",
        "application/problem+json",
        "application/json",
        "application/*",
        "*/*",
    ];
    if !headers.contains_key(header::ACCEPT) {
        return false;
    }
    let mut weights = [None; RANGES.len()];
    let lines = headers.get_all(header::ACCEPT).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    for range in lines.flat_map(|line| line.split(',')) {
        let mut parts = range.split(';');
        let name = parts.next().unwrap_or_default().trim();
        let is_named = |known: &&str| known.eq_ignore_ascii_case(name);
        if let Some(at) = RANGES.iter().position(is_named)
            && let (Some(weight), Some(quality)) = (weights.get_mut(at), quality(parts))
        {
            *weight = (*weight).max(Some(quality));
        }
    }
    let [plain, text, problem, json, application, any] = weights;
    // The more exact range has precedence.
    let text = plain.or(text).or(any).unwrap_or(0);
    text > problem.or(json).or(application).or(any).unwrap_or(0)
}

/// Returns the weight among the parameters of a range, in thousandths; `None` if it is invalid.
fn quality<'a>(mut parameters: impl Iterator<Item = &'a str>) -> Option<u16> {
    let weight = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim()
            .eq_ignore_ascii_case("q")
            .then_some(value.trim())
    });
    let Some(weight) = weight else {
        return Some(FULL);
    };
    let (whole, part) = weight.split_once('.').unwrap_or((weight, ""));
    if part.len() > 3 || !part.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    match whole {
        "0" => {
            let digits = part.bytes().chain(iter::repeat(b'0')).take(3);
            Some(digits.fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0')))
        }
        "1" if part.bytes().all(|digit| digit == b'0') => Some(FULL),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_is_sent_is_read(
            lines in prop::collection::vec(
                "[ -~]{0,40}|(text/|application/|[*/;,=q.01 ]|plain|json){0,20}",
                0..4,
            ),
        ) {
            let mut headers = HeaderMap::new();
            for line in &lines {
                headers.append(header::ACCEPT, HeaderValue::from_str(line).unwrap());
            }
            // If no range can match it, its weight is zero.
            let all = lines.join(",").to_ascii_lowercase();
            let named = all.contains("text/") || all.contains("*/*");
            prop_assert!(named || !prefers_text(&headers));
        }
    }

    #[test]
    fn text_is_chosen_only_where_it_is_wanted_more() {
        for (accept, text) in [
            (&[][..], false),
            (&["*/*"], false),
            (&["text/plain"], true),
            (&["TEXT/Plain ; charset=utf-8"], true),
            (&["text/*"], true),
            (&["text/*, */*"], false),
            (&["text/*, */*;q=0.9"], true),
            (&["text/plain, application/json"], false),
            (&["text/plain;q=0.9, application/json;q=0.8"], true),
            (&["text/plain;q=0.8", "application/json;q=0.9"], false),
            (&["text/plain;q=0.5, */*"], false),
            (&["text/plain, text/plain;q=0.1, */*;q=0.5"], true),
            (
                &["application/problem+json;q=0.1, application/json, text/plain;q=0.2"],
                true,
            ),
            (&["application/*;q=0.1, text/plain;q=0.2"], true),
            (&["application/json;q=0, text/plain;q=0.001"], true),
            (&["text/plain;q=0"], false),
            (
                &["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"],
                false,
            ),
            (&["application/json;q=0, */*"], true),
            (&["image/png"], false),
            // An invalid weight is ignored.
            (&["text/plain;q=2"], false),
            (&["text/plain;q=1.001"], false),
            (&["text/plain;q=0.1234"], false),
            (&["text/plain;q=-0"], false),
            (&["text/plain;q="], false),
            (&[";,;q=,,/"], false),
        ] {
            let mut headers = HeaderMap::new();
            for line in accept {
                headers.append(header::ACCEPT, line.parse().unwrap());
            }
            assert_eq!(prefers_text(&headers), text, "{accept:?}");
        }
    }
}
