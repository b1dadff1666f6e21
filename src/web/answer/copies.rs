//! Copies of what a thread has rendered, as much of it is the same in a short time: [`copy_of`].

use std::{
    cell::RefCell,
    ptr,
    sync::{Arc, Weak},
    thread::LocalKey,
};

use crate::values::{compiled_limit::CompiledLimit, observe::ObservedRule};

/// The number of copies that a thread keeps: one in each cell, which a newer one overwrites.
pub(super) const CELLS: usize = 64;

/// The copies of one thread. A cache for all of them would need a lock, for which they would wait
/// in a flood; and copies of one value write to one count.
pub(super) type Copies<K, T> = RefCell<[Option<Rendered<K, T>>; CELLS]>;

/// What was rendered for a limit, with all else that it depends on.
pub(super) struct Rendered<K, T> {
    // The same for all limits of a rule, also for those that `limit_by` makes for each request.
    // Weak, as a thread outlives rules.
    rule: Weak<ObservedRule>,
    shown: K,
    rendered: T,
}

pub(super) const fn none<K, T>() -> Copies<K, T> {
    RefCell::new([const { None }; CELLS])
}

/// Returns a copy of what was rendered for the same limit and the same `shown`. Values of another
/// `number` mostly have another cell.
pub(super) fn copy_of<K: PartialEq, T: Clone>(
    copies: &'static LocalKey<Copies<K, T>>,
    of: &CompiledLimit,
    number: u64,
    shown: K,
    render: impl Fn() -> T,
) -> T {
    let index = (of.answer_hash ^ number) as usize % CELLS;
    let mut copy = None;
    // While the thread ends, its cache may be gone already.
    let _ = copies.try_with(|copies| {
        let cell = &mut copies.try_borrow_mut().ok()?[index];
        let is_same = |it: &Rendered<_, _>| ptr::eq(it.rule.as_ptr(), Arc::as_ptr(&of.observed));
        let is_it = cell
            .as_ref()
            .is_some_and(|it| it.shown == shown && is_same(it));
        if !is_it {
            *cell = Some(Rendered {
                rule: Arc::downgrade(&of.observed),
                shown,
                rendered: render(),
            });
        }
        copy = cell.as_ref().map(|it| it.rendered.clone());
        Some(())
    });
    copy.unwrap_or_else(render)
}
