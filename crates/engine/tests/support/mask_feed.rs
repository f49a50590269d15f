//! A front end's mask worker: answers each token of a request with the mask of the next.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use izar_transport::client::{FeedProgress, MaskFeed};

/// A mask that allows `ids` of `vocab` tokens.
pub fn bits(ids: &[u32], vocab: usize) -> Vec<u32> {
    let mut mask = vec![0; vocab.div_ceil(32)];
    ids.iter()
        .for_each(|&id| mask[id as usize / 32] |= 1 << (id % 32));
    mask
}

/// Delivers a request's masks until it is over, that of token `k` after a pause: `answer(k)` says how long and what, nothing
/// for a mask that allows everything.
pub fn feed(
    mut feed: MaskFeed,
    answer: impl Fn(usize) -> (Duration, Option<Vec<u32>>) + Send + 'static,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut tokens = Vec::new();
        loop {
            let (pause, mask) = answer(tokens.len());
            std::thread::sleep(pause);
            if !feed.deliver(mask.as_deref()).expect("reachable") {
                return;
            }
            let before = tokens.len();
            while tokens.len() == before {
                if block_on(&mut feed, &mut tokens) == FeedProgress::Over {
                    return;
                }
            }
        }
    })
}

fn block_on(feed: &mut MaskFeed, tokens: &mut Vec<u32>) -> FeedProgress {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(poll_fn(|cx| feed.poll_tokens(cx, tokens)));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(progress) => return progress,
            Poll::Pending => std::thread::park(),
        }
    }
}
