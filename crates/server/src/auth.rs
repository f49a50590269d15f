//! API keys.

use axum::http::{HeaderMap, header};
use subtle::{Choice, ConstantTimeEq};

/// The keys that open the API. None: it is open.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// Keys as the operator gave them; empty ones are left out, so that an unset variable does not become a key.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        Self(keys.into_iter().filter(|key| !key.is_empty()).collect())
    }

    /// Whether the API is open to all.
    pub fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the request's `Authorization: Bearer KEY` holds a key. Every key is compared over its whole length, so the time taken
    /// tells an attacker at most a key's length.
    pub fn admit(&self, headers: &HeaderMap) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let Some(given) = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| bearer(value.as_bytes()))
        else {
            return false;
        };
        self.0
            .iter()
            .fold(Choice::from(0), |found, key| {
                found | key.as_bytes().ct_eq(given)
            })
            .into()
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({} keys)", self.0.len())
    }
}

/// The credentials of the `Bearer` scheme, whose name is compared without regard to case (RFC 9110 §11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| rest.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(keys: &[&str], authorization: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(header::AUTHORIZATION, value.parse().expect("header value"));
        }
        ApiKeys::new(keys.iter().map(|&k| k.to_owned())).admit(&headers)
    }

    #[test]
    fn any_of_several_keys_opens_and_nothing_else_does() {
        assert!(admits(&["a", "b"], Some("Bearer b")));
        assert!(admits(&["a"], Some("bearer  a")));
        for wrong in [
            None,
            Some("Bearer c"),
            Some("Bearer "),
            Some("Basic a"),
            Some("a"),
            Some("Bearer ab"),
        ] {
            assert!(!admits(&["a", "b"], wrong), "{wrong:?}");
        }
    }

    #[test]
    fn without_keys_the_api_is_open_and_an_empty_key_is_no_key() {
        assert!(admits(&[], None));
        assert!(admits(&[""], None));
    }

    #[test]
    fn keys_are_not_printed() {
        assert_eq!(
            format!("{:?}", ApiKeys::new(["secret".to_owned()])),
            "ApiKeys(1 keys)"
        );
    }
}
