//! How much memory there is for this process, and giving back what it does not need.

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

/// Gives freed memory back to the system: loading a model leaves tens of megabytes of it in glibc's heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back_freed() {
    // SAFETY: takes a number, locks the heap itself, and touches free memory only.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give memory back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back_freed() {}

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
