//! Figures, as tables show them.

/// The middle of numbers, or what is between the two that are.
pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    let half = numbers.len() / 2;
    match numbers.len() % 2 {
        1 => numbers[half],
        _ => f64::midpoint(numbers[half - 1], numbers[half]),
    }
}

/// A whole number, with a comma at each thousand.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        let left = digits.len() - place;
        if place > 0 && left.is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
