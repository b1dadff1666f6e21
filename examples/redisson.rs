//! Redisson: one limit for this program and for `redisson/Orders.java`, five orders a second for both together.
//!
//! The argument says how many orders, `REDIS_URL` where Redis is.

#![allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use std::{env, error::Error, time::Duration};

use tower_ratelimit::{Limit, RateLimiter, RedisStore};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let count: u32 = env::args().nth(1).map_or(Ok(7), |count| count.parse())?;

    // Nobody waits for an answer here: not the 50 ms of a service.
    let store = RedisStore::builder(url)
        .deadline(Duration::from_secs(1))
        .build()?;
    let orders = RateLimiter::new(&store, "orders")?;
    // Leaves alone what Java has set.
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
