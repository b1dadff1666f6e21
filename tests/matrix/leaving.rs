//! Row 32: callers that leave a batch, at every step of it.

use kit::scene::*;
use tower_ratelimit::Error;

use super::{
    batches::{Asking, CROWD, Crowd, HOURLY, asking, granted_by_store, in_use, in_use_at, pause},
    guards::PATIENT,
    observed::CROWD as NAME,
    stage::{FREE, Scene},
};

/// Where the callers of a batch are when some of them leave.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// In the queue: the batch is not sent.
    Queued,
    /// The batch is on its way, and not carried out.
    Sent,
    /// It is carried out, and the reply on its way.
    Replied,
    /// The reply is read, and each has its grant, which it does not look at.
    Granted,
}

/// Of 64 callers in one batch a third leaves at each step: what a `RateLimiter` took is given back,
/// a request stays charged if its call was sent, and the others are granted.
#[tokio::test]
async fn row_32_callers_that_leave_a_batch_at_every_step() {
    let mut scene = Scene::begin_with("row 32", &[], PATIENT).await;
    let crowd = Crowd::of_a_batch(&mut scene, |_| "leaving").await;
    let store = scene.load.handles[0].clone();
    let (prefix, _) = scene.load.limiters[0].name.split_once(":{").unwrap();
    let prefix = prefix.to_owned();
    for step in [Step::Queued, Step::Sent, Step::Replied, Step::Granted] {
        for place in 0..3 {
            let limiters = crowd.limiters.iter();
            let before: Vec<_> = limiters.map(|it| in_use(&scene, it)).collect();
            let callers = crowd.limiters.iter().map(asking).map(Some).collect();
            let leaves = |caller: usize| caller > 0 && caller % 3 == place;
            let answers = some_leave(&mut scene, step, callers, leaves).await;
            for (caller, answer) in answers.iter().enumerate() {
                scene.load.observed.less(Some(NAME), answer.as_ref());
                let granted = before[caller] + answer.as_ref().map_or(0, granted_by_store);
                let limiter = &crowd.limiters[caller];
                until(&format!("{step:?}: {caller} has {granted}"), async || {
                    in_use(&scene, limiter) == granted
                })
                .await;
            }
        }
        let name = unique("request");
        let rule = HOURLY.by(FromHeader::new("x-user")).named(&name);
        let service = RateLimitLayer::new(&store, rule).layer(service_fn(serve::<()>));
        let request = |user: usize| -> Asking {
            let request = Request::builder().header("x-user", user.to_string());
            let asked = service.clone().oneshot(request.body(()).unwrap());
            Box::pin(async move {
                let Ok(answer) = asked.await;
                Ok(decision_of(&answer).clone())
            })
        };
        let callers = (0..=CROWD).map(request).map(Some).collect();
        let answers = some_leave(&mut scene, step, callers, |caller| caller % 3 == 2).await;
        pause(&scene).await;
        for (caller, answer) in answers.iter().enumerate() {
            let charged = match answer {
                Some(answer) => granted_by_store(answer),
                None => usize::from(step != Step::Queued),
            };
            let in_use = in_use_at(&scene, &format!("{prefix}:{{{caller}}}:{name}~"));
            assert_eq!(in_use, charged, "{step:?}: {caller}");
        }
    }
    drop((crowd, store));
    scene.load.idle(false).await;
    scene.judge(FREE).await;
}

/// Has the first of these callers sent alone, and the others in one batch; some of these leave at
/// this step. Returns the answers of those that stay.
async fn some_leave(
    scene: &mut Scene,
    step: Step,
    mut callers: Vec<Option<Asking>>,
    leaves: impl Fn(usize) -> bool,
) -> Vec<Option<Result<Decision, Error>>> {
    let mut answers: Vec<_> = callers.iter().map(|_| None).collect();
    // What those before gave back has arrived, each twice, as a call may follow its receipt.
    scene.load.handles[0].close().await;
    let before = scene.server.scripts_called();
    scene.server.stop_process();
    for caller in callers.iter_mut().flatten() {
        assert!(poll(caller).is_pending());
    }
    if step != Step::Queued {
        settle().await;
    }
    if step == Step::Replied {
        scene.proxy.delay_every_reply(Duration::from_millis(100));
        scene.server.resume();
        let scripts = before + 2;
        until("it is carried out", async || {
            scene.server.scripts_called() == scripts
        })
        .await;
    }
    if step == Step::Granted {
        scene.server.resume();
        // The last: the batch answers it after all others.
        until("the batch is answered", async || {
            let last = callers.len() - 1;
            if let Some(caller) = &mut callers[last]
                && let Poll::Ready(answer) = poll(caller)
            {
                (answers[last], callers[last]) = (Some(answer), None);
            }
            callers[last].is_none()
        })
        .await;
        assert_eq!(scene.server.scripts_called(), before + 2);
    }
    for (place, caller) in callers.iter_mut().enumerate() {
        if leaves(place) {
            *caller = None;
        }
    }
    scene.server.resume();
    scene.proxy.delay_every_reply(Duration::ZERO);
    for (place, caller) in callers.into_iter().enumerate() {
        if let Some(caller) = caller {
            answers[place] = Some(caller.await);
        }
    }
    answers
}
