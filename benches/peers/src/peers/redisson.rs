//! The real Redisson, in its own process with its own defaults: `Ask.java`. Its `tryAcquire` tells
//! no time to wait. Several limits are several limiters, one after the other.

#[path = "../../../shared/redisson.rs"]
mod shared;

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
};

use tokio::sync::oneshot;

pub(crate) use self::shared::VERSION;
use super::{Entry, Form, Promise, contestant};
use crate::{
    contest::{Answer, BoxFuture, Limit, User},
    work::{Closed, Contestant, Latency, Open, Turn},
};

pub(super) const PACKAGE: &str = "Redisson";

pub(super) const ENTRIES: [Entry; 1] = [Entry {
    name: "Redisson",
    package: PACKAGE,
    form: Form::Call,
    promise: Promise::Interval,
    weighs: true,
    sends: &["evalsha", "eval"],
    build: |limits, place| {
        Box::pin(async move {
            let port = place
                .url
                .rsplit(':')
                .next()
                .unwrap()
                .trim_end_matches('/')
                .to_owned();
            contestant(Java::start(&port, &limits))
        })
    },
    ..Entry::NONE
}];

pub(super) fn missing() -> Option<String> {
    let java = Command::new("java")
        .arg("-version")
        .stderr(Stdio::null())
        .status();
    if !java.is_ok_and(|status| status.success()) {
        return Some(String::from(
            "`java` cannot be run: a JDK, 17 or newer, has it",
        ));
    }
    shared::script().err()
}

struct Java {
    process: Mutex<Child>,
    orders: Mutex<ChildStdin>,
    /// Answers to orders of turns
    turns: Mutex<mpsc::Receiver<String>>,
    asked: Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>,
    next: std::sync::atomic::AtomicU64,
}

impl Java {
    fn start(port: &str, limits: &[Limit]) -> Self {
        let limits = limits
            .iter()
            .map(|limit| format!("{}/{}", limit.permits, limit.seconds));
        let mut process = Command::new("java")
            .arg("-cp")
            .arg(shared::jars().join("*"))
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Ask.java"))
            .arg(port)
            .args(limits)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Messages of netty and SLF4J are no answers.
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().expect("Redisson starts").unwrap(), VERSION);
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
                let answer = match answer {
                    "1" => Answer::Admitted,
                    "0" => Answer::Refused(None),
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
            let answer = self.turns.lock().unwrap().recv().expect("Redisson runs");
            answer
                .split(' ')
                .map(|number| number.parse().unwrap())
                .collect()
        };
        tokio::task::spawn_blocking(numbers).await.unwrap()
    }
}

impl Contestant for Java {
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

impl Drop for Java {
    fn drop(&mut self) {
        let mut process = self.process.lock().unwrap();
        // Fails only if it has ended by itself.
        let _ = process.kill();
        let _ = process.wait();
    }
}
