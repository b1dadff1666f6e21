//! Rocket: no service of tower, so no layer. A limiter for each address, in a request guard; a
//! catcher adds what the guard cannot.

use rocket::{
    Build, Request, Responder, Rocket, async_trait, catch, catchers, get,
    http::{Header, Status},
    request::{FromRequest, Outcome},
    routes,
};
use tower_ratelimit::{ConfigError, Decision, Error, Keyed, Limit, Store};

/// A permit of the caller's: a handler that has it as an argument is limited.
#[derive(Debug)]
pub struct Permit(());

/// What the catcher says, in seconds.
struct RetryAfter(u128);

#[async_trait]
impl<'r> FromRequest<'r> for Permit {
    type Error = Option<Error>;

    async fn from_request(request: &'r Request<'_>) -> Outcome<Self, Option<Error>> {
        let (Some(limits), Some(peer)) = (request.rocket().state::<Keyed>(), request.remote())
        else {
            return Outcome::Error((Status::InternalServerError, None));
        };
        match limits.of(peer.ip()).try_acquire().await {
            Ok(Decision::Allow(_)) => Outcome::Success(Self(())),
            Ok(Decision::Deny(refusal)) => {
                let wait = refusal.retry_after().unwrap_or_default();
                request.local_cache(|| RetryAfter(wait.as_millis().div_ceil(1000)));
                Outcome::Error((Status::TooManyRequests, None))
            }
            Err(error) => Outcome::Error((Status::ServiceUnavailable, Some(error))),
        }
    }
}

#[derive(Responder)]
struct TooMany(&'static str, Header<'static>);

#[catch(429)]
fn too_many(request: &Request<'_>) -> TooMany {
    let RetryAfter(seconds) = request.local_cache(|| RetryAfter(1));
    TooMany(
        "too many requests\n",
        Header::new("retry-after", seconds.to_string()),
    )
}

#[get("/orders")]
fn orders(_permit: Permit) -> &'static str {
    "tea, cake\n"
}

/// # Errors
///
/// The name of the limit is taken in this store.
pub fn app(store: &impl Store) -> Result<Rocket<Build>, ConfigError> {
    let limits = Limit::per_minute(2).named("api").keyed(store)?;
    let app = rocket::build().manage(limits).mount("/", routes![orders]);
    Ok(app.register("/", catchers![too_many]))
}

#[cfg(test)]
mod tests {
    use rocket::local::asynchronous::Client;
    use tower_ratelimit::MemoryStore;

    use super::*;
    use crate::ask::assert_wait;

    #[tokio::test]
    async fn each_address_has_a_limit() {
        let client = Client::untracked(app(&MemoryStore::new()).unwrap())
            .await
            .unwrap();
        let mut seen = Vec::new();
        for peer in ["192.0.2.1:9", "192.0.2.1:9", "192.0.2.1:9", "192.0.2.2:9"] {
            let answer = client
                .get("/orders")
                .remote(peer.parse().unwrap())
                .dispatch()
                .await;
            seen.push(answer.status().code);
            if answer.status() == Status::TooManyRequests {
                assert_wait(answer.headers().get_one("retry-after"));
            }
        }
        assert_eq!(seen, [200, 200, 429, 200]);
    }
}
