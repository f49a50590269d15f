//! NVIDIA's driver and GPUs, asked through libcuda where there is one. Nothing is linked: a machine without the driver is an answer.

use std::ffi::{CStr, c_char, c_int, c_uint};

use libloading::{Library, Symbol};

use super::host::gib;

/// What the driver says.
pub struct Cuda {
    /// CUDA version of the driver, as 1000 × major + 10 × minor.
    version: c_int,
    /// Kernel module's version, where the system tells.
    module: Option<String>,
    /// The GPUs.
    pub devices: Vec<Device>,
}

/// One GPU.
pub struct Device {
    name: String,
    memory_bytes: u64,
    capability: (c_int, c_int),
    /// Bytes a second that the memory's pins carry.
    pin_rate: f64,
}

impl Device {
    /// What the driver calls it.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Bytes a second that kernels can read.
    pub fn read_rate(&self) -> f64 {
        READABLE * self.pin_rate
    }
}

/// What a read-only stream gets of the pins' rate on HBM3e, measured.
const READABLE: f64 = 0.945;

/// Why there is nothing to use.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The driver's library is not here.
    #[error("no driver (libcuda.so.1 is not installed)")]
    Library,
    /// The library is too old or is not what it says.
    #[error("libcuda.so.1 lacks {0}: update the driver")]
    Symbol(&'static str),
    /// The driver answers with an error.
    #[error("the driver is installed but answers {call} with error {code}{}", hint(*.code))]
    Call {
        /// What was asked.
        call: &'static str,
        /// CUDA's error.
        code: c_int,
    },
}

fn hint(code: c_int) -> &'static str {
    match code {
        100 => ": no GPU is visible to this process",
        803 => {
            ": driver and kernel module are of different versions; reboot or reinstall the driver"
        }
        999 => ": the kernel module may not be loaded",
        _ => "",
    }
}

/// The report's lines.
pub fn describe(cuda: &Result<Cuda, Missing>) -> Vec<(&'static str, String)> {
    let cuda = match cuda {
        Ok(cuda) => cuda,
        Err(missing) => return vec![("driver", missing.to_string())],
    };
    let module = cuda.module.as_deref().map_or(String::new(), |version| {
        format!(" (kernel module {version})")
    });
    let mut lines = vec![(
        "driver",
        format!(
            "CUDA {}.{}{module}",
            cuda.version / 1000,
            cuda.version % 1000 / 10
        ),
    )];
    for device in &cuda.devices {
        let (major, minor) = device.capability;
        lines.push((
            "GPU",
            format!(
                "{}, {}, compute capability {major}.{minor}, reads about {:.2} TB/s",
                device.name,
                gib(device.memory_bytes),
                device.read_rate() / 1e12
            ),
        ));
    }
    lines
}

/// Asks the driver.
pub fn look() -> Result<Cuda, Missing> {
    // SAFETY: libcuda's initialisers only set up its own state, and this process has no other copy of it.
    let library = unsafe { Library::new("libcuda.so.1") }.map_err(|_| Missing::Library)?;
    let driver = Driver(&library);
    driver.call_uint("cuInit", 0)?;
    let version = driver.get_int("cuDriverGetVersion")?;
    let num_devices = driver.get_int("cuDeviceGetCount")?;
    let devices = (0..num_devices)
        .map(|ordinal| driver.device(ordinal))
        .collect::<Result<_, _>>()?;
    let module = std::fs::read_to_string("/sys/module/nvidia/version")
        .ok()
        .map(|version| version.trim().to_owned());
    Ok(Cuda {
        version,
        module,
        devices,
    })
}

/// The driver API's functions that are used here, found by name. All return a `CUresult`, 0 for success.
struct Driver<'a>(&'a Library);

type GetInt = unsafe extern "C" fn(*mut c_int) -> c_int;
type TakeUint = unsafe extern "C" fn(c_uint) -> c_int;
type GetDevice = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type GetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type GetBytes = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;

