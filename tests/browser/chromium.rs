//! A headless Chromium that is driven by its DevTools protocol over a pipe: no port, no crate.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::TIME_LIMIT;
use kit::unique;

const PROGRAMS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// A browser with one page, which ends when this is dropped.
pub(crate) struct Chromium {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    profile: PathBuf,
    session: Option<Value>,
    last: u64,
    /// What the console has said of errors.
    pub(crate) errors: Vec<String>,
}

impl Chromium {
    pub(crate) fn start() -> Self {
        let profile = std::env::temp_dir().join(unique("chromium"));
        // The shell becomes the browser, so that killing the child kills the browser.
        let script = "exec \"$0\" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
                      --no-first-run --user-data-dir=\"$1\" --remote-debugging-pipe \
                      3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut child = Command::new("sh")
            .args(["-c", script, program()])
            .arg(&profile)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            let texts = output.split(0).map_while(Result::ok);
            texts
                .map(|text| serde_json::from_slice(&text).unwrap())
                .try_for_each(|it| sender.send(it))
        });
        let mut browser = Self {
            child,
            commands,
            messages,
            profile,
            session: None,
            last: 0,
            errors: Vec::new(),
        };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let to = json!({ "targetId": page["targetId"], "flatten": true });
        browser.session = Some(browser.call("Target.attachToTarget", to)["sessionId"].clone());
        for domain in ["Runtime", "Log", "Page"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Sends a command, and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut command = json!({ "id": self.last, "method": method });
        command["params"] = params;
        if let Some(session) = &self.session {
            command["sessionId"] = session.clone();
        }
        write!(self.commands, "{command}\0").unwrap();
        loop {
            let message = self.messages.recv_timeout(TIME_LIMIT);
            let mut message = message.unwrap_or_else(|_| panic!("no answer to {command}"));
            if message["id"] == self.last {
                assert!(message.get("error").is_none(), "{command}: {message}");
                return message["result"].take();
            }
            let params = &message["params"];
            let is_error = match message["method"].as_str() {
                Some("Runtime.exceptionThrown") => true,
                Some("Runtime.consoleAPICalled") => params["type"] == "error",
                Some("Log.entryAdded") => params["entry"]["level"] == "error",
                _ => false,
            };
            if is_error {
                self.errors.push(params.to_string());
            }
        }
    }

    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({ "url": url }));
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
    }

    /// Returns the value of an expression.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut result = self.call("Runtime.evaluate", params);
        assert!(
            result.get("exceptionDetails").is_none(),
            "{expression}: {result}"
        );
        result["result"]["value"].take()
    }

    /// Returns what is seen of an element and of all within.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let text = self.value(&format!(
            "document.querySelector({selector:?})?.innerText ?? ''"
        ));
        text.as_str().unwrap().to_owned()
    }

    /// Waits until an element has this text among its own.
    pub(crate) fn wait_for(&mut self, selector: &str, text: &str) {
        let (selector, text) = (json!(selector), json!(text));
        self.wait_until(&format!(
            "document.querySelector({selector})?.innerText.includes({text})"
        ));
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_until(&mut self, expression: &str) {
        let began = Instant::now();
        while self.value(expression) != true {
            if began.elapsed() > TIME_LIMIT {
                let seen = self.text("body");
                panic!("never: {expression}\n{seen}\n{:?}", self.errors);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}

fn program() -> &'static str {
    let runs = |program: &&str| {
        let found = Command::new("sh")
            .args(["-c", "command -v \"$0\"", program])
            .output();
        found.is_ok_and(|found| found.status.success())
    };
    PROGRAMS.into_iter().find(|program| runs(program)).expect(
        "no Chromium: `tests/run.sh` installs it, as does the package `chromium` (apt, dnf, \
         pacman, apk); Google Chrome will do, too",
    )
}
