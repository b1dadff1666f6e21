//! What a server executes, as its MONITOR shows it.

mod feed;
mod watch;

pub use feed::{Feed, Seen, bytes_of, escaped};
pub use watch::{Control, Watch, time_of};
