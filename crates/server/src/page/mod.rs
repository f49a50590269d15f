//! The page at `/`: files embedded in the binary, and the headers that keep a browser from doing more with them than it must.
//!
//! The files are constants of the program. What is derived from one (its tag, its compressed form) is made when a browser first asks and kept. Every
//! answer carries the same policy: scripts, styles and connections of this origin alone, no inline code, no frames. A browser
//! keeps a copy and asks whether it is still good; a file's tag is a hash of its contents.

mod assets;

use std::io::Write;
use std::sync::OnceLock;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;

/// What the page may do in a browser: use its own scripts and styles, and talk to its own server. Model output that slips through as HTML finds
/// nothing that would run it or carry anything away, and no code may turn text into HTML.
const CONTENT_SECURITY_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
     frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);

/// One embedded file.
pub struct Asset {
    /// Where it lies under `ui/`.
    path: &'static str,
    bytes: &'static [u8],
    etag: OnceLock<HeaderValue>,
    gzip: OnceLock<Option<Gzip>>,
}

/// A file's compressed form.
struct Gzip {
    bytes: &'static [u8],
    etag: HeaderValue,
}

/// The file at `path` under `ui/`.
pub fn find(path: &str) -> Option<&'static Asset> {
    assets::ASSETS.iter().find(|asset| asset.path == path)
}

/// The page itself.
pub fn index() -> &'static Asset {
    &assets::ASSETS[0]
}

impl Asset {
    const fn new(path: &'static str, bytes: &'static [u8]) -> Self {
        Self {
            path,
            bytes,
            etag: OnceLock::new(),
            gzip: OnceLock::new(),
        }
    }

    /// The answer to a request with `headers`: the file, or that the browser's copy is still good.
    pub fn respond(&self, headers: &HeaderMap) -> Response {
        let gzip = self.gzip().filter(|_| accepts_gzip(headers));
        let (bytes, etag) = gzip.map_or((self.bytes, self.etag()), |it| (it.bytes, &it.etag));
        let mut response = if is_known(headers, etag) {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            let mut response = Body::from(bytes).into_response();
            let content_type = HeaderValue::from_static(self.content_type());
            response
                .headers_mut()
                .insert(header::CONTENT_TYPE, content_type);
            if gzip.is_some() {
                let encoding = HeaderValue::from_static("gzip");
                response
                    .headers_mut()
                    .insert(header::CONTENT_ENCODING, encoding);
            }
            response
        };
        let headers = response.headers_mut();
        for (name, value) in policies() {
            headers.insert(name, value);
        }
        headers.insert(header::ETAG, etag.clone());
        response
    }

    fn content_type(&self) -> &'static str {
        match self.path.rsplit_once('.').map_or("", |(_, end)| end) {
            "html" => "text/html; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "json" => "application/json",
            "svg" => "image/svg+xml",
            "png" => "image/png",
            _ => "text/plain; charset=utf-8",
        }
    }

    fn etag(&self) -> &HeaderValue {
        self.etag.get_or_init(|| tag(self.bytes, ""))
    }

    /// Its compressed form, where that is worth having.
    fn gzip(&self) -> Option<&Gzip> {
        let compress = || {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(self.bytes).ok()?;
            let bytes = encoder.finish().ok()?;
            // Kept for ever, as the file is: it is one of a fixed few.
            (bytes.len() < self.bytes.len() - self.bytes.len() / 8).then(|| Gzip {
                bytes: bytes.leak(),
                etag: tag(self.bytes, "-gzip"),
            })
        };
        self.gzip.get_or_init(compress).as_ref()
    }
}

fn policies() -> [(HeaderName, HeaderValue); 6] {
    let fixed = HeaderValue::from_static;
    [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
        (header::REFERRER_POLICY, fixed("no-referrer")),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            fixed("same-origin"),
        ),
        // Kept, but asked about each time: the next version of the server has other files at the same paths.
        (header::CACHE_CONTROL, fixed("no-cache")),
        (header::VARY, fixed("accept-encoding")),
    ]
}

/// A strong entity tag: 64 bits of FNV-1a. Nobody gains by a collision, as the files are ours.
fn tag(bytes: &[u8], suffix: &str) -> HeaderValue {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    HeaderValue::from_str(&format!("\"{hash:016x}{suffix}\""))
        .unwrap_or_else(|_| unreachable!("hexadecimal digits are fit for a header"))
}

/// Whether `If-None-Match` names `etag` (RFC 9110 §13.1.2, weak comparison).
fn is_known(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let (values, etag) = (
        headers.get_all(header::IF_NONE_MATCH),
        etag.to_str().unwrap_or(""),
    );
    values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == etag)
}

/// Whether `Accept-Encoding` lists gzip and does not refuse it.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING);
    values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| {
            let mut parts = coding.split(';').map(str::trim);
            let is_gzip = parts
                .next()
                .is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
            let refused = parts.any(|weight| {
                weight
                    .strip_prefix("q=")
                    .and_then(|q| q.parse::<f32>().ok())
                    == Some(0.0)
            });
            is_gzip && !refused
        })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn files(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                files(&path, root, found);
            } else {
                let path = path.strip_prefix(root).expect("below it");
                found.push(path.to_str().expect("UTF-8").replace('\\', "/"));
            }
        }
    }

    fn with(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().expect("a header"))])
    }

    #[test]
    fn every_file_of_the_folder_is_embedded_and_has_a_type() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
        let mut found = Vec::new();
        files(&root, &root, &mut found);
        let mut listed: Vec<_> = assets::ASSETS.iter().map(|it| it.path.to_owned()).collect();
        found.sort();
        listed.sort();
        assert_eq!(found, listed);
        assert_eq!(index().path, "index.html");
        for asset in &assets::ASSETS {
            let known = asset.content_type() != "text/plain; charset=utf-8";
            let is_text = asset.path.ends_with(".txt") || asset.path.contains("LICENSE");
            assert!(known || is_text, "{}", asset.path);
        }
    }

    #[test]
    fn files_load_nothing_from_elsewhere() {
        for asset in assets::ASSETS
            .iter()
            .filter(|it| it.path.ends_with(".html"))
        {
            let text = std::str::from_utf8(asset.bytes).expect("UTF-8");
            for elsewhere in [
                "src=\"http",
                "src=\"//",
                "<style",
                " style=",
                " onclick=",
                "<base",
            ] {
                assert!(!text.contains(elsewhere), "{}: {elsewhere}", asset.path);
            }
        }
    }

    #[test]
    fn copy_with_the_same_tag_is_still_good_and_no_other() {
        let etag = tag(b"contents", "");
        let tag = etag.to_str().expect("ASCII");
        for known in [tag, "*", &format!("\"x\", W/{tag}")] {
            assert!(
                is_known(&with(header::IF_NONE_MATCH, known), &etag),
                "{known}"
            );
        }
        for other in ["\"x\"", "", &tag[1..]] {
            assert!(
                !is_known(&with(header::IF_NONE_MATCH, other), &etag),
                "{other}"
            );
        }
        assert!(!is_known(&HeaderMap::new(), &etag));
    }

    #[test]
    fn gzip_is_sent_to_those_who_take_it() {
        for takes in ["gzip", "br, gzip;q=0.5", "GZIP", "deflate,gzip"] {
            assert!(
                accepts_gzip(&with(header::ACCEPT_ENCODING, takes)),
                "{takes}"
            );
        }
        for refuses in ["br", "gzip;q=0", "gzip; q=0.0", ""] {
            assert!(
                !accepts_gzip(&with(header::ACCEPT_ENCODING, refuses)),
                "{refuses}"
            );
        }
    }
}
