//! Redisson: one limit for this program and for `redisson/Orders.java`, five orders a second for
//! both together.
//!
//! The argument is the number of orders, `REDIS_URL` the address of Redis.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::{env, error::Error, time::Duration};

use tower_ratelimit::{Limit, RateLimiter, RedisStore};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let count: u32 = env::args().nth(1).map_or(Ok(7), |count| count.parse())?;

    // No request waits for an answer here: not the 50 ms of a service.
    let longest = Duration::from_secs(10);
    let store = RedisStore::builder(url)
        .connect_timeout(longest)
        .response_timeout(longest)
        .deadline(longest)
        .build()?;
    let orders = RateLimiter::new(&store, "orders")?;
    // Keeps a limit that Java has set.
    orders.try_set_rate(Limit::per_second(5)).await?;

    for order in 1..=count {
        orders.acquire().await?;
        println!("order {order}");
    }

    let left = orders.available_permits().await?;
    let limit = orders.limit().await?.ok_or("the limit was deleted")?;
    println!("{left} of {} permits left", limit.permits());
    Ok(())
}
