//! The shared words: how a `u64` of the ring packs and unpacks.
//!
//! Every word carries the generation it speaks of, so that a word left over from an earlier use of the
//! slot or lease never passes for a current one. Generations are compared for equality only and wrap.

use crate::error::{BadRequest, EngineError};

/// Bits that the generation is shifted by in every word that has one.
pub const GENERATION_SHIFT: u32 = 32;
/// Bits that the finish code is shifted by in a status word.
pub const FINISH_SHIFT: u32 = 8;
/// Bits that the error number is shifted by in a status word and in the engine-state word.
pub const ERROR_SHIFT: u32 = 16;
/// Bits that the flags are shifted by in a count word.
pub const COUNT_FLAGS_SHIFT: u32 = 24;

/// Where a slot is in its life.
///
/// `PrefillPending` never appears in a status word: it is the state of a slot whose submit word is one
/// generation ahead of an `Empty` status word.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Free: the next submission uses the next generation.
    Empty = 0,
    /// Submitted, not yet claimed by the engine.
    PrefillPending = 1,
    /// Claimed; waiting for or in its prefill.
    PrefillProcessing = 2,
    /// Producing tokens.
    DecodeProcessing = 3,
    /// Preempted: produced tokens stay valid, more will follow.
    DecodePaused = 4,
    /// Finished; the front end reads it out and recycles it.
    DecodeCompleted = 5,
}

impl State {
    /// The state with that number.
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Empty,
            1 => Self::PrefillPending,
            2 => Self::PrefillProcessing,
            3 => Self::DecodeProcessing,
            4 => Self::DecodePaused,
            5 => Self::DecodeCompleted,
            _ => return None,
        })
    }
}

/// Why a slot is complete. In the status word: a code, and an error number for [`Self::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// An end-of-sequence or stop token was sampled (which one: [`ResultRecord`](crate::ResultRecord)).
    Stop,
    /// `max_tokens` or the model's length limit was reached.
    Length,
    /// The front end cancelled it, or its lease expired.
    Cancelled,
    /// The engine refused or failed it.
    Error(EngineError),
}

/// Code in the status word of a slot that is not complete.
pub const FINISH_NONE: u8 = 0;
/// Code of [`FinishReason::Stop`].
pub const FINISH_STOP: u8 = 1;
/// Code of [`FinishReason::Length`].
pub const FINISH_LENGTH: u8 = 2;
/// Code of [`FinishReason::Cancelled`].
pub const FINISH_CANCELLED: u8 = 3;
/// Code of [`FinishReason::Error`].
pub const FINISH_ERROR: u8 = 4;

impl FinishReason {
    /// (code, error number) of the status word.
    pub const fn to_codes(self) -> (u8, u16) {
        match self {
            Self::Stop => (FINISH_STOP, 0),
            Self::Length => (FINISH_LENGTH, 0),
            Self::Cancelled => (FINISH_CANCELLED, 0),
            Self::Error(error) => (FINISH_ERROR, error.code()),
        }
    }

    /// The reason those codes spell; `None` if they spell none.
    pub const fn from_codes(code: u8, error: u16) -> Option<Self> {
        Some(match code {
            FINISH_STOP => Self::Stop,
            FINISH_LENGTH => Self::Length,
            FINISH_CANCELLED => Self::Cancelled,
            FINISH_ERROR => match EngineError::from_code(error) {
                Some(error) => Self::Error(error),
                None => return None,
            },
            _ => return None,
        })
    }
}

impl From<EngineError> for FinishReason {
    fn from(error: EngineError) -> Self {
        Self::Error(error)
    }
}

impl From<BadRequest> for FinishReason {
    fn from(bad: BadRequest) -> Self {
        Self::Error(EngineError::BadRequest(bad))
    }
}

