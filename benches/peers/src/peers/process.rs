//! Contestants in other languages, each in a process of its own that runs the turns itself. It
//! answers the orders of `../../processes/Ask.java`, whose head says which there are.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

use super::Place;
use crate::{
    contest::{Answer, BoxFuture, Limit, User},
    work::{Closed, Contestant, Latency, Open, Turn},
};

/// Why the program cannot be started with the files that an environment variable names, which
/// `benches/peers.sh` sets when it has brought them.
pub(super) fn missing(program: &str, version: &str, variable: &str) -> Option<String> {
    let runs = Command::new(program)
        .arg(version)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !runs.is_ok_and(|status| status.success()) {
        return Some(format!("`{program}` cannot be run"));
    }
    let found = std::env::var_os(variable).is_some_and(|files| Path::new(&files).exists());
    (!found).then(|| format!("benches/peers.sh could not bring it: {variable} names no files"))
}

pub(super) struct Process {
    process: Mutex<Child>,
    orders: Mutex<ChildStdin>,
    /// Answers to orders of turns
    turns: Mutex<mpsc::Receiver<String>>,
    asked: Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>,
    next: std::sync::atomic::AtomicU64,
}

impl Process {
    /// Starts it with the server's port and the limits as its last arguments; the first line that
    /// it says is to be its version.
    pub(super) async fn start(
        command: Command,
        version: &'static str,
        limits: Vec<Limit>,
        place: Place,
    ) -> Self {
        // A JVM takes a second to say it: several at once would take all workers from those whose
        // connections have less time than that.
        let start = move || Self::started(command, version, &limits, &place);
        tokio::task::spawn_blocking(start).await.unwrap()
    }

    fn started(mut command: Command, version: &str, limits: &[Limit], place: &Place) -> Self {
        let port = place.url.rsplit(':').next().unwrap();
        let limits = limits
            .iter()
            .map(|limit| format!("{}/{}", limit.permits, limit.seconds));
        let mut process = command
            .arg(port.trim_end_matches('/'))
            .args(limits)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Messages of netty and SLF4J are no answers.
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().expect("the process starts").unwrap(), version);
        let asked: Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>> = Arc::default();
        let (waiting, (answered, turns)) = (Arc::clone(&asked), mpsc::channel());
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Some((id, answer)) = line
                    .strip_prefix("= ")
                    .and_then(|line| line.split_once(' '))
                else {
                    let _ = answered.send(line);
                    continue;
                };
                let answer = match answer.split_once(' ') {
                    Some(("1", _)) => Answer::Admitted,
                    // Below 0 where none is told.
                    Some(("0", wait)) => {
                        Answer::Refused(wait.parse().ok().map(Duration::from_nanos))
                    }
                    _ => Answer::Failed,
                };
                let caller = waiting.lock().unwrap().remove(&id.parse().unwrap());
                // The caller may have left.
                let _ = caller.map(|caller| caller.send(answer));
            }
        });
        Self {
            process: Mutex::new(process),
            orders: Mutex::new(orders),
            turns: Mutex::new(turns),
            asked,
            next: Default::default(),
        }
    }

    fn order(&self, order: &str) {
        writeln!(self.orders.lock().unwrap(), "{order}").unwrap();
    }

    async fn turn(self: Arc<Self>, order: String) -> Vec<f64> {
        let numbers = move || {
            self.order(&order);
            let answer = self.turns.lock().unwrap().recv().expect("the process runs");
            answer
                .split(' ')
                .map(|number| number.parse().unwrap())
                .collect()
        };
        tokio::task::spawn_blocking(numbers).await.unwrap()
    }
}

impl Contestant for Process {
    fn ask<'a>(&'a self, user: &'a User, cost: u32) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let id = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let (caller, answer) = oneshot::channel();
            self.asked.lock().unwrap().insert(id, caller);
            self.order(&format!("ask {id} {} {cost}", user.name));
            answer.await.unwrap_or(Answer::Failed)
        })
    }

    fn closed(self: Arc<Self>, work: Closed) -> BoxFuture<'static, Turn> {
        let costs: Vec<_> = work.costs.iter().map(u32::to_string).collect();
        let (prefix, users, millis) = (work.prefix, work.users.len(), work.time.as_millis());
        let (in_flight, most) = (work.in_flight, work.most);
        let order = format!(
            "closed {prefix} {users} {in_flight} {millis} {most} {}",
            costs.join(",")
        );
        Box::pin(async move {
            let numbers = self.turn(order).await;
            Turn {
                asked: numbers[0] as u64,
                admitted: numbers[1] as u64,
                failed: numbers[2] as u64,
                seconds: numbers[3] / 1e9,
                latency: Latency::default(),
            }
        })
    }

    fn open(self: Arc<Self>, load: Open) -> BoxFuture<'static, Latency> {
        let (prefix, users, rate) = (load.prefix, load.users.len(), load.rate);
        let order = format!("open {prefix} {users} {rate} {}", load.time.as_millis());
        Box::pin(async move {
            let numbers = self.turn(order).await;
            let [p50, p99, p999] = numbers[..] else {
                panic!("{numbers:?}")
            };
            Latency { p50, p99, p999 }
        })
    }

    fn process(&self) -> u32 {
        self.process.lock().unwrap().id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut process = self.process.lock().unwrap();
        // Fails only if it has ended by itself.
        let _ = process.kill();
        let _ = process.wait();
    }
}
