//! Creating, attaching, replacing and taking over rings in shared memory.

mod common;

use std::io::{Seek, SeekFrom, Write};

use common::{
    LONG, child_argument, connect, eager, eventually, small_ring, spawn_self, unique_name,
};
use izar_ring::HeaderError;
use izar_transport::client::Submission;
use izar_transport::mock_engine::{MockEngine, MockOptions, Reply, ReplyEnd, ReplyTokens};
use izar_transport::{AttachError, CreateError, SharedMemory, Transport};

/// What attaching says to a file with these bytes, the rest zero up to `len`.
fn attach_to(bytes: &[u8], len: u64) -> AttachError {
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    file.write_all(bytes).expect("write");
    file.as_file().set_len(len).expect("size");
    match SharedMemory::attach_path(file.path()) {
        Ok(_) => panic!("attached"),
        Err(error) => error,
    }
}

/// The first page of a real ring, and its size.
fn header_page() -> (Vec<u8>, u64) {
    let (ring, _engine) = SharedMemory::create_unnamed(&small_ring()).expect("create");
    let mut page = vec![0; 4096];
    ring.read(0, &mut page).expect("read");
    (page, ring.len())
}

#[test]
fn a_foreign_or_damaged_file_is_refused_with_the_reason() {
    let (page, len) = header_page();
    let header = |error| match error {
        AttachError::Header { source, .. } => source,
        other => panic!("{other}"),
    };
    assert_eq!(header(attach_to(b"", 0)), HeaderError::TooSmall(4096, 0));
    assert!(matches!(
        header(attach_to(b"something else", 8192)),
        HeaderError::Magic(_)
    ));
    let mut other_version = page.clone();
    other_version[8] = 99;
    assert_eq!(
        header(attach_to(&other_version, len)),
        HeaderError::Version(99)
    );
    let mut other_geometry = page.clone();
    other_geometry[32] ^= 1;
    assert!(matches!(
        header(attach_to(&other_geometry, len)),
        HeaderError::Layout | HeaderError::Geometry(_)
    ));
    assert_eq!(
        header(attach_to(&page, len - 4096)),
        HeaderError::TooSmall(len, len - 4096)
    );
}

#[test]
fn a_name_that_nobody_serves_cannot_be_attached() {
    let error = SharedMemory::attach(&unique_name()).err().expect("refused");
    assert!(
        error.to_string().contains("is the engine running"),
        "{error}"
    );
    assert!(matches!(
        SharedMemory::attach("../etc"),
        Err(AttachError::Name(_))
    ));
    assert!(matches!(
        SharedMemory::create("a/b", &small_ring()),
        Err(CreateError::Name(_))
    ));
}

#[test]
fn a_name_in_use_is_refused_and_comes_free_at_the_end() {
    let name = unique_name();
    let first = SharedMemory::create(&name, &small_ring()).expect("create");
    assert!(matches!(
        SharedMemory::create(&name, &small_ring()),
        Err(CreateError::InUse(_))
    ));
    assert!(matches!(
        SharedMemory::adopt(&name, 2),
        Err(CreateError::InUse(_))
    ));
    drop(first);
    assert!(
        SharedMemory::attach(&name).is_err(),
        "the file is gone with its engine"
    );
    SharedMemory::create(&name, &small_ring()).expect("free again");
}

#[test]
fn a_memfd_cannot_be_shrunk_under_its_users() {
    let (ring, _engine) = SharedMemory::create_unnamed(&small_ring()).expect("create");
    let file = std::fs::File::from(ring.fd().try_clone_to_owned().expect("duplicate"));
    assert!(file.set_len(4096).is_err());
    (&file).seek(SeekFrom::Start(0)).expect("still a file");
}

/// The child's part: an engine that lives until it is killed.
fn serve_until_killed(name: &str) {
    let (_ring, engine) = SharedMemory::create(name, &small_ring()).expect("create");
    let hang = |_: &_, _: &[u32]| Reply {
        tokens: ReplyTokens::List(vec![1, 2, 3]),
        end: ReplyEnd::Hang,
    };
    let _mock = MockEngine::serve(engine, MockOptions::scripted(hang));
    std::thread::sleep(LONG);
}

