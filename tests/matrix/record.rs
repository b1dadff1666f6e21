//! What happened, in files: neither answers nor grants are kept in memory while a load goes on.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, BufWriter, Seek, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, mpsc},
    thread::{self, JoinHandle},
};

use super::{answer::Answer, lanes::Limiter};
use kit::{
    RedisServer, Reply, is_state_key,
    ledger::Ledger,
    monitor::{Seen, Watch, escaped},
    unique, wait_until,
};

/// Keys with this in them are not recorded: a row has too many of them, or of their grants.
pub const UNRECORDED: &str = "stranger";

/// A folder of its own, removed when all went well.
#[derive(Debug)]
pub struct Record {
    folder: PathBuf,
    grants: Arc<Mutex<BufWriter<File>>>,
}

impl Record {
    pub fn begin() -> Self {
        let folder = std::env::temp_dir().join(unique("tower-ratelimit-record"));
        fs::create_dir_all(&folder).unwrap();
        println!("recorded in {}", folder.display());
        let grants = BufWriter::new(File::create(folder.join("grants")).unwrap());
        Self {
            folder,
            grants: Arc::new(Mutex::new(grants)),
        }
    }

    pub fn book(&self) -> Book {
        Book::open(&self.folder.join("answers"))
    }

    /// Reads along what a server executes: the lines that a ledger reads are kept.
    pub fn watch(&self, server: &RedisServer) -> Watch {
        let grants = Arc::clone(&self.grants);
        Watch::open(server, move |line, seen| {
            let matters = match (seen.by_script, seen.words[0].as_str()) {
                (true, "SET" | "SETRANGE") => is_state_key(&seen.words[1]),
                (true, word) => matches!(word, "ZADD" | "ZREM"),
                (false, word) => matches!(word, "FLUSHALL" | "FLUSHDB" | "DEL"),
            };
            let key = seen.words.get(1);
            if matters && key.is_none_or(|key| !key.contains(UNRECORDED)) {
                grants.lock().unwrap().write_all(line.as_bytes()).unwrap();
            }
        })
    }

    /// Records that a server has come back without its data.
    pub fn data_lost(&self) {
        let mut grants = self.grants.lock().unwrap();
        writeln!(grants, "+0 [0 127.0.0.1:1] \"FLUSHALL\"").unwrap();
    }

    /// Records what a server has kept over its end, as scripts that would have written it: its last
    /// grants may have been made without a reply.
    pub fn find_again(&self, server: &RedisServer, limiters: &[Limiter]) {
        // It answers before it has read what it kept, and says so.
        wait_until("the data is loaded", || server.cli(&["PING"]) == "PONG");
        let mut grants = self.grants.lock().unwrap();
        let mut write = |words: &[&str]| {
            writeln!(grants, "+0 [0 lua] \"{}\"", words.join("\" \"")).unwrap();
        };
        for limiter in limiters {
            let log = limiter.log();
            if limiter.is_own_log() {
                if let Reply::Bulk(state) = server.command(&["GET", &log]) {
                    write(&["SET", &log, &escaped(&state)]);
                }
            // What a calendar counts says the whole with each call.
            } else if !limiter.is_calendar() {
                for (score, member) in server.entries(&log) {
                    write(&["ZADD", &log, "NX", &score.to_string(), &escaped(&member)]);
                }
            }
        }
    }

    pub fn ledger(&self) -> Ledger {
        self.grants.lock().unwrap().flush().unwrap();
        let mut ledger = Ledger::default();
        let grants = File::open(self.folder.join("grants")).unwrap();
        for line in BufReader::new(grants).lines() {
            let line = line.unwrap();
            let seen = Seen::read(&line);
            ledger.read(&seen.unwrap_or_else(|| panic!("not a line of MONITOR: {line:?}")));
        }
        ledger
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // What went wrong is to be looked at.
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// The answers, written by a thread of its own: no request waits for a disk.
#[derive(Debug)]
pub struct Book {
    note: Option<mpsc::Sender<Answer>>,
    writing: Option<JoinHandle<File>>,
}

impl Book {
    fn open(path: &Path) -> Self {
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(path);
        let mut file = BufWriter::new(file.unwrap());
        let (note, noted) = mpsc::channel::<Answer>();
        let writing = thread::spawn(move || {
            for answer in noted {
                serde_json::to_writer(&mut file, &answer).unwrap();
            }
            file.into_inner().unwrap()
        });
        Self {
            note: Some(note),
            writing: Some(writing),
        }
    }

    pub fn note(&self, answer: Answer) {
        let note = self.note.as_ref().expect("it is open");
        note.send(answer).expect("its thread writes");
    }

    /// Returns all answers.
    pub fn close(&mut self) -> Vec<Answer> {
        drop(self.note.take());
        let writing = self.writing.take().expect("it is open");
        let mut file = writing.join().expect("what was answered is written");
        file.rewind().unwrap();
        let answers = serde_json::Deserializer::from_reader(BufReader::new(file));
        answers.into_iter().map(Result::unwrap).collect()
    }
}
