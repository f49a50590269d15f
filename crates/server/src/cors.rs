//! Cross-origin requests from browsers: refused unless the operator names origins.

use axum::http::{HeaderName, HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};

/// Which pages of other origins may call the API.
#[derive(Debug, Clone)]
pub struct Cors(CorsLayer);

/// A value that no browser would ever send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{value}' is not {what}")]
pub struct CorsError {
    value: String,
    what: &'static str,
}

impl Cors {
    /// Allows `origins`, `methods` and request `headers`; `*` in a list stands for all. With `credentials`, browsers may send cookies and
    /// `Authorization` of their own, and `*` is answered with what was asked for, as browsers then demand.
    ///
    /// # Errors
    /// [`CorsError`] for a value that is no origin, method or header name.
    pub fn new(
        origins: &[String],
        methods: &[String],
        headers: &[String],
        credentials: bool,
    ) -> Result<Self, CorsError> {
        let is_all = |list: &[String]| list.iter().any(|entry| entry == "*");
        let origin = match (is_all(origins), credentials) {
            (true, true) => AllowOrigin::mirror_request(),
            (true, false) => AllowOrigin::any(),
            _ => AllowOrigin::list(parse(origins, "an origin", |o| {
                HeaderValue::from_str(o).ok()
            })?),
        };
        let method = match (is_all(methods), credentials) {
            (true, true) => AllowMethods::mirror_request(),
            (true, false) => AllowMethods::any(),
            _ => AllowMethods::list(parse(methods, "a method", |m| m.parse::<Method>().ok())?),
        };
        let header = match (is_all(headers), credentials) {
            (true, true) => AllowHeaders::mirror_request(),
            (true, false) => AllowHeaders::any(),
            _ => AllowHeaders::list(parse(headers, "a header's name", |h| {
                h.parse::<HeaderName>().ok()
            })?),
        };
        let layer = CorsLayer::new()
            .allow_origin(origin)
            .allow_methods(method)
            .allow_headers(header)
            .allow_credentials(credentials)
            .expose_headers([crate::exchange::REQUEST_ID]);
        Ok(Self(layer))
    }

    pub(crate) fn layer(&self) -> CorsLayer {
        self.0.clone()
    }
}

fn parse<T>(
    list: &[String],
    what: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, CorsError> {
    list.iter()
        .map(|value| {
            parse(value).ok_or_else(|| CorsError {
                value: value.clone(),
                what,
            })
        })
        .collect()
}
