//! Waiting for a state instead of for a time.

#![allow(dead_code, reason = "each test binary uses part of it")]

use std::{future::poll_fn, pin::Pin, task::Poll};

#[allow(unused_imports, reason = "each test binary uses part of it")]
pub use crate::scene::{LONG, until};

/// Lets a future begin, and its command reach the socket; what is heard of it afterwards, nobody looks at.
///
/// On a runtime of one thread, with the connection made: its task runs while this one yields.
pub async fn begin<F: Future>(mut future: Pin<&mut F>) {
    let pending = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending()));
    assert!(pending.await, "decided at once");
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}
