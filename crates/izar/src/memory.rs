//! How much memory there is for this process.

/// Memory of the machine or of the control group, whichever is less, in bytes: (total, available). Zero where the system does
/// not say.
pub fn total_and_available() -> (u64, u64) {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let (total, available) = (field(&info, "MemTotal:"), field(&info, "MemAvailable:"));
    match group_limit() {
        Some(limit) => (total.min(limit), available.min(limit)),
        None => (total, available),
    }
}

/// A line of /proc/meminfo, in bytes.
fn field(info: &str, name: &str) -> u64 {
    let line = info.lines().find_map(|line| line.strip_prefix(name));
    let kib = line
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn group_limit() -> Option<u64> {
    let paths = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ];
    paths
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let info = "MemTotal:       24000000 kB\nMemAvailable:   12 kB\n";
        assert_eq!(field(info, "MemTotal:"), 24_000_000 * 1024);
        assert_eq!(
            (field(info, "MemAvailable:"), field(info, "Swap:")),
            (12 * 1024, 0)
        );
    }
}
