//! A front end in a process of its own, killed at every state: the slot comes back.
//!
//! The engine is this process; front ends are forked children that map the same memory file for
//! themselves, get to a stage, say so in the lease's owner word and wait to be killed.
#![cfg(all(target_os = "linux", not(loom), not(miri)))]

mod common;

use std::fs::File;
use std::os::fd::FromRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use common::{FrontEnd, OPTIONS, SMALL, engine, events, output};
use izar_ring::*;
use memmap2::{MmapOptions, MmapRaw};

const LEASE: LeaseIdx = LeaseIdx(1);
const PATIENCE: Duration = Duration::from_secs(20);

/// How far a front end gets before it is killed, in the order of a request's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Leased = 1,
    RecordHalfWritten,
    RecordWritten,
    SubmittedWithoutDoorbell,
    Pending,
    Announced,
    Prefill,
    Decode,
    Paused,
    CancelledWithoutDoorbell,
    Cancelled,
    Completed,
    RecycledWithoutDoorbell,
    Recycled,
}

const STAGES: [Stage; 14] = [
    Stage::Leased,
    Stage::RecordHalfWritten,
    Stage::RecordWritten,
    Stage::SubmittedWithoutDoorbell,
    Stage::Pending,
    Stage::Announced,
    Stage::Prefill,
    Stage::Decode,
    Stage::Paused,
    Stage::CancelledWithoutDoorbell,
    Stage::Cancelled,
    Stage::Completed,
    Stage::RecycledWithoutDoorbell,
    Stage::Recycled,
];

/// Memory that several processes map.
struct Shared {
    file: File,
    map: MmapRaw,
}

impl Shared {
    fn new(bytes: u64) -> Self {
        // SAFETY: the name is a C string; the descriptor is checked before it is used.
        let fd = unsafe { libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
        // SAFETY: a descriptor just opened, owned by nobody else.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes).unwrap();
        Self {
            map: MmapOptions::new().map_raw(&file).unwrap(),
            file,
        }
    }

    /// The same memory mapped once more.
    fn again(&self) -> Self {
        let file = self.file.try_clone().unwrap();
        Self {
            map: MmapOptions::new().map_raw(&file).unwrap(),
            file,
        }
    }

    fn memory(&self) -> RingMemory {
        // SAFETY: a page-aligned shared mapping that lives as long as `self`, which every test keeps
        // to its end; both processes reach it through ring code and follow the protocol.
        unsafe { RingMemory::new(NonNull::new(self.map.as_mut_ptr()).unwrap(), self.map.len()) }
    }
}

/// Runs `body` in a child process, which ends with its exit code and never returns.
fn fork(body: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child runs only `body`, which takes no locks that another thread of this process
    // may hold (ring code takes none, the C library's allocator survives a fork), and then exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid > 0 {
        return pid;
    }
    // SAFETY: plain system calls; a child nobody kills or reaps ends by the alarm.
    unsafe { libc::alarm(60) };
    let code = catch_unwind(AssertUnwindSafe(body)).unwrap_or(101);
    // SAFETY: ends the child without running the test harness's exit handlers.
    unsafe { libc::_exit(code) }
}

