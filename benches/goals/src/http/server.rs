//! axum, with two workers, with or without a layer.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use axum::{Router, routing::get, serve::ListenerExt};
use tokio::net::TcpListener;

use super::scene::{BARE, Scene};
use crate::database;

/// One in a process of its own: a copy of this program.
#[derive(Debug)]
pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn start(scene: &str, redis: &str) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["serve", scene, redis])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut answers = BufReader::new(process.stdout.take().unwrap());
        answers.read_line(&mut line).unwrap();
        let address = line.trim().parse();
        let address = address.unwrap_or_else(|_| panic!("no server of {scene}: {line:?}"));
        Self { process, address }
    }

    /// Processor time that it has used.
    pub(crate) fn busy(&self) -> Duration {
        database::busy(self.process.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Serves until the one who started this process is gone.
pub(crate) fn serve(scene: &str, redis: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut app = Router::new().route("/", get(async || "Hello, World!"));
        if scene != BARE {
            let scene = Scene::named(scene).unwrap_or_else(|| panic!("no scene {scene:?}"));
            app = scene.limit(app, redis);
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
        let serving = tokio::spawn(axum::serve(listener, app).into_future());
        // Its end of the pipe is closed however it ends.
        let (gone, over) = tokio::sync::oneshot::channel();
        thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            let _ = gone.send(());
        });
        let _ = over.await;
        serving.abort();
    });
}
