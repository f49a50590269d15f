//! Placeholder replaced by the crate proper.
