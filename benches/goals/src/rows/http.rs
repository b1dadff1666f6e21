//! Requests a second of axum with a layer on Redis, beside the same axum without.

use std::time::{Duration, Instant};

use super::Pace;
use crate::{
    contenders::Contender,
    database::Database,
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
            "{}; draft 11 headers, {CONNECTIONS} connections, {} ms a turn after {} of the same; two workers, Redis and the one who asks on the \
             same cores",
            scene.parameters,
            turn.as_millis(),
            run_in(turn).as_millis()
        ),
        beside: match scene.beside {
            BARE => "the same axum without the layer",
            _ => "the same with one limit",
        },
        needs: &[Contender::Redis],
        rounds: Rounds::of(1, pace.pick(7, 3)),
        figures: scene.figures.to_vec(),
        begin: Box::new(move || Box::new(Servers::begin(scene, turn))),
    })
}

/// How long a turn goes on before it counts: a flood is measured, and not how it begins.
fn run_in(turn: Duration) -> Duration {
    turn / 8
}

struct Servers {
    scene: Scene,
    turn: Duration,
    load: Load,
    database: Database,
    beside: Server,
    limited: Server,
    /// When its users began to ask first
    warmed: Instant,
}

impl Servers {
    fn begin(scene: Scene, turn: Duration) -> Self {
        let database = Database::start();
        let load = Load::of(scene.keys);
        let warmed = Instant::now();
        Self {
            limited: Self::warm(scene.name, &database, &load),
            beside: Self::warm(scene.beside, &database, &load),
            warmed,
            scene,
            turn,
            load,
            database,
        }
    }

    /// A server that each user has asked twice: where one is refused, that is known.
    fn warm(scene: &str, database: &Database, load: &Load) -> Server {
        let server = Server::start(scene, &database.url());
        load.run(server.address, Until::Requests(2 * load.keys));
        server
    }

    /// Where refusals are repeated all the time, they must not grow too old, however slow the
    /// machine is.
    fn keep_warm(&mut self) {
        let is_old = |cap| self.warmed.elapsed() > cap / 2;
        if self.scene.cap.is_some_and(is_old) {
            self.warmed = Instant::now();
            self.limited = Self::warm(self.scene.name, &self.database, &self.load);
        }
    }

    /// The answers, the scripts called, and the processor time of each answer in microseconds: of
    /// the service, and of Redis.
    fn ask(&self, server: &Server) -> (Answers, f64, [f64; 2]) {
        self.load
            .run(server.address, Until::Time(run_in(self.turn)));
        let scripts = self.database.scripts();
        let busy = || [server.busy(), self.database.busy()];
        let before = busy();
        let answers = self.load.run(server.address, Until::Time(self.turn));
        let after = busy();
        let scripts = self.database.scripts() - scripts;
        let each = [0, 1].map(|side| {
            let busy: Duration = after[side] - before[side];
            busy.as_secs_f64() * 1e6 / answers.count() as f64
        });
        (answers, scripts.calls as f64, each)
    }
}

impl Contest for Servers {
    fn ours(&mut self) -> Vec<f64> {
        self.keep_warm();
        let (answers, scripts, busy) = self.ask(&self.limited);
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
        [vec![answers.a_second(), scripts / of], busy.into()].concat()
    }

    fn theirs(&mut self) -> Vec<Option<f64>> {
        let (answers, _, [service, redis]) = self.ask(&self.beside);
        assert_eq!(answers.refused, 0);
        // The bare service asks no Redis.
        let redis = (self.scene.beside != BARE).then_some(redis);
        vec![Some(answers.a_second()), None, Some(service), redis]
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
