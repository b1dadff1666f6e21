//! Allocations of a request.

use std::{env, process::Command};

use crate::{
    contenders::Contender,
    row::{
        Contest,
        Goal::{AtMost, Reported},
        Rounds, Row, figure,
    },
};

pub(super) fn rows() -> [Row; 3] {
    [
        Row {
            name: String::from("allocations, cached refusal"),
            parameters: String::from(
                "through the layer, 1 per hour, spent, 1000 requests, which are made and not counted",
            ),
            beside: "the service without the layer",
            needs: &[Contender::Redis],
            rounds: Rounds::ONCE,
            figures: vec![
                figure("in Service::call, which decides and answers", Reported),
                figure("when its future is polled", AtMost(0.0)),
            ],
            begin: Box::new(|| {
                let [called, polled, bare] = counted(0);
                Box::new(Counted([called, polled], [Some(bare), None]))
            }),
        },
        Row {
            name: String::from("allocations, admitted on Redis"),
            parameters: String::from(
                "through the layer, 1000 requests, those of the connection included, those of making the request and its \
                 task not",
            ),
            beside: "a bare EVALSHA of `return 1` with a key and an argument on a connection of its own",
            needs: &[Contender::Redis],
            rounds: Rounds::ONCE,
            figures: vec![
                figure("one at a time", AtMost(14.0)),
                figure("50 users at once", AtMost(10.0)),
            ],
            begin: Box::new(|| {
                let [lone, batch, evalsha] = counted(1);
                Box::new(Counted([lone, batch], [Some(evalsha); 2]))
            }),
        },
        Row {
            name: String::from("allocations, by hand on Redis"),
            parameters: String::from(
                "what a grant leaves behind, and a call of redis-rs for one or for 50, by hand",
            ),
            beside: "a bare EVALSHA of `return 1` with a key and an argument on a connection of its own",
            needs: &[Contender::Redis],
            rounds: Rounds::ONCE,
            figures: vec![
                figure("one at a time", Reported),
                figure("50 users at once", Reported),
            ],
            begin: Box::new(|| {
                let [lone, batch, evalsha] = counted(2);
                Box::new(Counted([lone, batch], [Some(evalsha); 2]))
            }),
        },
    ]
}

/// Both sides of two figures.
struct Counted([f64; 2], [Option<f64>; 2]);

/// A line of the program that counts.
fn counted(line: usize) -> [f64; 3] {
    let program = env::current_exe().unwrap().with_file_name("allocations");
    let output = Command::new(program).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers = text.lines().nth(line).unwrap().split(' ');
    let numbers: Vec<_> = numbers.map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

impl Contest for Counted {
    fn ours(&mut self) -> Vec<f64> {
        self.0.into()
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        self.1.into()
    }
}
