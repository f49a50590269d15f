//! An answer being made: its sequences in the engine, and the two ways to send it.
//!
//! An [`Answer`] owns one [`Choice`] for each sequence, and each choice owns its request in the ring: dropping the answer, because the client left
//! or the server gave up, cancels all of them. There is no task or channel between ring and socket: hyper polls the body, the body polls
//! the choices, and a slow reader holds up nobody but itself.

mod choice;
mod collect;
mod failure;
#[cfg(feature = "fuzzing")]
pub mod replay;
pub mod scores;
mod stream;
mod submit;

use choice::Choice;
pub use failure::{of_health, of_request};
pub use submit::{Order, PromptTokens, compile_format, submit, unix_seconds};

use crate::deadline::Deadline;
use crate::drain::InFlight;
use crate::output::head::{Head, Usage};

/// An answer whose sequences are in the ring.
pub struct Answer {
    head: Head,
    choices: Vec<Choice>,
    /// Prompt tokens counted; the rest is counted as it comes.
    usage: Usage,
    /// Choices for each prompt.
    n: usize,
    /// Ids of the prompts, where the client asked for them.
    prompt_ids: Option<Vec<Vec<u32>>>,
    /// When it must be finished.
    deadline: Option<Deadline>,
    /// Tells the drain that this answer is being made.
    in_flight: InFlight,
}

impl Answer {
    /// Ids of the prompt of choice `index`, where they were asked for.
    fn prompt_ids_of(&self, index: usize) -> Option<&[u32]> {
        self.prompt_ids
            .as_ref()
            .map(|prompts| prompts[index / self.n].as_slice())
    }
}

/// Cached prompt tokens of the choices that count their prompt; nothing where the engine did not say for one of them.
fn cached_tokens(choices: &[Choice], n: usize) -> Option<u64> {
    choices.iter().step_by(n).map(Choice::cached_tokens).sum()
}
