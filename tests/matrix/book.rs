//! Keeps the responses of a load while it runs.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::mpsc,
    thread::{self, JoinHandle},
};

use super::answer::Answer;

#[derive(Debug)]
pub enum Book {
    Here(Vec<Answer>),
    /// Written by a thread of its own: no request waits for a disk
    There(Option<mpsc::Sender<Answer>>, Option<JoinHandle<()>>),
}

impl Book {
    pub fn here() -> Self {
        Self::Here(Vec::new())
    }

    pub fn in_file(file: &Path) -> Self {
        let mut file = BufWriter::new(File::create(file).unwrap());
        let (note, noted) = mpsc::channel::<Answer>();
        let writing = thread::spawn(move || {
            for answer in noted {
                serde_json::to_writer(&mut file, &answer).unwrap();
            }
            file.flush().unwrap();
        });
        Self::There(Some(note), Some(writing))
    }

    pub fn note(&mut self, answer: Answer) {
        match self {
            Self::Here(answers) => answers.push(answer),
            Self::There(Some(sender), _) => sender.send(answer).expect("its thread writes"),
            Self::There(None, _) => panic!("it was closed"),
        }
    }

    /// Returns the responses, unless they are in a file, which is complete then.
    pub fn close(&mut self) -> Vec<Answer> {
        match self {
            Self::Here(answers) => std::mem::take(answers),
            Self::There(note, writing) => {
                drop(note.take());
                if let Some(writing) = writing.take() {
                    writing.join().expect("what was answered is written");
                }
                Vec::new()
            }
        }
    }
}
