//! The page's files, all of them, embedded in the binary. A test compares this list with the folder.

use super::Asset;

/// One file of `ui/`; what its name ends in decides its type.
macro_rules! asset {
    ($path:literal) => {
        Asset::new($path, include_bytes!(concat!("../../ui/", $path)))
    };
}

/// Served at `/ui/PATH`, and the first one at `/`, too.
pub(super) static ASSETS: [Asset; 1] = [asset!("index.html")];
