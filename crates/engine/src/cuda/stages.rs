//! Parts of a step, to record it without some of them and so find out what each costs.

/// A kind of kernels of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The plan expanded, tokens embedded.
    Inputs,
    /// Every normalisation that is a kernel of its own.
    Norms,
    /// Queries, keys and values projected.
    Qkv,
    /// Head norms, rotation, keys and values written.
    Heads,
    /// Attention of decodes.
    DecodeAttention,
    /// Attention of prompt chunks.
    PrefillAttention,
    /// Attention's output projected.
    Output,
    /// Gates and ups projected, SwiGLU.
    GateUp,
    /// Down projection.
    Down,
    /// Router and experts.
    Experts,
    /// Rows that sample gathered, the head.
    Head,
    /// The sampler.
    Sampling,
}

impl Stage {
    /// All of them, in the order of a step.
    pub const ALL: [Self; 12] = [
        Self::Inputs,
        Self::Norms,
        Self::Qkv,
        Self::Heads,
        Self::DecodeAttention,
        Self::PrefillAttention,
        Self::Output,
        Self::GateUp,
        Self::Down,
        Self::Experts,
        Self::Head,
        Self::Sampling,
    ];

    /// The four projections of a layer.
    pub const PROJECTIONS: [Self; 4] = [Self::Qkv, Self::Output, Self::GateUp, Self::Down];

    /// What tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inputs => "inputs",
            Self::Norms => "norms",
            Self::Qkv => "qkv",
            Self::Heads => "rope + kv write",
            Self::DecodeAttention => "decode attention",
            Self::PrefillAttention => "prefill attention",
            Self::Output => "output",
            Self::GateUp => "gate_up + swiglu",
            Self::Down => "down",
            Self::Experts => "router + experts",
            Self::Head => "lm head",
            Self::Sampling => "sampler",
        }
    }
}

/// What a recording contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    stages: u16,
    library: u16,
}

impl Variant {
    /// A whole step.
    pub const FULL: Self = Self {
        stages: u16::MAX,
        library: 0,
    };

    /// A step without one stage; what it computes is void.
    pub fn without(self, stage: Stage) -> Self {
        Self {
            stages: self.stages & !(1 << stage as u16),
            ..self
        }
    }

    /// These stages alone; what they compute is void.
    pub fn only(self, stages: &[Stage]) -> Self {
        let stages = bits(stages);
        Self { stages, ..self }
    }

    /// The same with all projections by the library's kernels, also where our own take them.
    pub fn with_library(self) -> Self {
        Self {
            library: u16::MAX,
            ..self
        }
    }

    /// The same with the projections of these stages by the library's kernels, also where our own take them.
    pub fn with_library_for(self, stages: &[Stage]) -> Self {
        let library = bits(stages);
        Self { library, ..self }
    }

    /// Whether a stage's projections are the library's whatever their size.
    pub fn by_library(self, stage: Stage) -> bool {
        self.library & 1 << stage as u16 != 0
    }

    /// Whether a stage is part of it.
    pub fn has(self, stage: Stage) -> bool {
        self.stages & 1 << stage as u16 != 0
    }
}

fn bits(stages: &[Stage]) -> u16 {
    let bits = stages.iter().map(|&stage| 1 << stage as u16);
    bits.fold(0, |all, bit| all | bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_have_the_stages_they_say() {
        let without = Variant::FULL.without(Stage::Down);
        for stage in Stage::ALL {
            assert!(Variant::FULL.has(stage));
            assert_eq!(without.has(stage), stage != Stage::Down);
            assert_eq!(
                Variant::FULL.only(&[Stage::Head]).has(stage),
                stage == Stage::Head
            );
            let mixed = Variant::FULL.with_library_for(&[Stage::Head]);
            assert_eq!(mixed.by_library(stage), stage == Stage::Head);
            assert!(Variant::FULL.with_library().by_library(stage));
            assert!(!Variant::FULL.by_library(stage));
        }
    }
}
