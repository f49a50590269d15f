//! RDMA devices and libfabric.

use std::ffi::c_uint;
use std::path::Path;

use libloading::Library;

/// What could carry the ring to another machine.
pub struct Network {
    rdma_devices: Vec<String>,
    libfabric: Option<(u32, u32)>,
}

impl Network {
    /// Looks.
    pub fn look() -> Self {
        Self {
            rdma_devices: names_in(Path::new("/sys/class/infiniband")),
            libfabric: libfabric_version(),
        }
    }

    /// The report's lines.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let devices = match self.rdma_devices.as_slice() {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        let libfabric = match self.libfabric {
            Some((major, minor)) => format!("{major}.{minor}"),
            None => "not installed (needed only for an engine on another machine)".to_owned(),
        };
        vec![("RDMA devices", devices), ("libfabric", libfabric)]
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn libfabric_version() -> Option<(u32, u32)> {
    // SAFETY: libfabric's initialisers only set up its own state, and this process has no other copy of it.
    let library = unsafe { Library::new("libfabric.so.1") }.ok()?;
    // SAFETY: libfabric declares `uint32_t fi_version(void)`.
    let version = unsafe { library.get::<unsafe extern "C" fn() -> c_uint>(b"fi_version") }.ok()?;
    // SAFETY: it takes nothing and returns a number.
    let version = unsafe { version() };
    Some((version >> 16, version & 0xffff))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_that_is_not_there_has_no_devices() {
        assert!(names_in(Path::new("/nowhere/at/all")).is_empty());
    }
}
