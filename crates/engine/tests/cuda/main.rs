//! The CUDA engine against the CPU engine, which is its oracle, and against itself. Needs a GPU; passes after saying so
//! where there is none.
//!
//! Checkpoints are made up in a temporary directory. `IZAR_TEST_MODEL` names SmolLM2 as in the other tests.

mod checkpoints;
mod engine;
mod harness;
mod logits;
#[path = "../support/mask_feed.rs"]
mod mask_feed;
mod masks;
mod prompts;
mod resident;
mod smollm2;
mod weights;

/// Says why nothing is checked, and whether something is.
fn has_device() -> bool {
    match izar_engine::cuda::probe() {
        Ok(()) => true,
        Err(reason) => {
            eprintln!("nothing checked: {reason}");
            false
        }
    }
}
