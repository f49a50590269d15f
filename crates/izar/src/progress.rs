//! A bar on the terminal while weights are loaded; nothing where standard error is not one.

use indicatif::{ProgressBar, ProgressStyle};

/// The bar. It vanishes when dropped.
pub struct Loading(ProgressBar);

impl Loading {
    /// An empty bar, labelled with `what`.
    pub fn start(what: &str) -> Self {
        let bar = ProgressBar::no_length().with_message(what.to_owned());
        let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}");
        Self(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    /// So many bytes of so many are loaded.
    pub fn set(&self, done_bytes: u64, total_bytes: u64) {
        self.0.set_length(total_bytes);
        self.0.set_position(done_bytes);
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
