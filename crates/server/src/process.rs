//! This process and the host's processors as the kernel accounts for them, the former under the names that Prometheus' own clients use.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Ticks a second in /proc: fixed by Linux' interface to programs, whatever the kernel's own clock.
const TICKS_PER_SECOND: f64 = 100.0;

/// What /proc says of this process; nothing where there is no /proc.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessStats {
    /// Memory in RAM, bytes.
    pub resident_bytes: u64,
    /// User and system time of all threads, seconds.
    pub cpu_seconds: f64,
    /// When it was started, Unix time in seconds.
    pub start_time: f64,
    /// Open file descriptors.
    pub num_open_fds: u64,
}

impl ProcessStats {
    /// Reads them.
    pub fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The command's name is in parentheses and may hold anything; the fields after it count from 3.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |field: usize| -> Option<f64> {
            let ticks: u64 = fields.get(field - 3)?.parse().ok()?;
            Some(ticks as f64 / TICKS_PER_SECOND)
        };
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let booted = now.as_ref().map_or(0.0, Duration::as_secs_f64) - uptime;
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?
            .trim()
            .strip_suffix(" kB")?;
        Some(Self {
            resident_bytes: resident.trim().parse::<u64>().ok()? * 1024,
            cpu_seconds: ticks(14)? + ticks(15)?,
            start_time: booted + ticks(22)?,
            num_open_fds: fs::read_dir("/proc/self/fd").ok()?.count() as u64,
        })
    }
}

/// Time of all the host's processors since it was started; nothing where there is no /proc.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostCpu {
    /// Used by anybody, a hypervisor's other guests included. Processor seconds.
    pub busy_seconds: f64,
    /// Not used, or waiting for a disk. Processor seconds.
    pub idle_seconds: f64,
}

impl HostCpu {
    /// Reads it.
    pub fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = fields
            .split_whitespace()
            .map_while(|field| field.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq steal; the guests' time that follows is part of user and nice.
        let &[user, nice, system, idle, iowait, irq, softirq, steal] = ticks.get(..8)? else {
            return None;
        };
        let seconds = |ticks: u64| ticks as f64 / TICKS_PER_SECOND;
        Some(Self {
            busy_seconds: seconds(user + nice + system + irq + softirq + steal),
            idle_seconds: seconds(idle + iowait),
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn processors_are_busy_or_idle_and_guests_are_not_counted_twice() {
        let stat = "cpu  100 20 30 1000 50 6 7 8 90 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        let found = HostCpu::parse(stat).expect("a line");
        assert_eq!((found.busy_seconds, found.idle_seconds), (1.71, 10.5));
        for broken in ["", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8"] {
            assert_eq!(HostCpu::parse(broken), None);
        }
        let now = HostCpu::read().expect("/proc");
        assert!(now.busy_seconds > 0.0 && now.idle_seconds > 0.0);
    }

    #[test]
    fn this_process_is_young_and_has_memory_and_files() {
        let stats = ProcessStats::read().expect("/proc");
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        let age = now.as_secs_f64() - stats.start_time;
        assert!((-2.0..86_400.0).contains(&age), "{age}");
        assert!(stats.resident_bytes > 1 << 20 && stats.num_open_fds >= 3);
    }
}
