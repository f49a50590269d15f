//! Why a launch of one of the small operations was refused.

use crate::error::CudaError;

/// Nothing was launched. The message names the operation, its argument, the rule and what was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// An argument that the kernel has no code for.
    #[error("{op}: {what} must be {rule}, got {got}")]
    Argument {
        /// The operation.
        op: &'static str,
        /// The argument.
        what: &'static str,
        /// What it must be.
        rule: &'static str,
        /// What it is.
        got: u64,
    },
    /// The launch failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// The checks of one operation's arguments.
#[derive(Clone, Copy)]
pub(crate) struct Checks(pub(crate) &'static str);

impl Checks {
    /// `got` is what `rule` asks for if `holds`.
    pub(crate) fn require(
        self,
        holds: bool,
        what: &'static str,
        rule: &'static str,
        got: impl TryInto<u64>,
    ) -> Result<(), LaunchError> {
        if holds {
            return Ok(());
        }
        Err(LaunchError::Argument {
            op: self.0,
            what,
            rule,
            got: got.try_into().unwrap_or(u64::MAX),
        })
    }
}
