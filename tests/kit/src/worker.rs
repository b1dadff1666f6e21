//! This test binary, started once more: a process of its own, for one of its tests.

use std::{
    env,
    process::{Child, Command, Stdio},
};

/// The job of a worker, as its test reads it.
const JOB: &str = "TOWER_RATELIMIT_TEST_WORKER";
/// Before the number that a worker ends with.
const RESULT: &str = "worker-result=";

/// A process, and what it prints.
#[derive(Debug)]
pub struct Worker(Child);

impl Worker {
    /// Starts a process that runs this test alone, and gives it this job.
    pub fn start(test: &str, job: &str) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--include-ignored"])
            .env(JOB, job)
            .stdout(Stdio::piped())
            .spawn();
        Self(child.expect("this binary starts once more"))
    }

    /// Returns the job where this process is a worker.
    pub fn job() -> Option<String> {
        env::var(JOB).ok()
    }

    /// Ends the work with this number.
    pub fn report(result: i64) {
        println!("{RESULT}{result}");
    }

    /// Waits for the end of a worker. Returns its number.
    ///
    /// # Panics
    ///
    /// If it failed.
    pub fn result(self) -> i64 {
        let ended = self.0.wait_with_output().unwrap();
        let output = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{}: {output}", ended.status);
        let (_, result) = output.split_once(RESULT).expect("a result");
        result.split_whitespace().next().unwrap().parse().unwrap()
    }
}
