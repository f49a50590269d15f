//! The page's files, all of them, embedded in the binary. A test compares this list with the folder.

use super::Asset;

/// One file of `ui/`; what its name ends in decides its type.
macro_rules! asset {
    ($path:literal) => {
        Asset::new($path, include_bytes!(concat!("../../ui/", $path)))
    };
}

/// Served at `/ui/PATH`, and the first one at `/`, too.
pub(super) static ASSETS: [Asset; 44] = [
    asset!("index.html"),
    asset!("css/base.css"),
    asset!("css/chat.css"),
    asset!("css/engine.css"),
    asset!("css/markdown.css"),
    asset!("icon.svg"),
    asset!("js/api.js"),
    asset!("js/chat/composer.js"),
    asset!("js/chat/conversation.js"),
    asset!("js/chat/message.js"),
    asset!("js/chat/request_dialog.js"),
    asset!("js/chat/sampling.js"),
    asset!("js/chat/settings.js"),
    asset!("js/chat/sidebar.js"),
    asset!("js/chat/snippets.js"),
    asset!("js/chat/stream.js"),
    asset!("js/chat/tokens.js"),
    asset!("js/chat/view.js"),
    asset!("js/connection.js"),
    asset!("js/dom.js"),
    asset!("js/engine/chart.js"),
    asset!("js/engine/facts.js"),
    asset!("js/engine/format.js"),
    asset!("js/engine/histogram.js"),
    asset!("js/engine/history.js"),
    asset!("js/engine/palette.js"),
    asset!("js/engine/ring_grid.js"),
    asset!("js/engine/state.js"),
    asset!("js/engine/stats.js"),
    asset!("js/engine/step_timeline.js"),
    asset!("js/engine/values_table.js"),
    asset!("js/engine/view.js"),
    asset!("js/key_dialog.js"),
    asset!("js/main.js"),
    asset!("js/markdown.js"),
    asset!("js/sse.js"),
    asset!("js/store.js"),
    asset!("js/theme.js"),
    asset!("vendor/VERSIONS.txt"),
    asset!("vendor/marked-18.2.1/LICENSE"),
    asset!("vendor/marked-18.2.1/marked.esm.js"),
    asset!("vendor/uplot-1.6.32/LICENSE"),
    asset!("vendor/uplot-1.6.32/uPlot.esm.js"),
    asset!("vendor/uplot-1.6.32/uPlot.min.css"),
];
