//! Examples as processes.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        mpsc::{self, Receiver},
    },
    thread,
};

use crate::{LONG, RedisServer, root};

/// An example that runs until this is dropped.
pub struct Running {
    pub child: Child,
    lines: Receiver<String>,
    first: Option<String>,
    port: u16,
}

impl Running {
    pub fn start(name: &str, redis: Option<&RedisServer>) -> Self {
        let mut command = command(name);
        if let Some(redis) = redis {
            command.env("REDIS_URL", redis.url());
        }
        Self::spawn(&mut command)
    }

    /// A server: waits until it says where it listens.
    pub fn spawn(command: &mut Command) -> Self {
        let mut running = Self::launch(command);
        let first = running.line().expect("the address it listens on");
        let (_, address) = first.split_once("http://127.0.0.1:").expect("an address");
        running.port = address.split(',').next().unwrap().parse().expect("a port");
        running.first = Some(first);
        running
    }

    pub fn launch(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        // Reading blocks; a thread of its own lets the test give up instead of hanging.
        thread::spawn(move || {
            stdout
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self {
            child,
            lines,
            first: None,
            port: 0,
        }
    }

    /// The next line that it prints; `None` when it has ended.
    pub fn line(&mut self) -> Option<String> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        match self.lines.recv_timeout(LONG) {
            Ok(line) => Some(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("it neither prints nor ends"),
        }
    }

    /// Interrupts it, and waits until it has ended well.
    pub fn stops_when_interrupted(&mut self) {
        self.stops_when_told("-INT");
    }

    /// Sends it a signal, and waits until it has ended well.
    pub fn stops_when_told(&mut self, signal: &str) {
        let pid = self.child.id().to_string();
        // The `kill` of the shell: not every container has the program.
        let killed = Command::new("sh")
            .args(["-c", "kill \"$0\" \"$1\"", signal, &pid])
            .status()
            .unwrap();
        assert!(killed.success());
        while self.line().is_some_and(|line| line != "stopped") {}
        assert!(self.child.wait().unwrap().success());
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An example's program, in an environment that chooses nothing for it.
pub fn command(name: &str) -> Command {
    let mut command = Command::new(built(name));
    for choice in ["CERTIFICATES", "LIMITS", "PORT", "REDIS_URL", "STATE"] {
        command.env_remove(choice);
    }
    command
}

/// The path of an example's program, built from the sources as they are now.
///
/// `cargo test` builds the examples too, but `cargo test --test examples` does not: what lies there
/// could be an old one.
fn built(name: &str) -> PathBuf {
    static BUILT: OnceLock<String> = OnceLock::new();
    let messages = BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        // Cargo has set these for this test. Some build scripts read them, and would run again.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                cargo.env_remove(&name);
            }
        }
        let output = cargo
            // The server is a package of its own.
            .args("build --quiet --workspace --examples --bins --all-features".split(' '))
            .args(["--message-format", "json"])
            .current_dir(root())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    });
    let programs = messages.split("\"executable\":\"").skip(1);
    programs
        .map(|rest| PathBuf::from(rest.split('"').next().unwrap()))
        .find(|path| path.file_stem().is_some_and(|stem| stem == name))
        .unwrap_or_else(|| panic!("cargo has built no example {name}"))
}
