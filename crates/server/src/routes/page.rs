//! `GET /` and `GET /ui/{path}`: the page and its files. They hold no secrets and need no key; what the page asks for does.

use axum::extract::Path;
use axum::http::HeaderMap;
use axum::response::Response;

use crate::error::ApiError;
use crate::page;

/// The page.
pub async fn index(headers: HeaderMap) -> Response {
    page::index().respond(&headers)
}

/// One of its files.
pub async fn file(Path(path): Path<String>, headers: HeaderMap) -> Result<Response, ApiError> {
    page::find(&path)
        .map(|asset| asset.respond(&headers))
        .ok_or(ApiError::NoSuchEndpoint)
}
