//! Rows 1 to 3, 19 and 20: a server that dies, stands still or has no time.

use super::{
    guards::BUDGET,
    stage::{EXACT, FROM_ZERO, Scene, UNSEEN, aside},
};
use kit::{monitor::Control, scene::*};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_01_a_server_that_is_killed() {
    let mut scene = Scene::begin("row 1").await;
    aside(|| scene.server.kill());
    scene.load.met_policy(50).await;
    // Long enough for the pauses between attempts to connect to have grown.
    tokio::time::sleep(Duration::from_secs(6)).await;
    scene.load.met_policy(1).await;
    scene.restart(false);
    scene.judge(FROM_ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_02_a_server_that_comes_back_empty() {
    let mut scene = Scene::begin("row 2, empty").await;
    // At once, so that only the lost connection shows it.
    scene.restart(false);
    scene.judge(FROM_ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_02_a_server_that_comes_back_with_its_data() {
    let persistent = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut scene = Scene::begin_with("row 2, with its data", &persistent, BUDGET).await;
    for _ in 0..2 {
        scene.restart(true);
        scene.healed().await;
    }
    scene.judge(UNSEEN).await;
}

/// Calls sent meanwhile are carried out when no caller waits for them any longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_03_a_server_that_is_stopped_and_goes_on() {
    let mut scene = Scene::begin("row 3").await;
    aside(|| scene.server.stop_process());
    scene.load.met_policy(20).await;
    // The fault itself: so long it is stopped.
    tokio::time::sleep(Duration::from_secs(5)).await;
    scene.load.met_policy(1).await;
    aside(|| scene.server.resume());
    scene.judge(EXACT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_19_a_script_of_another_client_that_does_not_end() {
    let scene = Scene::begin("row 19").await;
    scene.server.configure("lua-time-limit", "50");
    let mut other = Control::open(&scene.server);
    other.send(&["EVAL", "while true do end", "0"]);
    scene.load.met_policy(20).await;
    scene.server.obeys("SCRIPT KILL");
    let killed = other.reply();
    assert!(killed.contains("killed"), "{killed}");
    drop(other);
    scene.judge(EXACT).await;
}

/// Commands that write wait in the server, and are carried out when the pause is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_20_a_server_that_pauses_writers() {
    let scene = Scene::begin("row 20, pause").await;
    for _ in 0..2 {
        scene.server.obeys("CLIENT PAUSE 120000 WRITE");
        scene.load.met_policy(5).await;
        scene.server.obeys("CLIENT UNPAUSE");
        scene.healed().await;
    }
    scene.judge(EXACT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_20_a_server_that_sleeps() {
    let debug = RedisServer::allowing("--enable-debug-command");
    let scene = Scene::begin_with("row 20, sleep", &debug, BUDGET).await;
    let mut control = Control::open(&scene.server);
    for _ in 0..2 {
        control.send(&["DEBUG", "SLEEP", "1"]);
        scene.load.met_policy(5).await;
        assert_eq!(control.reply(), "OK");
        scene.healed().await;
    }
    drop(control);
    scene.judge(EXACT).await;
}
