//! The form of an answer that the caller prefers: RFC 9110, section 12.5.1.

use http::{HeaderMap, header};

/// The weight of a range without one, in thousandths: as much as any other.
const FULL: u16 = 1000;

/// Returns whether the caller prefers plain text to problem details. JSON stands for problem
/// details.
pub(crate) fn prefers_text(headers: &HeaderMap) -> bool {
    if !headers.contains_key(header::ACCEPT) {
        return false;
    }
    let (mut text, mut json) = (Wish::default(), Wish::default());
    let lines = headers.get_all(header::ACCEPT).iter();
    let ranges = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','));
    for range in ranges {
        let mut parts = range.split(';');
        let name = parts.next().unwrap_or_default().trim();
        let Some(quality) = quality(parts) else {
            continue;
        };
        // The more exact range has precedence.
        match name.to_ascii_lowercase().as_str() {
            "text/plain" => text.consider(3, quality),
            "text/*" => text.consider(1, quality),
            "application/problem+json" => json.consider(3, quality),
            "application/json" => json.consider(2, quality),
            "application/*" => json.consider(1, quality),
            "*/*" => {
                text.consider(0, quality);
                json.consider(0, quality);
            }
            _ => {}
        }
    }
    text.quality > json.quality
}

/// The weight of a form, and the exactness of the range that it is from.
#[derive(Default)]
struct Wish {
    exactness: u8,
    quality: u16,
}

impl Wish {
    fn consider(&mut self, exactness: u8, quality: u16) {
        if exactness > self.exactness {
            *self = Self { exactness, quality };
        } else if exactness == self.exactness {
            self.quality = self.quality.max(quality);
        }
    }
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
        "0" => format!("{part:0<3}").parse().ok(),
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
