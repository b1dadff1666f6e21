//! Copies of what a thread has rendered, as much of it is the same in a short time: [`copy_of`].

use std::{cell::RefCell, sync::Arc, thread::LocalKey};

use crate::labels::Labels;

/// The number of copies that a thread keeps: one in each place, which a newer one overwrites.
pub(super) const PLACES: usize = 64;

/// The copies of one thread. A cache for all of them would need a lock, for which they would wait in
/// a flood; and copies of one value write to one count.
pub(super) type Copies<K, T> = RefCell<[Option<Rendered<K, T>>; PLACES]>;

/// What was rendered for a limit of these labels, with all else that it depends on.
pub(super) struct Rendered<K, T> {
    labels: Arc<Labels>,
    shown: K,
    rendered: T,
}

pub(super) const fn none<K, T>() -> Copies<K, T> {
    RefCell::new([const { None }; PLACES])
}

/// Returns a copy of what was rendered for the same labels and the same `shown`. Values of another
/// `number` mostly have another place.
pub(super) fn copy_of<K: PartialEq, T: Clone>(
    copies: &'static LocalKey<Copies<K, T>>,
    labels: &Arc<Labels>,
    number: u64,
    shown: K,
    render: impl Fn() -> T,
) -> T {
    let place = labels.answer_hash ^ number;
    // While the thread ends, its cache may be gone already.
    let copy = copies.try_with(|copies| {
        // Labels that are dropped here may own what asks again while it is dropped.
        let Ok(mut copies) = copies.try_borrow_mut() else {
            return render();
        };
        let place = &mut copies[place as usize % PLACES];
        let is_it = |it: &&Rendered<K, T>| {
            it.shown == shown && (Arc::ptr_eq(&it.labels, labels) || it.labels.answers_like(labels))
        };
        if let Some(same) = place.as_ref().filter(is_it) {
            return same.rendered.clone();
        }
        let rendered = render();
        *place = Some(Rendered {
            labels: Arc::clone(labels),
            shown,
            rendered: rendered.clone(),
        });
        rendered
    });
    copy.unwrap_or_else(|_| render())
}
