//! Rows 8 to 10: data and scripts that are lost while the server goes on.

use super::{
    guards::PATIENT,
    stage::{Expected, FREE, Scene},
};
use kit::scene::*;

/// Each loss admits one more rate, so at most one loss is in an interval: the bound assumes that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_08_all_data_is_flushed() {
    let scene = Scene::begin_with("row 8", &[], PATIENT).await;
    for command in ["FLUSHALL", "FLUSHDB"].into_iter().cycle().take(6) {
        scene.server.obeys(command);
        scene.load.decided(3).await;
        // Longer than an interval, of the server's real time.
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    scene.healed().await;
    let from_zero = Expected { over: 1.0, ..FREE };
    scene.judge(from_zero).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_09_scripts_are_flushed() {
    let scene = Scene::begin_with("row 9", &[], PATIENT).await;
    for _ in 0..20 {
        scene.server.obeys("SCRIPT FLUSH");
        scene.load.decided(1).await;
    }
    scene.judge(FREE).await;
}

/// The keys that are left show what is in use, or all permits count as used: never too many are
/// granted.
async fn one_is_lost(row: &'static str, which: impl Fn(&super::lanes::Limiter) -> String) {
    let scene = Scene::begin_with(row, &[], PATIENT).await;
    let mut lost = 0;
    for _ in 0..4 {
        // One in our own format has one key: without it, all permits are free.
        for limiter in scene.load.limiters.iter().filter(|it| !it.in_own_format()) {
            lost += usize::from(scene.server.cli(&["DEL", &which(limiter)]) == "1");
        }
        scene.load.decided(2).await;
    }
    println!("{row}: {lost} keys lost");
    assert!(lost >= 2, "{lost} keys lost");
    scene.healed().await;
    let as_used = Expected {
        logs_lost: true,
        ..FREE
    };
    scene.judge(as_used).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_10_the_limit_is_lost() {
    one_is_lost("row 10, limit", |limiter| limiter.name.clone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_10_the_permits_left_are_lost() {
    one_is_lost("row 10, value", |limiter| limiter.value()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_10_the_log_is_lost() {
    one_is_lost("row 10, log", |limiter| limiter.log()).await;
}

/// The one key of a limiter in our own format is lost: it starts with all permits. As with all
/// data, at most one loss is in an interval.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_10_the_only_key_is_lost() {
    let scene = Scene::begin_with("row 10, only key", &[], PATIENT).await;
    let mut lost = 0;
    for _ in 0..4 {
        for limiter in scene.load.limiters.iter().filter(|it| it.in_own_format()) {
            lost += usize::from(scene.server.cli(&["DEL", &limiter.log()]) == "1");
        }
        scene.load.decided(2).await;
        // Longer than an interval, of the server's real time.
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    println!("row 10, only key: {lost} keys lost");
    assert!(lost >= scene.load.limiters.len(), "{lost} keys lost");
    scene.healed().await;
    let from_zero = Expected { over: 1.0, ..FREE };
    scene.judge(from_zero).await;
}
