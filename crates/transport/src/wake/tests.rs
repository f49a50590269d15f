use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

const LONG: Duration = Duration::from_secs(20);

#[test]
fn raising_without_a_sleeper_wakes_nobody() {
    let event = EventCount::new();
    assert!(!event.raise());
    let prepared = event.prepare();
    drop(prepared);
    assert!(!event.raise(), "a dropped intention is no sleeper");
}

#[test]
fn a_raise_between_prepare_and_wait_is_not_lost() {
    let event = EventCount::new();
    let prepared = event.prepare();
    assert!(event.raise());
    let start = Instant::now();
    assert!(prepared.wait(LONG));
    assert!(start.elapsed() < LONG / 2);
}

#[test]
fn waiting_ends_at_the_timeout() {
    let event = EventCount::new();
    assert!(!event.prepare().wait(Duration::from_millis(5)));
}

#[test]
fn no_wake_up_is_lost_over_many_rounds() {
    const ROUNDS: u64 = 20_000;
    let (ping, pong) = (EventCount::new(), EventCount::new());
    let (asked, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    let wait_for = |event: &EventCount, word: &AtomicU64, value: u64| {
        while word.load(Ordering::Relaxed) < value {
            let prepared = event.prepare();
            if word.load(Ordering::Relaxed) < value {
                assert!(prepared.wait(LONG), "lost wake-up at {value}");
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                wait_for(&ping, &asked, round);
                answered.store(round, Ordering::Relaxed);
                pong.raise();
            }
        });
        for round in 1..=ROUNDS {
            asked.store(round, Ordering::Relaxed);
            ping.raise();
            wait_for(&pong, &answered, round);
        }
    });
}

/// A transport of which only the events matter.
struct Events(Option<EventCount>);

impl Transport for Events {
    fn len(&self) -> u64 {
        0
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), crate::TransportError> {
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), crate::TransportError> {
        Ok(())
    }
    fn write_flag(&self, _: u64, _: u64) -> Result<(), crate::TransportError> {
        Ok(())
    }
    fn read_word(&self, _: u64) -> Result<u64, crate::TransportError> {
        Ok(0)
    }
    fn compare_and_swap(&self, _: u64, _: u64, _: u64) -> Result<u64, crate::TransportError> {
        Ok(0)
    }
    fn engine_event(&self) -> Option<&EventCount> {
        self.0.as_ref()
    }
}

fn parked_engine_sees_work_promptly(event: Option<EventCount>) {
    let transport: Arc<dyn Transport> = Arc::new(Events(event));
    let doorbell = EngineDoorbell::new(transport.clone());
    let work = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let parked = scope.spawn(|| {
            let start = Instant::now();
            (
                doorbell.park(LONG, || work.load(Ordering::Acquire)),
                start.elapsed(),
            )
        });
        std::thread::sleep(Duration::from_millis(30));
        work.store(true, Ordering::Release);
        doorbell.wake_engine();
        let (found, took) = parked.join().expect("no panic");
        assert!(found && took < LONG / 2);
    });
}

#[test]
fn a_parked_engine_is_woken_by_the_event() {
    parked_engine_sees_work_promptly(Some(EventCount::new()));
}

#[test]
fn a_parked_engine_finds_work_without_any_event() {
    parked_engine_sees_work_promptly(None);
}

#[test]
fn parking_ends_at_the_timeout_with_and_without_events() {
    for event in [None, Some(EventCount::new())] {
        let doorbell = EngineDoorbell::new(Arc::new(Events(event)));
        assert!(!doorbell.park(Duration::from_millis(5), || false));
    }
}
