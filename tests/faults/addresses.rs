//! Errors say which server they are about, without its password.

use kit::{scene::*, server::free_port};

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let port = free_port();
    // A busy machine must not answer by the deadline.
    let store = patient(format!("redis://shop:Sesame@127.0.0.1:{port}/3"));
    let store = store.build().unwrap();
    let limiter = RateLimiter::new(&store, "orders").unwrap();
    for error in [
        store.ping().await.unwrap_err(),
        limiter.try_acquire().await.unwrap_err(),
        limiter.available_permits().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let place = format!("(redis://127.0.0.1:{port}/3)");
        assert!(error.to_string().contains(&place), "{error}");
        let shown = format!("{error} {error:?} {store:?}");
        assert!(!shown.contains("Sesame"), "{shown}");
    }
}

#[tokio::test]
async fn a_database_that_is_not_there_is_named() {
    let server = RedisServer::start();
    let url = format!("redis://127.0.0.1:{}/99", server.port());
    let error = fails(
        patient(&url).build().unwrap().ping().await,
        ErrorKind::Rejected,
    );
    let said = error.to_string();
    assert!(
        said.contains(&url) && said.contains("no database of this number"),
        "{said}"
    );
}
