//! The engine's clock.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the Unix epoch, read once at the first call and counted on monotonically from there: it never goes
/// back, and front ends in other processes can compare it with their own clocks.
pub fn now_ns() -> u64 {
    static START: OnceLock<(Instant, u64)> = OnceLock::new();
    let (start, epoch_ns) = START.get_or_init(|| {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        (
            Instant::now(),
            epoch.map_or(0, |since| since.as_nanos() as u64),
        )
    });
    epoch_ns + start.elapsed().as_nanos() as u64
}
