//! CPU time of threads, and what machine this is.

use std::time::Duration;

/// CPU time that a thread's `schedstat` tells.
pub fn time_at(schedstat: &str) -> Duration {
    let stat = std::fs::read_to_string(schedstat).unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// CPU time of this thread.
pub fn time_here() -> Duration {
    time_at("/proc/thread-self/schedstat")
}

/// CPU time of this process's threads called `name`.
pub fn time_of(name: &str) -> Duration {
    time_of_those(|comm| comm == name)
}

fn time_of_those(is_meant: impl Fn(&str) -> bool) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task")
        .expect("Linux")
        .flatten();
    let named = tasks.filter(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| is_meant(comm.trim()))
    });
    named
        .map(|task| time_at(task.path().join("schedstat").to_str().expect("UTF-8")))
        .sum()
}

/// CPU time of all of this process's threads.
pub fn time_of_all() -> Duration {
    time_of_those(|_| true)
}

/// Processor, cores and how busy they are already.
pub fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    format!("{cores} cores of {model}; load before the start {load}")
}
