//! The functions that the scheduler kernel calls, by their C names; declared for it in `izar_resident.h`.
//!
//! Every one is called by one thread of the block at a time, with the block synchronised before and after.

use core::mem::MaybeUninit;

use crate::core_state::{Core, StepTimes};
use crate::memory::Addresses;

/// Bytes that hold a [`Core`].
pub const CORE_BYTES: usize = 16 << 10;

const _: () = assert!(size_of::<Core>() <= CORE_BYTES && align_of::<Core>() <= 8);

/// Makes a scheduler at `core`; 0 if the sizes are impossible.
///
/// # Safety
/// [`CORE_BYTES`] at `core` are the caller's, 8-byte aligned; for the rest see [`Core::init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn izar_resident_init(
    core: *mut MaybeUninit<Core>,
    addresses: *const Addresses,
) -> u32 {
    // SAFETY: promised by the caller.
    unsafe { Core::init(&mut *core, &*addresses).into() }
}

/// See [`Core::open`].
///
/// # Safety
/// `core` was made by [`izar_resident_init`], and no other call uses it meanwhile. So for all others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn izar_resident_open(core: *mut Core, now_ns: u64) {
    // SAFETY: promised by the caller.
    unsafe { (*core).open(now_ns) };
}

/// See [`Core::idle`].
///
/// # Safety
/// See [`izar_resident_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn izar_resident_idle(core: *mut Core, now_ns: u64) {
    // SAFETY: promised by the caller.
    unsafe { (*core).idle(now_ns) };
}

/// See [`Core::look`].
///
/// # Safety
/// See [`izar_resident_open`]; `candidates` are `count` slots of the ring.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn izar_resident_look(
    core: *mut Core,
    candidates: *const u32,
    count: u32,
    now_ns: u64,
) -> u32 {
    // SAFETY: promised by the caller.
    unsafe {
        let candidates = core::slice::from_raw_parts(candidates, count as usize);
        (*core).look(candidates, now_ns)
    }
}

/// See [`Core::admit`].
///
/// # Safety
/// See [`izar_resident_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn izar_resident_admit(core: *mut Core, num_events: u32, now_ns: u64) {
    // SAFETY: promised by the caller.
    unsafe { (*core).admit(num_events, now_ns) };
}

/// See [`Core::plan`].
///
/// # Safety
/// See [`izar_resident_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn izar_resident_plan(core: *mut Core, now_ns: u64) -> u32 {
    // SAFETY: promised by the caller.
    unsafe { (*core).plan(now_ns) }
}

/// See [`Core::publish`].
///
/// # Safety
/// See [`izar_resident_open`]; the first `num_samples` samples are those of `step`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn izar_resident_publish(
    core: *mut Core,
    step: u64,
    num_samples: u32,
    times: *const StepTimes,
    now_ns: u64,
) {
    // SAFETY: promised by the caller.
    unsafe { (*core).publish(step, num_samples, &*times, now_ns) };
}

/// See [`Core::close`].
///
/// # Safety
/// As for [`izar_resident_look`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn izar_resident_close(
    core: *mut Core,
    candidates: *const u32,
    count: u32,
    now_ns: u64,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let candidates = core::slice::from_raw_parts(candidates, count as usize);
        (*core).close(candidates, now_ns);
    }
}