/// A submit, cancel or recycle word: `generation << 32 | lease`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotWord {
    /// Generation of the slot that is submitted, cancelled or recycled.
    pub generation: u32,
    /// Generation of the lease the writer holds; words of a former holder are ignored.
    pub lease: u32,
}

impl SlotWord {
    /// The word as stored.
    pub const fn pack(self) -> u64 {
        (self.generation as u64) << GENERATION_SHIFT | self.lease as u64
    }

    /// The word stored as `word`.
    pub const fn unpack(word: u64) -> Self {
        Self {
            generation: (word >> GENERATION_SHIFT) as u32,
            lease: word as u32,
        }
    }
}

/// First progress word of a slot: `generation << 32 | error << 16 | finish << 8 | state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusWord {
    /// Generation the state is about.
    pub generation: u32,
    /// State, never [`State::PrefillPending`].
    pub state: State,
    /// Why it is complete; `None` unless the state is [`State::DecodeCompleted`].
    pub finish: Option<FinishReason>,
}

impl StatusWord {
    /// The word as stored.
    pub const fn pack(self) -> u64 {
        let (finish, error) = match self.finish {
            Some(reason) => reason.to_codes(),
            None => (FINISH_NONE, 0),
        };
        (self.generation as u64) << GENERATION_SHIFT
            | (error as u64) << ERROR_SHIFT
            | (finish as u64) << FINISH_SHIFT
            | self.state as u64
    }

    /// The word stored as `word`; `None` if no engine of this version writes it.
    pub const fn unpack(word: u64) -> Option<Self> {
        let Some(state) = State::from_u8(word as u8) else {
            return None;
        };
        let (code, error) = ((word >> FINISH_SHIFT) as u8, (word >> ERROR_SHIFT) as u16);
        let finish = match (state, code) {
            (State::PrefillPending, _) => return None,
            (State::DecodeCompleted, _) => match FinishReason::from_codes(code, error) {
                Some(reason) => Some(reason),
                None => return None,
            },
            (_, FINISH_NONE) => None,
            _ => return None,
        };
        Some(Self {
            generation: (word >> GENERATION_SHIFT) as u32,
            state,
            finish,
        })
    }
}

/// Most tokens one request can produce: the count word has 24 bits for it.
pub const MAX_OUTPUT_TOKENS: u32 = (1 << 24) - 1;
/// Flag of the count word: the count is final.
pub const COUNT_FINAL: u8 = 1;

/// Second progress word of a slot: `generation << 32 | flags << 24 | num_generated`.
///
/// It carries the whole generation, so a count read at another moment than the status word is never
/// taken for another request's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountWord {
    /// Generation the count is about.
    pub generation: u32,
    /// Output records (and log-probability records) that may be read.
    pub num_generated: u32,
    /// No token will follow.
    pub is_final: bool,
}

impl CountWord {
    /// The word as stored. `num_generated` must not exceed [`MAX_OUTPUT_TOKENS`].
    pub const fn pack(self) -> u64 {
        debug_assert!(self.num_generated <= MAX_OUTPUT_TOKENS);
        let flags = if self.is_final { COUNT_FINAL } else { 0 };
        (self.generation as u64) << GENERATION_SHIFT
            | (flags as u64) << COUNT_FLAGS_SHIFT
            | self.num_generated as u64
    }

    /// The word stored as `word`.
    pub const fn unpack(word: u64) -> Self {
        Self {
            generation: (word >> GENERATION_SHIFT) as u32,
            num_generated: word as u32 & MAX_OUTPUT_TOKENS,
            is_final: (word >> COUNT_FLAGS_SHIFT) as u8 & COUNT_FINAL != 0,
        }
    }
}

/// Masks that can be delivered and not used yet: mask `k` lies in buffer `k % MASK_BUFFERS` of the request's mask area.
pub const MASK_BUFFERS: u32 = 2;
/// Bits that the flags are shifted by in a mask word.
pub const MASK_FLAGS_SHIFT: u32 = 24;

