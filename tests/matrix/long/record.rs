//! What happened, in files: neither decisions nor grants are kept in memory while it goes on.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, BufWriter, Write},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use crate::{answer::Answer, lanes::Limiter, stage::kept_by};
use kit::{
    RedisServer, is_state_key,
    ledger::Ledger,
    monitor::{Seen, Watch},
    unique,
};

/// A folder of its own, removed when all went well.
#[derive(Debug)]
pub struct Record {
    folder: PathBuf,
    grants: Arc<Mutex<BufWriter<File>>>,
}

impl Record {
    pub fn begin() -> Self {
        let folder = std::env::temp_dir().join(unique("tower-ratelimit-long"));
        fs::create_dir_all(&folder).unwrap();
        println!("recorded in {}", folder.display());
        let grants = BufWriter::new(File::create(folder.join("grants")).unwrap());
        Self {
            folder,
            grants: Arc::new(Mutex::new(grants)),
        }
    }

    pub fn answers(&self) -> PathBuf {
        self.folder.join("answers")
    }

    /// Reads along what a server executes: the lines that a ledger reads are kept.
    pub fn watch(&self, server: &RedisServer) -> Watch {
        let grants = Arc::clone(&self.grants);
        Watch::open_into(server, move |line, seen| {
            let matters = match (seen.by_script, seen.words[0].as_str()) {
                (true, "SET" | "SETRANGE") => is_state_key(&seen.words[1]),
                (true, word) => matches!(word, "ZADD" | "ZREM"),
                (false, word) => matches!(word, "FLUSHALL" | "FLUSHDB" | "DEL"),
            };
            if matters {
                grants.lock().unwrap().write_all(line.as_bytes()).unwrap();
            }
        })
    }

    /// Records what a server has kept over its end, as if it had been read.
    pub fn find_again(&self, server: &RedisServer, limiters: &[Limiter]) {
        let mut grants = self.grants.lock().unwrap();
        for kept in kept_by(server, limiters) {
            let line = format!("+0 [0 lua] \"{}\"\n", kept.words.join("\" \""));
            grants.write_all(line.as_bytes()).unwrap();
        }
    }

    pub fn each_answer(&self, see: impl FnMut(Answer)) {
        let answers = BufReader::new(File::open(self.answers()).unwrap());
        let answers = serde_json::Deserializer::from_reader(answers).into_iter();
        answers.map(Result::unwrap).for_each(see);
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
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
