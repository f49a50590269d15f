//! How fast a GPU can generate at best: a step reads every active weight once, whatever else it does.

use super::gpu::Device;

/// A model's shape, as far as the floor needs it.
struct Shape {
    name: &'static str,
    layers: u64,
    hidden: u64,
    /// Width of queries, and of keys.
    heads: (u64, u64),
    /// Width of the feed-forward part that one token goes through.
    inner: u64,
    vocab: u64,
}

const MODELS: [Shape; 8] = [
    shape("Llama-2-7B", 32, 4096, (4096, 4096), 11008, 32000),
    shape("Llama-3-8B", 32, 4096, (4096, 1024), 14336, 128_256),
    shape("Qwen2.5-7B", 28, 3584, (3584, 512), 18944, 152_064),
    shape("Llama-2-13B", 40, 5120, (5120, 5120), 13824, 32000),
    shape("Phi-4", 40, 5120, (5120, 1280), 17920, 100_352),
    shape("Qwen2.5-14B", 48, 5120, (5120, 1024), 13824, 152_064),
    shape("QwQ-32B", 64, 5120, (5120, 1024), 27648, 152_064),
    shape("Qwen3-32B", 64, 5120, (8192, 1024), 25600, 151_936),
];

const fn shape(
    name: &'static str,
    layers: u64,
    hidden: u64,
    heads: (u64, u64),
    inner: u64,
    vocab: u64,
) -> Shape {
    Shape {
        name,
        layers,
        hidden,
        heads,
        inner,
        vocab,
    }
}

impl Shape {
    /// Bytes in bf16 that one step reads: every matrix, the head, not the embedding.
    fn active_bytes(&self) -> u64 {
        let (q, kv) = self.heads;
        let layer = self.hidden * (2 * q + 2 * kv + 3 * self.inner);
        2 * (self.layers * layer + self.vocab * self.hidden)
    }
}

/// The report's lines for one GPU.
pub fn describe(device: &Device) -> Vec<(&'static str, String)> {
    let line = |model: &Shape| {
        let bytes = model.active_bytes() as f64;
        let ms = bytes / device.read_rate() * 1e3;
        let finding = format!(
            "{ms:.2} ms a token, {:.0} tokens/s alone ({:.1} GB in bf16)",
            1e3 / ms,
            bytes / 1e9
        );
        (model.name, finding)
    };
    MODELS.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_3_8b_reads_15_gigabytes_a_step() {
        let bytes = MODELS[1].active_bytes();
        assert_eq!(MODELS[1].name, "Llama-3-8B");
        assert!((15.0e9..15.02e9).contains(&(bytes as f64)), "{bytes}");
    }
}
