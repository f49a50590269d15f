//! Processor and memory.

use crate::memory;

/// The machine as this process sees it.
pub struct Host {
    model: String,
    /// Cores that this process may use.
    pub num_cores: usize,
    features: Vec<&'static str>,
    total_bytes: u64,
    /// Memory that could be used now.
    pub available_bytes: u64,
}

impl Host {
    /// Looks.
    pub fn look() -> Self {
        let (total_bytes, available_bytes) = memory::total_and_available();
        Self {
            model: model_name(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            num_cores: std::thread::available_parallelism().map_or(1, usize::from),
            features: features(),
            total_bytes,
            available_bytes,
        }
    }

    /// What the processor calls itself.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The report's lines.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let features = if self.features.is_empty() {
            "none that matter here".to_owned()
        } else {
            self.features.join(" ")
        };
        vec![
            (
                "system",
                format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            ),
            ("processor", self.model.clone()),
            ("cores", format!("{} usable", self.num_cores)),
            ("instructions", features),
            (
                "memory",
                format!(
                    "{} available of {}",
                    gib(self.available_bytes),
                    gib(self.total_bytes)
                ),
            ),
        ]
    }

    /// The widest vectors the kernels know and this processor has.
    pub fn best_instructions(&self) -> &'static str {
        let has = |name| self.features.contains(&name);
        if has("avx512f") && has("avx512bw") && has("avx512vnni") {
            "AVX-512 with VNNI"
        } else if has("avx512f") && has("avx512bw") {
            "AVX-512"
        } else if has("avx2") && has("fma") {
            "AVX2"
        } else {
            "portable (no vector instructions that the kernels know)"
        }
    }
}

/// Bytes in GiB.
pub fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

fn model_name(cpuinfo: &str) -> String {
    let named = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name") || line.starts_with("CPU part"));
    let name = named
        .and_then(|line| line.split_once(':'))
        .map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! look_for {
        ($($name:tt)*) => { $( if std::arch::is_x86_feature_detected!($name) { found.push($name); } )* };
    }
    look_for!("sse4.2" "avx" "avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512vnni" "avx512bf16" "avxvnni");
    found
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! look_for {
        ($($name:tt)*) => { $( if std::arch::is_aarch64_feature_detected!($name) { found.push($name); } )* };
    }
    look_for!("neon" "dotprod" "i8mm" "bf16" "fp16" "sve" "sve2");
    found
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_is_named_or_unknown() {
        assert_eq!(
            model_name("processor\t: 0\nmodel name\t: A CPU @ 2GHz\n"),
            "A CPU @ 2GHz"
        );
        assert_eq!(model_name(""), "unknown");
    }
}