fn wait_for(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the child's status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// Calls `step` until it says so, or fails with `what` when patience ends.
fn until(what: &str, mut step: impl FnMut() -> bool) {
    let start = Instant::now();
    while !step() {
        assert!(start.elapsed() < PATIENCE, "waited too long: {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn owner_offset(layout: &RingLayout) -> u64 {
    layout.lease_offset(LEASE) + LEASE_OWNER
}

/// The doomed front end: gets to `stage`, says so, and waits for the end.
fn live_until(stage: Stage, shared: &Shared, layout: &RingLayout) -> i32 {
    let shared = shared.again();
    let memory = shared.memory();
    let mut front_end = FrontEnd::claim(&memory, layout, LEASE).expect("lease is free");
    front_end.beat(1);
    reach(stage, &mut front_end);
    memory
        .write_flag(owner_offset(layout), stage as u64)
        .unwrap();
    loop {
        // SAFETY: waits for a signal; the one that comes kills.
        unsafe { libc::pause() };
    }
}

fn reach(stage: Stage, front_end: &mut FrontEnd) {
    let slot = front_end.slot(0);
    let generation = front_end.next_generation(slot).expect("slot is empty");
    let record = front_end.record(slot, generation);
    if stage == Stage::RecordHalfWritten {
        let bytes = record.encode();
        let offset = front_end.layout.request_offset(slot);
        front_end.memory.write(offset, &bytes[..100]).unwrap();
    }
    if stage >= Stage::RecordWritten {
        front_end.write_request(slot, &record, [3, 4]);
    }
    if stage >= Stage::SubmittedWithoutDoorbell {
        front_end.store_submit(slot, generation);
    }
    if stage >= Stage::Pending {
        front_end.ring_doorbell();
    }
    if stage >= Stage::Prefill {
        let wanted = match stage {
            Stage::Prefill => State::PrefillProcessing,
            Stage::Paused => State::DecodePaused,
            _ => State::DecodeProcessing,
        };
        until("the engine's progress", || {
            match front_end.observe(slot, generation) {
                Observation::Running { state, .. } => state == wanted,
                Observation::Completed { .. } => stage >= Stage::Completed,
                _ => false,
            }
        });
    }
    match stage {
        Stage::CancelledWithoutDoorbell => front_end.store_cancel(slot, generation),
        Stage::Cancelled => front_end.cancel(slot, generation),
        _ => {}
    }
    if stage >= Stage::Completed {
        let completed = |seen| {
            matches!(
                seen,
                Observation::Completed {
                    num_generated: 1,
                    ..
                }
            )
        };
        until("completion", || {
            completed(front_end.observe(slot, generation))
        });
    }
    match stage {
        Stage::RecycledWithoutDoorbell => front_end.store_recycle(slot, generation),
        Stage::Recycled => front_end.recycle(slot, generation),
        _ => {}
    }
}

/// The engine's part of `stage`: takes the doomed request as far as that.
fn drive(engine: &mut EngineRing, stage: Stage) {
    if stage < Stage::Announced {
        return;
    }
    let slot = SlotIdx(engine.layout().lease_slots(LEASE).start);
    let mut submitted = false;
    until("the submission", || {
        engine.scan(&mut |event| submitted |= event == SlotEvent::Submitted { slot });
        submitted
    });
    if stage >= Stage::Prefill {
        engine.claim(slot, 0).unwrap();
    }
    if stage >= Stage::Decode {
        engine.publish_token(slot, output(9), None);
    }
    if stage == Stage::Paused {
        engine.set_state(slot, State::DecodePaused);
    }
    if stage >= Stage::Completed {
        engine.complete(slot, FinishReason::Length, &SlotResult::default());
    }
}

/// Lets the lease expire and ends what that cancels; returns the slots reported.
fn reap(engine: &mut EngineRing, now_ns: &mut u64) -> Vec<SlotIdx> {
    let mut seen = Vec::new();
    for _ in 0..8 {
        *now_ns += OPTIONS.lease_timeout_ns / 4;
        seen.extend(events(|f| engine.reap_expired_leases(*now_ns, f)));
    }
    let cancelled = |event| match event {
        SlotEvent::Cancelled { slot } => slot,
        other => panic!("{other:?}"),
    };
    seen.into_iter().map(cancelled).collect()
}

/// The next front end: a whole request in the same slot, then the lease is let go.
fn inherit(shared: &Shared, layout: &RingLayout) -> i32 {
    let shared = shared.again();
    let memory = shared.memory();
    let mut front_end = FrontEnd::claim(&memory, layout, LEASE).expect("lease came back");
    front_end.beat(2);
    let slot = front_end.slot(0);
    let generation = front_end.submit(slot);
    let completed = Observation::Completed {
        reason: FinishReason::Stop,
        num_generated: 2,
    };
    until("the heir's answer", || {
        front_end.observe(slot, generation) == completed
    });
    assert_eq!(
        [0, 1].map(|index| front_end.token(slot, index).token),
        [70, 71]
    );
    assert_eq!(front_end.result(slot).generation, generation);
    front_end.recycle(slot, generation);
    until("an empty slot", || {
        front_end.observe(slot, generation) == Observation::Emptied
    });
    front_end.release();
    0
}

/// Serves whoever holds the lease until it is let go again.
fn serve(engine: &mut EngineRing) {
    let mut done = false;
    let offset = engine.layout().lease_offset(LEASE) + LEASE_CLAIM;
    until("the heir", || {
        let mut submitted = None;
        engine.scan(&mut |event| match event {
            SlotEvent::Submitted { slot } => submitted = Some(slot),
            SlotEvent::Recycled { .. } => done = true,
            SlotEvent::Cancelled { slot } => panic!("slot {} cancelled", slot.0),
        });
        if let Some(slot) = submitted {
            engine.claim(slot, 0).unwrap();
            assert_eq!(engine.prompt(slot), [3, 4]);
            engine.publish_token(slot, output(70), None);
            engine.publish_token(slot, output(71), None);
            engine.complete(slot, FinishReason::Stop, &SlotResult::default());
        }
        done && !LeaseClaim::unpack(engine.memory().read_word(offset).unwrap()).held
    });
    engine.scan(&mut |_| ());
}

fn verdict(engine: &EngineRing) -> LeaseVerdict {
    let offset = engine.layout().lease_offset(LEASE) + LEASE_VERDICT;
    LeaseVerdict::unpack(engine.memory().read_word(offset).unwrap())
}

#[test]
fn slot_comes_back_from_a_front_end_killed_at_any_state() {
    let layout = RingLayout::new(SMALL).unwrap();
    let shared = Shared::new(layout.total_bytes());
    let mut engine = engine(shared.memory());
    let mut now_ns = 0;
    for stage in STAGES {
        let doomed = fork(|| live_until(stage, &shared, &layout));
        drive(&mut engine, stage);
        let offset = owner_offset(&layout);
        until(&format!("{stage:?}"), || {
            shared.memory().read_word(offset).unwrap() == stage as u64
        });
        // SAFETY: `doomed` is a child of ours that has not been waited for.
        assert_eq!(unsafe { libc::kill(doomed, libc::SIGKILL) }, 0);
        assert!(
            libc::WIFSIGNALED(wait_for(doomed)),
            "{stage:?}: the front end was killed"
        );

        let held = verdict(&engine).drained + 1;
        let cancelled = reap(&mut engine, &mut now_ns);
        assert_eq!(
            verdict(&engine).revoked,
            held,
            "{stage:?}: the lease is revoked"
        );
        let expected = usize::from((Stage::Announced..Stage::Completed).contains(&stage));
        assert_eq!(cancelled.len(), expected, "{stage:?}: {cancelled:?}");
        for &slot in &cancelled {
            engine.complete(slot, FinishReason::Cancelled, &SlotResult::default());
        }
        assert_eq!(
            verdict(&engine).drained,
            held,
            "{stage:?}: nothing of it is left"
        );

        let heir = fork(|| inherit(&shared, &layout));
        serve(&mut engine);
        assert_eq!(wait_for(heir), 0, "{stage:?}: the heir got its answer");
        assert_eq!(
            verdict(&engine),
            LeaseVerdict {
                revoked: held,
                drained: held + 1
            }
        );
    }
}
