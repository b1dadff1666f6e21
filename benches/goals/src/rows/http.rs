//! Requests a second of axum with a layer on Redis, beside the same axum without.

use std::{process, time::Duration};

use super::Pace;
use crate::{
    contenders::Contender,
    database::{self, Database},
    http::{
        load::{Answers, CONNECTIONS, Load, Until},
        scene::{BARE, PER_SECOND, SCENES, Scene},
        server::Server,
    },
    row::{Contest, Rounds, Row},
};

pub(super) fn rows(pace: Pace) -> impl Iterator<Item = Row> {
    let turn = Duration::from_millis(pace.pick(2000, 1000));
    SCENES.into_iter().map(move |scene| Row {
        name: scene.name.to_owned(),
        parameters: format!(
            "{}; draft 11 headers, {CONNECTIONS} connections, {} ms a turn; two workers, Redis and the one who asks on the \
             same cores",
            scene.parameters,
            turn.as_millis()
        ),
        beside: "the same axum without the layer",
        needs: &[Contender::Redis],
        rounds: Rounds {
            warm_up: 1,
            counted: pace.pick(9, 3),
        },
        figures: scene.figures.to_vec(),
        begin: Box::new(move || Box::new(Servers::begin(scene, turn))),
    })
}

struct Servers {
    scene: Scene,
    turn: Duration,
    load: Load,
    database: Database,
    bare: Server,
    limited: Server,
}

impl Servers {
    fn begin(scene: Scene, turn: Duration) -> Self {
        let database = Database::start();
        let limited = Server::start(scene.name, &database.url());
        let load = Load::of(scene.keys);
        // Each user twice: where one is refused, that is known afterwards.
        let all = Until::Requests(2 * scene.keys as u64);
        load.run(limited.address, all);
        Self {
            scene,
            turn,
            load,
            bare: Server::start(BARE, &database.url()),
            limited,
            database,
        }
    }

    /// The answers, and the processor time of each in microseconds: of those who answer, and of the one who asks.
    fn ask(&self, server: &Server) -> (Answers, [f64; 2]) {
        let busy = || {
            [
                server.busy() + self.database.busy(),
                database::busy(process::id()),
            ]
        };
        let before = busy();
        let answers = self.load.run(server.address, Until::Time(self.turn));
        let after = busy();
        let each = [0, 1].map(|side| {
            let busy: Duration = after[side] - before[side];
            busy.as_secs_f64() * 1e6 / answers.count() as f64
        });
        (answers, each)
    }
}

impl Contest for Servers {
    fn ours(&mut self) -> Vec<f64> {
        let before = self.database.scripts();
        let (answers, busy) = self.ask(&self.limited);
        let scripts = (self.database.scripts() - before).calls as f64;
        let wrong = if self.scene.allows() {
            answers.refused
        } else {
            answers.allowed
        };
        assert_eq!(wrong, 0, "{}: {answers:?}", self.scene.name);
        let of = if self.scene.figures[1].name == PER_SECOND {
            answers.took.as_secs_f64()
        } else {
            answers.count() as f64
        };
        vec![answers.a_second(), scripts / of, busy[0], busy[1]]
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let (answers, busy) = self.ask(&self.bare);
        assert_eq!(answers.refused, 0);
        vec![Some(answers.a_second()), None, Some(busy[0]), Some(busy[1])]
    }
}

impl Answers {
    fn count(&self) -> u64 {
        self.allowed + self.refused
    }

    fn a_second(&self) -> f64 {
        self.count() as f64 / self.took.as_secs_f64()
    }
}