#[test]
fn a_ring_whose_engine_was_killed_is_taken_over_with_its_front_end() {
    if let Some(name) = child_argument() {
        return serve_until_killed(&name);
    }
    let name = unique_name();
    let mut child = spawn_self(
        "a_ring_whose_engine_was_killed_is_taken_over_with_its_front_end",
        &name,
    );
    eventually("the engine creates its ring", || {
        SharedMemory::attach(&name).is_ok()
    });
    let client = connect(SharedMemory::attach(&name).expect("attach"), eager());
    let mut cut_off = client.submit(&Submission::new(&[5], 10)).expect("submit");
    let mut tokens = Vec::new();
    while tokens.len() < 3 {
        cut_off.wait(&mut tokens, LONG).expect("three tokens");
    }
    child.kill().expect("kill");
    child.wait().expect("wait");

    let (_ring, engine) = SharedMemory::adopt(&name, 2).expect("nobody holds it");
    let _mock = MockEngine::serve(engine, MockOptions::default());
    let (rest, finish) = common::collect(&mut cut_off);
    assert_eq!((rest.len(), finish.num_generated), (0, 3));
    assert!(
        format!("{:?}", finish.reason).contains("EngineRestarted"),
        "{finish:?}"
    );
    client.wait_ready(LONG).expect("reachable");
    let mut next = client
        .submit(&Submission::new(&[40], 3))
        .expect("served again");
    assert_eq!(common::ids(&common::collect(&mut next).0), [40, 41, 42]);
}

#[test]
fn a_ring_whose_engine_was_killed_can_be_replaced() {
    if let Some(name) = child_argument() {
        return serve_until_killed(&name);
    }
    let name = unique_name();
    let mut child = spawn_self("a_ring_whose_engine_was_killed_can_be_replaced", &name);
    eventually("the engine creates its ring", || {
        SharedMemory::attach(&name).is_ok()
    });
    let old = SharedMemory::attach(&name).expect("attach");
    child.kill().expect("kill");
    child.wait().expect("wait");
    let (new, _engine) = SharedMemory::create(&name, &small_ring()).expect("replaced");
    let attached = SharedMemory::attach(&name).expect("attach");
    let at = new.len() - 8;
    new.write_flag(at, 77).expect("write");
    assert_eq!(
        attached.read_word(at),
        Ok(77),
        "the name leads to the new ring"
    );
    assert_eq!(
        old.read_word(at),
        Ok(0),
        "the old memory is still mapped and apart"
    );
}

#[test]
fn a_front_end_that_was_killed_leaves_its_lease_to_the_next() {
    if let Some(name) = child_argument() {
        let client = connect(SharedMemory::attach(&name).expect("attach"), eager());
        let handles: Vec<_> = (0..5)
            .map(|_| client.submit(&Submission::new(&[1], 100)).expect("submit"))
            .collect();
        std::thread::sleep(LONG);
        return drop(handles);
    }
    let name = unique_name();
    let mut options = small_ring();
    options.lease_timeout_ns = 200_000_000;
    let (_ring, engine) = SharedMemory::create(&name, &options).expect("create");
    let hang = |_: &_, _: &[u32]| Reply {
        tokens: ReplyTokens::List(vec![1]),
        end: ReplyEnd::Hang,
    };
    let mock = MockEngine::serve(engine, MockOptions::scripted(hang));
    let mut child = spawn_self(
        "a_front_end_that_was_killed_leaves_its_lease_to_the_next",
        &name,
    );
    eventually("five requests run", || mock.stats().num_running == 5);
    let attach = || SharedMemory::attach(&name).expect("attach");
    assert!(
        izar_transport::client::RingClient::connect(attach(), eager()).is_err(),
        "the only lease is held"
    );
    child.kill().expect("kill");
    child.wait().expect("wait");
    eventually("the sequences of the dead are ended", || {
        mock.stats().num_running == 0
    });
    let mut next = None;
    eventually("the lease is free", || {
        next = izar_transport::client::RingClient::connect(attach(), eager()).ok();
        next.is_some()
    });
    assert_eq!(next.expect("connected").stats().slots_in_use, 0);
}