/// `CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE`.
const MEMORY_CLOCK_KHZ: c_int = 36;
/// `CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH`.
const MEMORY_BUS_BITS: c_int = 37;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const CAPABILITY: (c_int, c_int) = (75, 76);

impl<'a> Driver<'a> {
    /// # Safety
    /// `F` must be the C signature of the function that libcuda exports as `name`.
    unsafe fn find<F>(&self, name: &'static str) -> Result<Symbol<'a, F>, Missing> {
        // SAFETY: the caller answers for the signature; the symbol borrows the library and cannot outlive it.
        unsafe { self.0.get(name.as_bytes()) }.map_err(|_| Missing::Symbol(name))
    }

    fn call_uint(&self, name: &'static str, value: c_uint) -> Result<(), Missing> {
        // SAFETY: `cuInit(unsigned int)` is the only function called through here.
        check(name, unsafe { self.find::<TakeUint>(name)?(value) })
    }

    fn get_int(&self, name: &'static str) -> Result<c_int, Missing> {
        let mut value = 0;
        // SAFETY: `cuDriverGetVersion` and `cuDeviceGetCount` write one int, which lives here.
        check(name, unsafe { self.find::<GetInt>(name)?(&mut value) })?;
        Ok(value)
    }

    fn device(&self, ordinal: c_int) -> Result<Device, Missing> {
        let (mut device, mut memory_bytes, mut name) = (0, 0, [0; 128]);
        // SAFETY: `cuDeviceGet(CUdevice *, int)` writes one int, which lives here.
        check("cuDeviceGet", unsafe {
            self.find::<GetDevice>("cuDeviceGet")?(&mut device, ordinal)
        })?;
        // SAFETY: `cuDeviceGetName(char *, int, CUdevice)` writes at most the 128 bytes it is told of, the last of them 0.
        check("cuDeviceGetName", unsafe {
            self.find::<GetName>("cuDeviceGetName")?(name.as_mut_ptr(), 128, device)
        })?;
        // SAFETY: `cuDeviceTotalMem_v2(size_t *, CUdevice)` writes one size, which lives here.
        check("cuDeviceTotalMem_v2", unsafe {
            self.find::<GetBytes>("cuDeviceTotalMem_v2")?(&mut memory_bytes, device)
        })?;
        // SAFETY: the name ends with a 0 inside the array (it was all zeroes, and the call ends what it writes with one).
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }
            .to_string_lossy()
            .into_owned();
        let capability = (
            self.attribute(CAPABILITY.0, device)?,
            self.attribute(CAPABILITY.1, device)?,
        );
        let (clock_khz, bus_bits) = (
            self.attribute(MEMORY_CLOCK_KHZ, device)?,
            self.attribute(MEMORY_BUS_BITS, device)?,
        );
        // Two transfers a clock.
        let pin_rate = 2e3 * f64::from(clock_khz) * f64::from(bus_bits) / 8.0;
        Ok(Device {
            name,
            memory_bytes: memory_bytes as u64,
            capability,
            pin_rate,
        })
    }

    fn attribute(&self, attribute: c_int, device: c_int) -> Result<c_int, Missing> {
        let mut value = 0;
        // SAFETY: `cuDeviceGetAttribute(int *, CUdevice_attribute, CUdevice)` writes one int, which lives here.
        check("cuDeviceGetAttribute", unsafe {
            self.find::<GetAttribute>("cuDeviceGetAttribute")?(&mut value, attribute, device)
        })?;
        Ok(value)
    }
}

fn check(call: &'static str, code: c_int) -> Result<(), Missing> {
    if code == 0 {
        Ok(())
    } else {
        Err(Missing::Call { call, code })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_is_one_line_that_says_what_is_missing() {
        let lines = describe(&Err(Missing::Library));
        assert_eq!(lines.len(), 1);
        assert!(lines[0].1.contains("libcuda.so.1"));
        assert!(
            describe(&Err(Missing::Call {
                call: "cuInit",
                code: 100
            }))[0]
                .1
                .contains("no GPU is visible")
        );
    }
}
