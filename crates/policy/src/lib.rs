//! Placeholder replaced by the crate proper.
#![no_std]
