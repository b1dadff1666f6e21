//! What a diagnosis reads of a real server, with private parts of `src/inspect/diagnose/mod.rs`.

use super::*;
use kit::RedisServer;

#[tokio::test]
async fn scripts_that_the_server_knows_are_found() {
    // Not Redisson's: their texts are not ours to keep. The two hashes are those of the texts.
    let hashes = [
        "e0e1f9fabfc9d4800c877a703b823ac0578ff8db",
        "7f923f79fe76194c868d7e1d0820de36700eb649",
    ];
    let server = RedisServer::shared();
    // Longer than anything takes on a busy machine.
    let long = Duration::from_secs(60);
    let builder = RedisStore::builder(server.url()).connect_timeout(long);
    let store = builder.response_timeout(long).build().unwrap();
    let look = Look(&store);
    assert_eq!(look.loaded(hashes).await.unwrap(), [0; 0]);
    server.command(&["SCRIPT", "LOAD", "return 2"]);
    assert_eq!(look.loaded(hashes).await.unwrap(), [1]);
    // EVAL loads, too: Redisson uses it until 3.45.
    server.command(&["EVAL", "return 1", "0"]);
    assert_eq!(look.loaded(hashes).await.unwrap(), [0, 1]);
}