/// Mask word of a slot, written by the front end: `generation << 32 | flags << 24 | num_delivered`.
///
/// Bit `b` of the flags says that the mask in buffer `b` allows everything; the buffer's content then means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskWord {
    /// Generation of the slot whose masks these are.
    pub generation: u32,
    /// Masks delivered so far, for the output tokens from the first on.
    pub num_delivered: u32,
    /// Per buffer: its mask allows everything.
    pub is_open: [bool; MASK_BUFFERS as usize],
}

/// Whether the mask of an output token is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskState {
    /// Not delivered yet.
    Awaited,
    /// Delivered: it allows everything.
    Open,
    /// Delivered: it lies in its buffer.
    Ready,
}

impl MaskWord {
    /// The word as stored. `num_delivered` must not exceed [`MAX_OUTPUT_TOKENS`].
    pub const fn pack(self) -> u64 {
        debug_assert!(self.num_delivered <= MAX_OUTPUT_TOKENS);
        let flags = self.is_open[0] as u64 | (self.is_open[1] as u64) << 1;
        (self.generation as u64) << GENERATION_SHIFT
            | flags << MASK_FLAGS_SHIFT
            | self.num_delivered as u64
    }

    /// The word stored as `word`.
    pub const fn unpack(word: u64) -> Self {
        let flags = word >> MASK_FLAGS_SHIFT;
        Self {
            generation: (word >> GENERATION_SHIFT) as u32,
            num_delivered: word as u32 & MAX_OUTPUT_TOKENS,
            is_open: [flags & 1 != 0, flags & 2 != 0],
        }
    }

    /// What the word says to the engine, which runs `generation`, about the mask of output token `index`.
    pub const fn state(self, generation: u32, index: u32) -> MaskState {
        if self.generation != generation || self.num_delivered <= index {
            MaskState::Awaited
        } else if self.is_open[(index % MASK_BUFFERS) as usize] {
            MaskState::Open
        } else {
            MaskState::Ready
        }
    }
}

/// What a slot's progress says about one generation of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The engine has not claimed the submission yet.
    Unclaimed,
    /// Claimed. `num_generated` records may be read; more may follow.
    Running {
        /// One of the processing or paused states.
        state: State,
        /// Output records that may be read.
        num_generated: u32,
    },
    /// Finished, and everything it produced may be read.
    Completed {
        /// Why it finished.
        reason: FinishReason,
        /// Output records that may be read, all there will be.
        num_generated: u32,
    },
    /// The engine has taken the slot back: recycled, or the lease was revoked.
    Emptied,
    /// The slot is about another generation: the observer's lease was revoked and the slot reused.
    Lost,
    /// No engine of this protocol version writes such a status word.
    Malformed,
}

/// Interprets the two progress words of a slot for the holder of `generation`.
///
/// Each word must be read whole, but the two may be from different moments and in either order: a count
/// of another generation counts as zero, and a slot reads as completed only once its final count is in
/// hand too.
pub const fn observe(status: u64, count: u64, generation: u32) -> Observation {
    let Some(status) = StatusWord::unpack(status) else {
        return Observation::Malformed;
    };
    if status.generation != generation {
        let before = status.generation.wrapping_add(1) == generation;
        return match status.state {
            State::Empty if before => Observation::Unclaimed,
            _ => Observation::Lost,
        };
    }
    let count = CountWord::unpack(count);
    let ours = count.generation == generation;
    let num_generated = if ours { count.num_generated } else { 0 };
    match (status.state, status.finish) {
        (State::Empty, _) => Observation::Emptied,
        (State::DecodeCompleted, Some(reason)) if ours && count.is_final => {
            Observation::Completed {
                reason,
                num_generated,
            }
        }
        (State::DecodeCompleted, _) => Observation::Running {
            state: State::DecodeProcessing,
            num_generated,
        },
        (state, _) => Observation::Running {
            state,
            num_generated,
        },
    }
}
